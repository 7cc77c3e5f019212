# SPDX-License-Identifier: Apache-2.0
"""Measures the keeper of the store: its memory, its processor time, the restart of its worker; and KV pools."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from typing import Any

from effort import Effort
from footprint import processor_seconds
from report import Row, at_most
from samples import Samples, time_ns
from store_versions import own_store

_OBJECTS = 1000
_IDLE_SECONDS = 10
_SETTLED_SECONDS = 3  # a new worker waits two seconds for readers of the one before
_ROUNDS = 20


def _resident(pid: int) -> dict[str, int]:
    """Returns the resident bytes of a process, with shared memory counted in proportion ("Pss") and in full ("Rss")."""
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return {
            kind: int(kib) << 10 for kind, kib in re.findall(r"^(Rss|Pss|Anonymous):\s+(\d+) kB", file.read(), re.M)
        }


def memory(effort: Effort) -> Row:
    """Measures the memory of both halves with 1,000 objects, and their processor time while nothing happens."""
    import torch

    row = Row(
        "The keeper with 1,000 objects", "both halves have ≤ 10 MiB resident together, and take no processor time"
    )
    with own_store() as store:
        for number in range(_OBJECTS):
            store.publish(f"objects/{number}", {"weight": torch.full((1024,), float(number))})
        time.sleep(_SETTLED_SECONDS)
        halves = store.keeper()
        both = [_resident(pid) for pid in halves.values()]
        before = [processor_seconds(pid) for pid in halves.values()]
        time.sleep(effort.rounds(_IDLE_SECONDS))
        after = [processor_seconds(pid) for pid in halves.values()]
    shared = sum(half["Pss"] for half in both)
    row.judge("resident, shared pages in proportion", shared / 2**20, "MiB", at_most(shared / 2**20, 10))
    row.add("  of it allocated by the two processes", sum(half["Anonymous"] for half in both) / 2**20, "MiB")
    row.add("resident, shared pages in both", sum(half["Rss"] for half in both) / 2**20, "MiB")
    ms = (sum(after) - sum(before)) * 1e3
    row.judge("processor time while idle", ms, "ms", at_most(ms, 0))
    return row


def start(effort: Effort) -> Row:
    """Measures the first connect(), which starts the keeper, beside the start of the command alone."""
    import onecopy

    row = Row("The first connect(), which starts the keeper", "≤ 5 x the start of the command")
    alone, first = Samples(), Samples()
    version = [onecopy.store._command(), "--version"]
    for _ in range(effort.rounds(_ROUNDS)):
        alone.append(time_ns(lambda: subprocess.run(version, check=True, stdout=subprocess.DEVNULL)))
        before = time.perf_counter_ns()
        with own_store():
            first.append(float(time.perf_counter_ns() - before))
    row.add("onecopy --version", alone.median(), "ns")
    ratio = first.ratio_to(alone)
    row.judge_ratio("connect()", first.median(), "ns", "onecopy --version", at_most(ratio, 5))
    return row


class _Reader(threading.Thread):
    """A reader that uses its tensors without a pause."""

    def __init__(self, tensors: dict[str, Any]) -> None:
        super().__init__()
        self._tensors = tensors
        self._ends = threading.Event()
        self.reads = 0
        self.wrong = 0

    def run(self) -> None:
        while not self._ends.is_set():
            self.wrong += {float(tensor[0]) for tensor in self._tensors.values()} != {1.0}
            self.reads += 1
            time.sleep(0.001)

    def end(self) -> None:
        self._ends.set()
        self.join()


def restart(effort: Effort) -> Row:
    """Measures the time from the SIGKILL of a half until the keeper has answered a question of a client."""
    import torch

    row = Row("The keeper after SIGKILL of a half", "the worker answers again in ≤ 50 ms, and readers notice nothing")
    found = {half: Samples() for half in ("worker", "guard")}
    with own_store() as store:
        store.publish("weights", {f"layers.{i}.weight": torch.full((1024,), 1.0) for i in range(100)})
        reader = _Reader(dict(store.open("weights")))
        reader.start()
        for _ in range(effort.rounds(_ROUNDS)):
            for half, samples in found.items():
                time.sleep(0.06)  # a half that ends within 50 ms of its start is not replaced at once
                os.kill(store.keeper()[half], signal.SIGKILL)
                samples.append(time_ns(store.list))
        reader.end()
    row.judge("the worker", found["worker"].median(), "ns", at_most(found["worker"].median(), 50e6))
    row.add("  worst", max(found["worker"]), "ns")
    row.add("the guard", found["guard"].median(), "ns")
    row.judge("reads that saw anything else", reader.wrong, "", at_most(reader.wrong, 0))
    row.add("reads meanwhile", reader.reads, "")
    return row


def kv_pool(effort: Effort) -> Row:
    """Measures the leases and the keys of a KV pool of 65,536 blocks."""
    row = Row("A KV pool", "64 blocks are allocated and released, or found by 64 keys and released, in ≤ 10 µs")
    keys = [f"{number:064}"[-32:].encode() for number in range(64)]
    leases, lookups = Samples(), Samples()
    with own_store() as store:
        made = store.kv_pool("kv", block_bytes=65536, budget=1 << 32)
        for key in keys:
            block = made.allocate(1)
            made.put(key, block[0])
            made.release(block)
        for _ in range(effort.rounds(10_000)):
            leases.append(time_ns(lambda: made.release(made.allocate(64))))
            lookups.append(time_ns(lambda: made.release(made.find(keys))))
    row.judge("allocate and release 64 blocks", leases.median(), "ns", at_most(leases.median(), 10e3))
    row.judge("find and release the blocks of 64 keys", lookups.median(), "ns", at_most(lookups.median(), 10e3))
    return row


def kv_pool_growth(effort: Effort) -> Row:
    """Measures the calls of an engine that needs 400 MiB of new memory a second, while a KV pool grows."""
    row = Row("A KV pool that grows", "after the first call, allocate() of an engine waits ≤ 1 ms for memory")
    for count in (1, 64):
        calls = Samples()
        with own_store() as store:
            pool = store.kv_pool("kv", block_bytes=65536, budget=1 << 30)
            for _ in range(effort.rounds(8000 // count)):
                calls.append(time_ns(lambda: pool.allocate(count)))
                time.sleep(count / (400 * 16))
            waits = pool.stats()["growth_waits"]
        what = f"{count * 64} KiB"
        row.judge(f"{what}, worst", max(calls[1:]), "ns", at_most(max(calls[1:]), 1e6))
        row.add(f"{what}, median", calls.median(), "ns")
        row.add(f"{what}, the first call", calls[0], "ns")
        row.add(f"{what}, calls that waited for memory", waits, "")
    return row
