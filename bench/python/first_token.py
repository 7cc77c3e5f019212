# SPDX-License-Identifier: Apache-2.0
"""Measures a model of Hugging Face from the start of its load to its first token, by each way to load it, and engines that
sleep and that take new weights."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pathlib
import tempfile
import time
from contextlib import ExitStack
from typing import Any

from effort import Effort
from loaded_model import wanted_gib, write_model
from peers import Peer, Talk
from report import Row, at_most
from samples import time_ns
from store_versions import finish, own_store
from weights import own_memory

_ENGINES = 4
_UPDATES = 5
_PROMPT = list(range(1, 33))
_CLASS = "LlamaForCausalLM"


# --- the engines, each in a process of its own ------------------------------------------------------


class _Engine:
    """A model that is loaded by the way that a question names."""

    def __init__(self, path: str, device: str, store: str) -> None:
        import torch
        import transformers

        import onecopy.hf

        self._path, self._device, self._store = path, device, store
        self._class = getattr(transformers, _CLASS)
        self._torch, self._onecopy, self.model = torch, onecopy, None
        torch.ones(1, device=device)  # starts the device before the measurement
        onecopy.zeros(1, device=device)

    def loaded(self, way: str) -> dict[str, Any]:
        """Loads the model, and returns the nanoseconds to it and to its first token, and its memory."""
        card, own, start = self._card(), own_memory(), time.perf_counter_ns()
        self.model = self._load(way)
        finish(self._device)
        load = time.perf_counter_ns() - start
        token = self._first_token()
        return {"load": load, "token": time.perf_counter_ns() - start, "first": token, "card": card - self._card(),
                "own": own_memory() - own, "logits": self.logits()}  # fmt: skip

    def _load(self, way: str) -> Any:
        device = None if self._device == "cpu" else self._device
        if way == "transformers":
            return self._class.from_pretrained(self._path, device_map=self._device)
        if way == "files":
            return self._onecopy.hf.from_pretrained(self._class, self._path, device=device)
        return self._onecopy.hf.from_pretrained(self._class, self._path, device=device, store=self._store)

    def _first_token(self) -> int:
        ids = self._torch.tensor([_PROMPT], device=self._device)
        return int(self.model.generate(ids, max_new_tokens=1, do_sample=False)[0, -1])

    def logits(self, _: str = "") -> str:
        """Returns a digest of the logits of the prompt."""
        with self._torch.no_grad():
            logits = self.model(self._torch.tensor([_PROMPT], device=self._device)).logits
        return hashlib.sha256(logits.float().cpu().numpy().tobytes()).hexdigest()

    def _card(self) -> int:
        return self._torch.cuda.mem_get_info(self._device)[0] if self._device != "cpu" else 0

    # --- an engine that sleeps: the version of the host stays, the memory of the card goes

    def on_host(self, _: str) -> int:
        """Opens the version of the store on the host. Returns the bytes of memory that are this process's own."""
        before = own_memory()
        self.model = self._onecopy.hf.from_pretrained(self._class, self._path, store=self._store)
        self._asleep = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        self._asleep = {name: tensor.data for name, tensor in self._asleep.items()}
        self._give_back()
        return own_memory() - before

    def wake(self, _: str) -> dict[str, Any]:
        before = self._card()
        start = time.perf_counter_ns()
        self._use(self._onecopy.to_device(self._asleep, self._device))
        finish(self._device)
        return {"ns": time.perf_counter_ns() - start, "card": before - self._card()}

    def sleep(self, _: str) -> dict[str, Any]:
        before = self._card()
        ns = time_ns(lambda: self._use(self._asleep))
        self._give_back()
        return {"ns": ns, "card": self._card() - before, "own": own_memory()}

    def _give_back(self) -> None:
        """Returns idle memory of the GPU now. Without it onecopy's returns after a second, and torch's stays."""
        self._torch.cuda.empty_cache()
        self._onecopy.torch.trim(self._device)

    def _use(self, tensors: dict[str, Any]) -> None:
        for name, tensor in [*self.model.named_parameters(), *self.model.named_buffers()]:
            tensor.data = tensors[name]

    # --- a trainer, and an engine that follows its versions

    def train(self, name: str) -> str:
        """Changes the weights, and publishes them. Returns the digest of the logits that follow from them."""
        with self._torch.no_grad():
            for layer in self.model.model.layers:
                layer.mlp.up_proj.weight.mul_(0.5)
        weights = {key: value.data for key, value in self.model.named_parameters()}
        self._onecopy.store.connect().publish(name, weights, keep=2)
        return self.logits()

    def follow(self, name: str) -> str:
        self._live = self._onecopy.store.connect(framework="torch").follow(name)
        for key, parameter in self.model.named_parameters():
            parameter.data = self._live[key]
        return self.logits()

    def update(self, _: str) -> dict[str, Any]:
        """Takes the newest version, and returns the time for which the engine generates nothing."""
        finish(self._device)
        ns = time_ns(self._live.update)
        return {"ns": ns, "logits": self.logits()}


def engine(talk: Talk, path: str, device: str, store: str) -> None:
    """Answers [the name of a method of the engine, its argument]."""
    made = _Engine(path, device, store)
    for method, argument in talk.questions():
        talk.say(getattr(made, method)(argument))


# --- the rows ---------------------------------------------------------------------------------------


def starts(effort: Effort) -> Row:
    """Measures each way to load, for a model with the layers of a Llama of 8 billion numbers and one with tied weights."""
    row = Row("A model of Hugging Face from the start of its load to its first token, after imports",
              "first process ≤ 0.5 s, with store=True ≤ 0.8 s, later ≤ 0.06 s, of 13.5 GiB on an H200")  # fmt: skip
    if importlib.util.find_spec("transformers") is None:
        row.note("transformers is not installed: nothing was measured")
        return row
    for is_tied in (False, True):
        _in_places(_starts_of, row, effort, is_tied)
    row.note(
        "ONECOPY_BENCH_MODEL_GIB is the size to ask for; each way is a new process, and all generate the same token"
    )
    return row


def _in_places(measure: Any, row: Row, effort: Effort, is_tied: bool) -> None:
    """Calls `measure` with the directory of a new model, with a store and with files of processes of its own."""
    with tempfile.TemporaryDirectory() as directory, own_store():
        os.environ["ONECOPY_RUNTIME_DIR"] = directory
        path = str(pathlib.Path(directory) / "model")
        os.mkdir(path)
        total = write_model(pathlib.Path(path), wanted_gib(), is_tied)
        row.add("a Llama with tied weights" if is_tied else "a Llama", total / 2**30, "GiB")
        try:
            measure(row, path, effort.device, total)
        finally:
            del os.environ["ONECOPY_RUNTIME_DIR"]


def _starts_of(row: Row, path: str, device: str, total: int) -> None:
    answers = []

    def load(what: str, peer: Peer, way: str) -> None:
        answers.append(found := peer.ask(("loaded", way), timeout=600))
        row.add(f"  {what}: load", found["load"], "ns", found["load"] / answers[0]["load"], "transformers")
        row.add(f"  {what}: first token", found["token"], "ns", found["token"] / answers[0]["token"], "transformers")
        row.add(f"  {what}: memory of the GPU", found["card"] / 2**30, "GiB")
        row.add(f"  {what}: memory of its own on the CPU", found["own"] / 2**30, "GiB")

    given = {"path": path, "device": device, "store": "model"}
    with Peer(engine, **given) as peer:
        load("transformers", peer, "transformers")
    with Peer(engine, **given) as first, Peer(engine, **given) as second:
        load("onecopy.hf, the first process", first, "files")
        load("onecopy.hf, while the first one lives", second, "files")
    with Peer(engine, **given) as first:
        load("onecopy.hf with store=, the first process", first, "store")
        first.kill()
    with Peer(engine, **given) as second:
        load("onecopy.hf with store=, when all processes were killed", second, "store")
    if len({(found["first"], found["logits"]) for found in answers}) != 1:
        raise RuntimeError("the ways do not load the same model")


def sleeping(effort: Effort) -> Row:
    """Measures engines of one GPU that leave their weights to one version in the memory of the CPU."""
    row = Row(
        f"{_ENGINES} engines of one GPU sleep and wake", "1.02 x the model in the memory of the CPU, for all of them"
    )
    if effort.device == "cpu" or importlib.util.find_spec("transformers") is None:
        row.note("this row needs a GPU and transformers: nothing was measured")
        return row
    _in_places(_sleep, row, effort, is_tied=False)
    return row


def _sleep(row: Row, path: str, device: str, total: int) -> None:
    with ExitStack() as stack:
        engines = [stack.enter_context(Peer(engine, path=path, device=device, store="model")) for _ in range(_ENGINES)]
        # All engines use the GPU before the measurement, since its driver allocates shared memory for each of them.
        [expected] = {each.ask(("loaded", "transformers"), timeout=600)["logits"] for each in engines}
        shared = _shared_memory()
        for each in engines:
            each.ask(("on_host", ""), timeout=600)
        for word in ("first wake", "wake after a sleep"):
            woken = [each.ask(("wake", ""), timeout=600) for each in engines]
            if {each.ask(("logits", ""), timeout=600) for each in engines} != {expected}:
                raise RuntimeError("an engine has woken with other weights")
            row.add(f"  {word}, the slowest", max(one["ns"] for one in woken), "ns")
            row.add(f"  {word}: memory of the GPU, each", woken[0]["card"] / 2**30, "GiB")
            slept = [each.ask(("sleep", ""), timeout=600) for each in engines]
            row.add(f"  {word}: given back by a sleep, each", slept[0]["card"] / 2**30, "GiB")
        held = (_shared_memory() - shared) / total
        row.judge("  shared memory of the CPU / the model", held, "x", at_most(held, 1.02))
        row.add("  largest memory of an engine's own", max(one["own"] for one in slept) / 2**30, "GiB")


def _shared_memory() -> int:
    with open("/proc/meminfo") as file:
        return int(dict(line.split(":") for line in file)["Shmem"].split()[0]) << 10


def refits(effort: Effort) -> Row:
    """Measures the pause of an engine that takes new weights of a trainer, where the engine cannot have read a part."""
    row = Row("An engine takes new weights of a trainer", "the engine pauses for ≤ 5 ms")
    if importlib.util.find_spec("transformers") is None:
        row.note("transformers is not installed: nothing was measured")
        return row
    _in_places(_refit, row, effort, is_tied=False)
    return row


def _refit(row: Row, path: str, device: str, total: int) -> None:
    given = {"path": path, "device": device, "store": "model"}
    with Peer(engine, **given) as trainer, Peer(engine, **given) as follower:
        for peer in (trainer, follower):
            peer.ask(("loaded", "transformers"), timeout=600)
        expected = trainer.ask(("train", "refit"), timeout=600)
        pauses = []
        if follower.ask(("follow", "refit"), timeout=600) != expected:
            raise RuntimeError("the engine has other weights than the trainer")
        for _ in range(_UPDATES):
            expected = trainer.ask(("train", "refit"), timeout=600)
            found = follower.ask(("update", ""), timeout=600)
            if found["logits"] != expected:
                raise RuntimeError("the engine has other weights than the trainer")
            pauses.append(found["ns"])
        row.judge("the longest pause", max(pauses), "ns", at_most(max(pauses), 5e6))
