# SPDX-License-Identifier: Apache-2.0
"""Measures new weights of a trainer until another process has read a byte of each of their pages."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import re
import tempfile
from collections.abc import Callable
from typing import Any

from effort import Effort
from report import Row, at_least
from samples import Samples, time_ns

_TENSORS = 64
_BYTES = 16 << 20  # the size of each tensor
_BUCKET = 512 << 20
_ROUNDS = 5
_RAY_BYTES = 256 << 20

# --- the receivers, each in a process of its own ----------------------------------------------------


def own_memory() -> int:
    """Returns this process's memory without mapped files and shared memory."""
    with open("/proc/self/smaps_rollup") as file:
        return sum(int(kib) << 10 for kib in re.findall(r"^Anonymous:\s+(\d+) kB", file.read(), re.MULTILINE))


def _touch(tensors: Any) -> int:
    return sum(int(tensor.view(-1)[:: 4096 // tensor.element_size()].sum()) for tensor in tensors)


def _receive(kind: str, given: Any, ends: Any) -> None:
    """Answers each command with the number of bytes read, and at the end with the memory taken."""
    import torch

    torch.set_num_threads(1)
    before = own_memory()
    read = {"onecopy": _by_onecopy, "file": _by_file, "bucket": _by_bucket}[kind](given, ends)
    for word in iter(ends.recv, None):
        ends.send(read(word))
    ends.send(own_memory() - before)


def _by_onecopy(given: str, ends: Any) -> Callable[[Any], int]:
    import onecopy

    tensors = list(onecopy.open(given, framework="torch").values())
    return lambda word: _touch(tensors)


def _by_file(given: str, ends: Any) -> Callable[[Any], int]:
    from safetensors.torch import load_file

    kept: list[Any] = []

    def read(word: Any) -> int:
        kept[:] = load_file(given).values()
        return _touch(kept)

    return read


def _by_bucket(bucket: Any, ends: Any) -> Callable[[Any], int]:
    import torch

    mine = [torch.empty(_BYTES // 4) for _ in range(_TENSORS)]

    def read(word: Any) -> int:
        for begin in range(0, _TENSORS, _BUCKET // _BYTES):
            if begin:
                ends.send("next")
                ends.recv()
            for place, tensor in enumerate(mine[begin : begin + _BUCKET // _BYTES]):
                tensor.copy_(bucket[place * _BYTES // 4 : (place + 1) * _BYTES // 4])
        return _touch(mine)

    return read


# --- the trainer ------------------------------------------------------------------------------------


class _Trainer:
    def __init__(self) -> None:
        import torch

        torch.set_num_threads(1)
        self.torch = torch
        self.weights = {f"layers.{number}": torch.full((_BYTES // 4,), 1.0) for number in range(_TENSORS)}
        self.step = 1

    def train(self) -> None:
        self.step += 1
        for tensor in self.weights.values():
            tensor.fill_(self.step)

    def measure(self, kind: str, given: Any, hand_over: Callable[[Any], None], rounds: int) -> tuple[Samples, int]:
        """Measures the time to send and to read, and the receiver's own memory."""
        here, there = multiprocessing.get_context("spawn").Pipe()
        process = multiprocessing.get_context("spawn").Process(target=_receive, args=(kind, given, there))
        process.start()
        samples = Samples()
        for number in range(rounds + 1):
            self.train()
            ns = time_ns(lambda: hand_over(here))
            if number:  # the first round maps the memory
                samples.append(ns)
        here.send(None)
        memory = here.recv()
        process.join()
        return samples, memory

    def check(self, answer: Any) -> None:
        expected = self.step * _TENSORS * _BYTES // 4096
        if answer != expected:
            raise RuntimeError(f"the receiver has read {answer}, not {expected}")

    # each way to hand over

    def tell(self, ends: Any) -> None:
        ends.send("step")
        self.check(ends.recv())

    def through_file(self, path: str) -> Callable[[Any], None]:
        from safetensors.torch import save_file

        def hand_over(ends: Any) -> None:
            save_file(self.weights, path)
            self.tell(ends)

        return hand_over

    def through_bucket(self, bucket: Any) -> Callable[[Any], None]:
        tensors = list(self.weights.values())

        def hand_over(ends: Any) -> None:
            for begin in range(0, _TENSORS, _BUCKET // _BYTES):
                for place, tensor in enumerate(tensors[begin : begin + _BUCKET // _BYTES]):
                    bucket[place * _BYTES // 4 : (place + 1) * _BYTES // 4].copy_(tensor)
                ends.send("step")
                if begin + _BUCKET // _BYTES < _TENSORS:
                    assert ends.recv() == "next"
            self.check(ends.recv())

        return hand_over


def weights(effort: Effort) -> Row:
    """Measures 1 GiB of new weights, of which the receiver reads a byte of each page."""
    import onecopy

    row = Row(
        "New weights of a trainer, 1 GiB in 64 tensors",
        "beside a safetensors file that is mapped, and a bucket of 512 MiB",
    )
    trainer, rounds = _Trainer(), effort.rounds(_ROUNDS)
    plain = trainer.torch.empty(_BUCKET // 4).share_memory_()
    ways: dict[str, Callable[[], tuple[Samples, int]]] = {}
    ways["a bucket of 512 MiB, copied twice"] = lambda: trainer.measure(
        "bucket", plain, trainer.through_bucket(plain), rounds
    )
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "weights.safetensors")
        if importlib.util.find_spec("safetensors"):
            ways["safetensors: save_file(), load_file()"] = lambda: trainer.measure(
                "file", path, trainer.through_file(path), rounds
            )
        else:
            row.note("safetensors is not installed: no file was measured")
        found = {what: way() for what, way in ways.items()}
    handle = onecopy.share(trainer.weights)
    ours, memory = trainer.measure("onecopy", str(handle), trainer.tell, rounds)
    row.add("onecopy: the same memory", ours.median(), "ns")
    row.add("  memory of the receiver's own", memory / 2**20, "MiB")
    for what, (samples, own) in found.items():
        row.add(what, samples.median(), "ns", samples.median() / ours.median(), "onecopy")
        row.add("  memory of the receiver's own", own / 2**20, "MiB")
    row.note("the time has the reading of each page in it: 262,144 reads")
    return row


# --- Ray --------------------------------------------------------------------------------------------


def ray_actors(effort: Effort) -> Row:
    """Measures 256 MiB from one actor to another, which reads a byte of each page."""
    row = Row("256 MiB from actor to actor of Ray", "at least ten times as fast as Ray's object store")
    if importlib.util.find_spec("ray") is None:
        row.note("ray is not installed: nothing was measured")
        return row
    import ray
    import torch

    import onecopy.integrations.ray

    onecopy.integrations.ray.register()

    def make(self: Any) -> Any:
        self.tensor.add_(1)
        return self.tensor

    methods = {
        "__init__": lambda self: setattr(self, "tensor", torch.ones(_RAY_BYTES // 4)),
        "plain": make,
        "shared": ray.method(tensor_transport="onecopy")(lambda self: make(self)),
        "read": lambda self, tensor: int(tensor[::1024].sum()),
    }
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        actor = ray.remote(num_cpus=0)(type("Actor", (), methods))
        source, target = actor.remote(), actor.remote()
        found = {}
        for name in ("plain", "shared"):
            found[name] = Samples()
            for number in range(effort.rounds(_ROUNDS) + 1):
                ns = time_ns(lambda: ray.get(target.read.remote(getattr(source, name).remote())))
                if number:
                    found[name].append(ns)
    finally:
        ray.shutdown()
    ours = found["shared"].median()
    row.add("onecopy's tensor transport", ours, "ns")
    plain = found["plain"].median()
    row.judge_ratio("Ray's object store", plain, "ns", "onecopy", at_least(plain / ours, 10))
    return row
