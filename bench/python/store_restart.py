# SPDX-License-Identifier: Apache-2.0
"""Measures loading weights in a new process, after the processes that held the weights were killed, beside files and
torch."""

from __future__ import annotations

import importlib.util
import multiprocessing.connection
import os
import pickle
import signal
import tempfile
import time
from collections.abc import Callable
from typing import Any

from effort import Effort
from loaded_model import wanted_gib
from peers import Peer, Talk
from report import Row, at_least, at_most
from samples import Samples
from store_versions import NAME, TENSORS, finish, own_store, start_device, weights

_ROUNDS = 5

# --- new processes ----------------------------------------------------------------------------------


def publish_weights(talk: Talk, gib: float, device: str) -> None:
    """Publishes the weights, and stays alive."""
    import onecopy

    onecopy.store.connect().publish(NAME, weights(1, gib, device))
    for _ in talk.questions():
        talk.say("published")


def serve_weights(talk: Talk, way: str, path: str, device: str) -> None:
    """Answers with the nanoseconds until all weights are tensors of this process, and the bytes read from disks."""
    import torch

    torch.set_num_threads(1)
    start_device(device)
    load = {"store": _from_store, "file": _from_file, "copied file": _copied_from_file,
            "torch.load": _from_torch_file, "socket": _from_socket}[way]  # fmt: skip
    load_once = load(path, device)
    for _ in talk.questions():
        before = _bytes_read()
        start = time.perf_counter_ns()
        tensors = load_once()
        finish(device)
        ns = time.perf_counter_ns() - start
        values = {float(tensor[0]) for tensor in tensors} | {float(tensors[-1][-1])}
        if len(tensors) != TENSORS or values != {1.0}:
            raise RuntimeError(f"{len(tensors)} tensors came, with the values {values}")
        talk.say([ns, _bytes_read() - before])


def _bytes_read() -> int:
    with open("/proc/self/io") as file:
        return int(dict(line.split(": ") for line in file)["read_bytes"])


def _from_store(path: str, device: str) -> Callable[[], list[Any]]:
    import onecopy

    def load() -> list[Any]:
        live = onecopy.store.connect().follow(NAME)
        kept.append(live)
        return list(live.values())

    kept: list[Any] = []
    return load


def _from_file(path: str, device: str) -> Callable[[], list[Any]]:
    from safetensors.torch import load_file

    return lambda: list(load_file(path, device).values())


def _copied_from_file(path: str, device: str) -> Callable[[], list[Any]]:
    """Copies the tensors of the file into tensors that exist, as engines load them into their modules."""
    from safetensors.torch import load_file

    mine = [tensor.clone() for tensor in load_file(path, device).values()]

    def load() -> list[Any]:
        for target, tensor in zip(mine, load_file(path, device).values()):
            target.copy_(tensor)
        return mine

    return load


def _from_torch_file(path: str, device: str) -> Callable[[], list[Any]]:
    import torch

    return lambda: list(torch.load(path, map_location=device).values())


def _from_socket(path: str, device: str) -> Callable[[], list[Any]]:
    import torch.multiprocessing

    torch.multiprocessing.set_sharing_strategy("file_system")

    def load() -> list[Any]:
        with multiprocessing.connection.Client(path) as connection:
            return pickle.loads(connection.recv_bytes())

    return load


def hold_weights(talk: Talk, gib: float, path: str, device: str) -> None:
    """Sends its tensors, reduced and pickled, to each process that connects. The tensors are lost when it is killed."""
    from multiprocessing.reduction import ForkingPickler

    import torch.multiprocessing

    torch.multiprocessing.set_sharing_strategy("file_system")
    tensors = list(weights(1, gib, device).values())
    for tensor in tensors:
        tensor.share_memory_()
    with multiprocessing.connection.Listener(path) as listener:
        for _ in talk.questions():
            talk.say("listening")
            with listener.accept() as connection:
                connection.send_bytes(ForkingPickler.dumps(tensors))


# --- restart ----------------------------------------------------------------------------------------


def _kill_halves(store: Any, *halves: str) -> None:
    """Kills halves of the keeper one after the other, each as soon as the half killed before runs again."""
    for half in halves:
        before = store.keeper()
        os.kill(before[half], signal.SIGKILL)
        while (now := store.keeper()) and now[half] == before[half]:
            time.sleep(0.002)


def _restart(store: Any, gib: float, rounds: int, device: str) -> tuple[Samples, int]:
    """Kills all processes, and starts a new one. Returns its times, and the number of bytes that it read."""
    with Peer(publish_weights, gib=gib, device=device) as publisher:
        publisher.ask("publish", timeout=600)
        publisher.kill()
    samples, read = Samples(), 0
    for _ in range(rounds):
        with Peer(serve_weights, way="store", path="", device=device) as engine:
            engine.ask("load", timeout=600)
            _kill_halves(store, "guard", "worker")
            engine.kill()
        with Peer(serve_weights, way="store", path="", device=device) as engine:
            ns, more = engine.ask("load", timeout=600)
            samples.append(ns)
            read += more
    return samples, read


def _new_processes(
    way: str, path: str, rounds: int, device: str, first: Callable[[], object] = lambda: None
) -> Samples:
    samples = Samples()
    for _ in range(rounds):
        with Peer(serve_weights, way=way, path=path, device=device) as engine:
            first()
            samples.append(engine.ask("load", timeout=600)[0])
    return samples


def restart(effort: Effort) -> Row:
    """Measures a new process until it has all weights, when publisher, engine and worker were killed."""
    gib, rounds, device = wanted_gib(), effort.rounds(_ROUNDS), effort.device
    limit = 60 if device == "cpu" else 150  # milliseconds
    row = Row(
        f"Weights in a new process: 20,000 tensors, {gib:g} GiB",
        f"≤ {limit} ms after SIGKILL of publisher, engine, worker and guard; nothing read; ≥ 20 x safetensors",
    )
    with own_store() as store:
        ours, read = _restart(store, gib, rounds, device)
    row.judge("the store, when all others were killed", ours.median(), "ns", at_most(ours.median(), limit * 1e6))
    row.judge("  bytes read from a disk", read, "B", at_most(read, 0))
    for what, samples in _others(row, gib, rounds, device).items():
        ratio = samples.median() / ours.median()
        if what.startswith("safetensors"):
            row.judge_ratio(what, samples.median(), "ns", "the store", at_least(ratio, 20))
        else:
            row.add(what, samples.median(), "ns", ratio, "the store")
    row.note(
        "from the first call until each tensor exists: modules were imported before; ONECOPY_BENCH_MODEL_GIB is the size"
    )
    return row


def _others(row: Row, gib: float, rounds: int, device: str) -> dict[str, Samples]:
    """Returns the times of new processes that load the weights without the store."""
    import torch

    found: dict[str, Samples] = {}
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "weights")
        if importlib.util.find_spec("safetensors"):
            from safetensors.torch import save_file

            save_file(weights(1, gib), path)
            found["safetensors, load_file() from the page cache"] = _new_processes("file", path, rounds, device)
            found["  and copied into the tensors of a module"] = _new_processes("copied file", path, rounds, device)
        else:
            row.note("safetensors is not installed: no file of it was measured")
        torch.save(weights(1, gib), path)
        found["torch.load() from the page cache"] = _new_processes("torch.load", path, rounds, device)
        os.unlink(path)
        with Peer(hold_weights, gib=gib, path=path, device=device) as holder:
            found["reduced and pickled over a socket by a living process"] = _new_processes(
                "socket", path, rounds, device, lambda: holder.ask("listen", timeout=600)
            )
    return found
