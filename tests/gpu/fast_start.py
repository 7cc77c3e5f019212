# SPDX-License-Identifier: Apache-2.0
"""vLLM's weight cache on a card, with ``import onecopy.multiprocessing`` added: its daemon is killed while two engines use it.

Usage: PYTHONPATH=build/gpu-python/python python3 tests/gpu/fast_start.py FOLDER [DEVICE]

FOLDER is vllm/model_executor/model_loader/weight_cache of an installed vLLM. What these files import of vLLM is replaced by
stubs, so vLLM itself is not needed. On the CPU, vLLM sends tensors by value: that tries this script, not onecopy.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.abc
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import torch

import onecopy.multiprocessing  # noqa: F401  # the only change

PACKAGE = "vllm.model_executor.model_loader.weight_cache"
ELEMENTS = 64 << 20  # of each of four parameters: 1 GiB in all


class Stub(types.ModuleType):
    """A module of which each name is a class or a function that does nothing."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "instrument":
            return lambda **_: lambda function: function
        return type(name, (), {"__init__": lambda *_, **__: None}) if name[0].isupper() else MagicMock()


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the files of the weight cache in their folder, and stubs for everything else of vLLM."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name.startswith(PACKAGE + "."):
            return importlib.util.spec_from_file_location(name, Path(sys.argv[1], name.rpartition(".")[2] + ".py"))
        return importlib.util.spec_from_loader(name, self) if name.startswith(("vllm", "transformers")) else None

    def create_module(self, spec: Any) -> Stub:
        return Stub(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class Model(torch.nn.Module):
    def __init__(self, device: str, value: float) -> None:
        super().__init__()
        for number in range(4):
            weight = torch.full((ELEMENTS,), value + number, dtype=torch.float32, device=device)
            self.register_parameter(f"weight{number}", torch.nn.Parameter(weight, requires_grad=False))


def weight_cache(device: str) -> tuple[Any, Any, Any]:
    """Returns the modules daemon and ipc_loader, and a key for both sides."""
    sys.meta_path.insert(0, Finder())
    protocol, daemon, loader = (
        importlib.import_module(f"{PACKAGE}.{name}") for name in ("protocol", "daemon", "ipc_loader")
    )
    for module in (protocol, daemon, loader):
        module.get_current_device_uuid = lambda: device
    protocol.safe_hash = hashlib.sha256
    missing = [
        field.name for field in dataclasses.fields(protocol.WeightCacheKey) if field.default is dataclasses.MISSING
    ]
    return daemon, loader, protocol.WeightCacheKey(**dict.fromkeys(missing, ""))


def serve(device: str, sockets: str) -> None:
    daemon, _, key = weight_cache(device)
    made = object.__new__(daemon.WeightCacheDaemon)
    nothing = types.SimpleNamespace(start_listener=lambda: None, close=lambda: None)
    vars(made).update(model=Model(device, 1), cache_key=key, cache_config=key, socket_dir=sockets, is_draft=False,
                      role="target", global_rank=0, d2d=nothing, _watchers=[])  # fmt: skip
    made.serve_forever(lambda: print("ready", flush=True))


def use(device: str, sockets: str) -> None:
    _, ipc_loader, key = weight_cache(device)
    extra = {"socket_dir": sockets, "fallback": False}
    loader = ipc_loader.IpcModelLoader(types.SimpleNamespace(model_loader_extra_config=extra))
    before = torch.cuda.mem_get_info()[0] if device != "cpu" else 0
    start = time.perf_counter()
    state = loader._request_state(key)
    model = Model("meta", 0)
    loader._apply_entries(model, state, torch.device(device).index or 0)
    seconds = time.perf_counter() - start
    taken = before - torch.cuda.mem_get_info()[0] if device != "cpu" else 0
    for _ in sys.stdin:
        sums = [weight.mean().item() for weight in model.parameters()]
        print(json.dumps({"means": sums, "seconds": seconds, "bytes taken": taken}), flush=True)


def start(role: str, device: str, sockets: str) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, sys.argv[1], device, role, sockets]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def look(engine: subprocess.Popen[str]) -> dict[str, Any]:
    assert engine.stdin and engine.stdout
    engine.stdin.write("look\n")
    engine.stdin.flush()
    return dict(json.loads(engine.stdout.readline()))


def kill_the_daemon(device: str) -> None:
    with tempfile.TemporaryDirectory() as sockets:
        daemon = start("daemon", device, sockets)
        assert daemon.stdout and daemon.stdout.readline() == "ready\n"
        engines = [start("engine", device, sockets) for _ in range(2)]
        before = [look(engine) for engine in engines]
        daemon.kill()
        daemon.wait()
        junk = [torch.full((ELEMENTS,), -1.0, device=device) for _ in range(8)]  # would take memory that was freed
        after = [look(engine) for engine in engines]
        del junk
        for engine in engines:
            engine.kill()
            engine.wait()
    for one, other in zip(before, after, strict=True):
        print(
            f"{device}: 1 GiB mapped in {one['seconds'] * 1e3:.1f} ms, {one['bytes taken'] >> 20} MiB taken on the card"
        )
        print(f"{device}: means {one['means']}, after the daemon was killed {other['means']}")
        assert one["means"] == other["means"] == [1.0, 2.0, 3.0, 4.0], "the weights changed"
    print("ok: killing the daemon lost nothing")


if __name__ == "__main__":
    device = sys.argv[2] if len(sys.argv) > 2 else "cuda:0"
    if len(sys.argv) > 3:
        {"daemon": serve, "engine": use}[sys.argv[3]](device, sys.argv[4])
    else:
        kill_the_daemon(device)
