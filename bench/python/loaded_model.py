# SPDX-License-Identifier: Apache-2.0
"""Measures a model of Hugging Face in a second process: the time to open it, and the process's own memory."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import tempfile

from effort import Effort
from peers import Peer, Talk
from report import Row, at_most
from samples import time_ns
from weights import own_memory

# of a Llama of 8 billion numbers, and of one of a billion numbers
_LAYER_BYTES = 2 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096)
_SMALL_LAYER_BYTES = 2 * (2 * 2048 * 2048 + 2 * 2048 * 512 + 3 * 2048 * 8192 + 2 * 2048)


def wanted_gib() -> float:
    """Returns the size of the models to measure."""
    return float(os.environ.get("ONECOPY_BENCH_MODEL_GIB", "1"))


def write_model(directory: pathlib.Path, gib: float, is_tied: bool = False) -> int:
    """Writes the files of a Llama with as many layers as the size needs. Returns their size in bytes. A model with tied
    weights has the shapes of a Llama of a billion numbers, of which the output uses the weights of the embedding."""
    import torch
    import transformers
    from safetensors.torch import save_file

    layers = max(1, round(gib * 2**30 / (_SMALL_LAYER_BYTES if is_tied else _LAYER_BYTES)))
    sizes = ({"vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192} if is_tied
             else {"vocab_size": 1024, "hidden_size": 4096, "intermediate_size": 14336})  # fmt: skip
    config = transformers.LlamaConfig(
        **sizes, num_attention_heads=32, num_key_value_heads=8, num_hidden_layers=layers, tie_word_embeddings=is_tied,
        dtype="bfloat16", architectures=["LlamaForCausalLM"],
    )  # fmt: skip
    config.save_pretrained(directory)
    with torch.device("meta"):
        shapes = {name: value.shape for name, value in transformers.LlamaForCausalLM(config).state_dict().items()}
    if is_tied:
        del shapes["lm_head.weight"]
    random = torch.randn(max(shape.numel() for shape in shapes.values())).mul_(0.02).bfloat16()
    files: dict[str, str] = {}
    for layer in range(-1, layers):
        prefix = f"model.layers.{layer}."
        mine = [
            name for name in shapes if name.startswith(prefix) or (layer < 0 and not name.startswith("model.layers."))
        ]
        file = f"part-{layer + 1}.safetensors"
        tensors = {name: random[: shapes[name].numel()].reshape(shapes[name]).clone() for name in mine}
        save_file(tensors, directory / file, metadata={"format": "pt"})
        files |= dict.fromkeys(mine, file)
    total = sum(path.stat().st_size for path in directory.glob("*.safetensors"))
    index = {"metadata": {"total_size": total}, "weight_map": files}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return total


def hold_model(talk: Talk, path: str) -> None:
    """Loads the model when asked, and holds it until the questions end."""
    import torch
    import transformers

    import onecopy.hf

    torch.set_num_threads(1)
    cls = transformers.LlamaForCausalLM  # imports transformers' modules before the measurement
    held = []
    for _ in talk.questions():
        before = own_memory()
        ns = time_ns(lambda: held.append(onecopy.hf.from_pretrained(cls, path)))
        talk.say([ns, own_memory() - before])


def huggingface(effort: Effort) -> Row:
    """Measures three processes: the first reads the files, the others open its tensors."""
    gib = wanted_gib()
    row = Row(f"A Llama in bfloat16, {gib:g} GiB asked for", "a second process has it in 0.3 s, with 50 MiB of its own")
    if importlib.util.find_spec("transformers") is None:
        row.note("transformers is not installed: nothing was measured")
        return row
    with tempfile.TemporaryDirectory() as place:
        total = write_model(pathlib.Path(place), gib)
        with (
            Peer(hold_model, path=place) as first,
            Peer(hold_model, path=place) as second,
            Peer(hold_model, path=place) as third,
        ):
            row.add("the model", total / 2**30, "GiB")
            row.add("the first process, which reads the files", first.ask("load", timeout=600)[0], "ns")
            for what, peer in (("the second process", second), ("the third process", third)):
                ns, memory = peer.ask("load", timeout=600)
                row.judge(what, ns, "ns", at_most(ns, 3e8))
                row.judge("  memory of its own", memory / 2**20, "MiB", at_most(memory / 2**20, 50))
    row.note(
        "ONECOPY_BENCH_MODEL_GIB is the size to ask for; the files take as much of the disk, and are gone afterwards"
    )
    return row
