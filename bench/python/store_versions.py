# SPDX-License-Identifier: Apache-2.0
"""Measures the store: the pause of an update, publishing and opening."""

from __future__ import annotations

import contextlib
import inspect
import mmap
import os
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

from effort import Effort
from loaded_model import wanted_gib
from peers import Peer, Talk
from report import Row, at_most
from samples import Samples, time_ns

TENSORS = 20_000
NAME = "weights"
_ROUNDS = 5
_UPDATES = 40
_LARGE = 16 << 20  # bytes of each tensor of a publication that is compared with memcpy
_SMALL = 1024  # elements of each of 20,000 tensors that are opened


@contextlib.contextmanager
def own_store() -> Iterator[Any]:
    """Starts a private store for the block, which peers use, too."""
    import onecopy

    with tempfile.TemporaryDirectory() as directory:
        os.environ["ONECOPY_STORE_DIR"] = directory
        store = onecopy.store.connect(framework="torch")
        try:
            yield store
        finally:
            store.stop()
            del os.environ["ONECOPY_STORE_DIR"]


def weights(value: float, gib: float, device: str = "cpu") -> dict[str, Any]:
    """Returns 20,000 tensors of bfloat16 that each hold `value`, and together have `gib` GiB."""
    elements = max(16, int(gib * 2**30 / TENSORS / 2) // 8 * 8)
    return _filled(TENSORS, elements, value, device)


def _filled(count: int, elements: int, value: float, device: str) -> dict[str, Any]:
    import torch

    of = {"dtype": torch.bfloat16, "device": device}
    return {f"layers.{i}.weight": torch.full((elements,), value, **of) for i in range(count)}


def start_device(device: str) -> None:
    """Makes the context of the device, which takes tenths of a second in each process."""
    import torch

    torch.zeros(1, device=device)


def finish(device: str) -> None:
    """Waits until the device has done all its work."""
    import torch

    if device != "cpu":
        torch.cuda.synchronize(device)


# --- update -----------------------------------------------------------------------------------------


def follow_weights(talk: Talk, device: str) -> None:
    """Captures a graph that reads the weights. Updates, replays, and answers with the nanoseconds of update()."""
    import torch

    import onecopy
    from onecopy import graphs

    torch.set_num_threads(1)
    start_device(device)
    live = onecopy.store.connect(framework="torch").follow(NAME)
    heads = [tensor[:1] for tensor in list(live.values())[:: TENSORS // 500]]
    replay = graphs.capture(lambda *given: torch.cat([*given]), *heads)
    for number in talk.questions():
        prepare = getattr(live, "prepare", lambda: None)  # absent from older releases, which this measures, too
        prepared = time_ns(prepare)
        ns = time_ns(live.update)
        if set(replay(*heads).tolist()) != {float(number)}:
            raise RuntimeError(f"a replay after update() did not see version {number} alone")
        talk.say((ns, prepared))


def update(effort: Effort) -> Row:
    """Measures update() of a follower in another process, whose tensors a captured graph uses."""
    import torch

    gib, updates = wanted_gib(), effort.rounds(_UPDATES)
    limit = 5 if effort.device == "cpu" else 2  # milliseconds
    row = Row(
        f"update() of {gib:g} GiB in 20,000 tensors, with a captured graph",
        f"≤ {limit} ms; no replay sees two versions",
    )
    torch.set_num_threads(1)
    pauses, prepared = Samples(), Samples()
    with own_store() as store:
        store.publish(NAME, weights(1, gib, effort.device), keep=1)
        with Peer(follow_weights, device=effort.device) as follower:
            for number in range(2, 2 + updates):
                with store.draft(NAME, keep=1) as draft:
                    for tensor in draft.values():
                        tensor.fill_(number)
                for samples, ns in zip((pauses, prepared), follower.ask(number, timeout=600)):
                    samples.append(ns)
    row.judge("median", pauses.median(), "ns", at_most(pauses.median(), limit * 1e6))
    row.add("worst", max(pauses), "ns")
    row.add("prepare() before, while the program computes", prepared.median(), "ns")
    row.add("updates", updates, "")
    return row


def first_pass(effort: Effort) -> Row:
    """Measures the first pass over the pages of the host after update(), and update() beside a thread that reads."""
    import torch

    gib = wanted_gib()
    row = Row(f"Reading {gib:g} GiB after update(), beside a thread that reads", "the first pass is ≤ 1.1 x the second")
    torch.set_num_threads(1)
    pauses, first, second = Samples(), Samples(), Samples()
    with own_store() as store:
        for value in (1, 2):
            store.publish(NAME, {"weight": torch.full((int(gib * 2**27),), value)})
        live = store.follow(NAME)
        pages = live["weight"][::512]
        ends = threading.Event()
        reader = threading.Thread(target=lambda: [pages[::7].sum() for _ in iter(ends.is_set, True)])
        reader.start()
        for number in range(2 * effort.rounds(_ROUNDS)):
            live.prepare(to=number % 2 + 1)
            pauses.append(time_ns(lambda number=number: live.update(to=number % 2 + 1)))
        ends.set()
        reader.join()
        for number in range(2 * effort.rounds(_ROUNDS)):
            live.update(to=number % 2 + 1)
            for samples in (first, second):
                samples.append(time_ns(pages.sum))
    row.judge_ratio("the first pass", first.median(), "ns", "the second", at_most(first.ratio_to(second), 1.1))
    row.add("the second pass", second.median(), "ns")
    row.add("update() beside a thread that reads", pauses.median(), "ns")
    row.add("worst", max(pauses), "ns")
    row.note("prepare() enters the pages into the page tables; update() moves them over the old ones")
    return row


# --- publish ----------------------------------------------------------------------------------------


def publish(effort: Effort) -> Row:
    """Measures publish() beside a copy into new memory, since a version is in new memory."""
    import torch

    gib = wanted_gib()
    count = max(1, int(gib * 2**30) // _LARGE)
    row = Row(f"publish() of {count * _LARGE / 2**30:g} GiB in tensors of 16 MiB", "≥ 0.9 x the speed of a copy")
    torch.set_num_threads(1)
    tensors = _filled(count, _LARGE // 2, 1.0, effort.device)
    warm = [torch.ones_like(tensor) for tensor in tensors.values()]
    found = {way: Samples() for way in ("publish()", "draft(), filled and published", "new", "warm")}
    with own_store() as store:
        ways = {
            "publish()": lambda: store.publish(NAME, tensors, keep=1),
            "draft(), filled and published": lambda: _fill_draft(store, tensors),
            "new": lambda: _copy_to_new_memory(tensors, effort.device),
            "warm": lambda: [old.copy_(tensor) for old, tensor in zip(warm, tensors.values())],
        }
        for _ in range(effort.rounds(_ROUNDS)):
            for way, run in ways.items():
                torch.cuda.empty_cache()
                kept: list[Any] = []  # keeps memory, so that freeing is not measured
                found[way].append(time_ns(lambda run=run, kept=kept: (kept.append(run()), finish(effort.device))))
    copied = found.pop("new")
    row.add("a copy into new memory", copied.median(), "ns")
    row.add("a copy into warm memory", found.pop("warm").median(), "ns")
    for what, samples in found.items():
        ratio = samples.ratio_to(copied)
        row.judge_ratio(what, samples.median(), "ns", "a copy into new memory", at_most(ratio, 1 / 0.9))
    row.note("every version is new memory, since readers may have the old one; on the CPU, new memory is a new memfd")
    return row


def _copy_to_new_memory(tensors: dict[str, Any], device: str) -> list[Any]:
    """Copies into unused memory of the device, or of a new memfd, which processes can share."""
    import torch

    if device != "cpu":
        return [torch.empty_like(tensor).copy_(tensor) for tensor in tensors.values()]
    fd = os.memfd_create("copy")
    try:
        os.posix_fallocate(fd, 0, _LARGE * len(tensors))
        memory = mmap.mmap(fd, _LARGE * len(tensors))  # has a descriptor of its own
    finally:
        os.close(fd)
    new = torch.frombuffer(memory, dtype=torch.bfloat16).split(_LARGE // 2)
    return [target.copy_(tensor) for target, tensor in zip(new, tensors.values())]


def _fill_draft(store: Any, tensors: dict[str, Any]) -> None:
    with store.draft(NAME, keep=1) as draft:
        for name, tensor in draft.items():
            tensor.copy_(tensors[name])


def publish_as_is(effort: Effort) -> Row:
    """Measures publish(place="as_is"), which copies nothing."""
    import onecopy

    row = Row("publish() of 20,000 tensors as they are", "≤ 20 ms, and nothing copied")
    if "place" not in inspect.signature(onecopy.store.Store.publish).parameters:
        row.note("this version of onecopy copies what it publishes: nothing was measured")
        return row
    samples = Samples()
    with own_store() as store:
        for _ in range(effort.rounds(_ROUNDS)):
            tensors = {f"layers.{i}.weight": onecopy.full((_SMALL,), 1.0, device=effort.device) for i in range(TENSORS)}
            samples.append(time_ns(lambda tensors=tensors: store.publish(NAME, tensors, keep=1, place="as_is")))
    row.judge('publish(place="as_is")', samples.median(), "ns", at_most(samples.median(), 20e6))
    return row


# --- open -------------------------------------------------------------------------------------------


def open_all(talk: Talk, handle: str, device: str) -> None:
    """Opens the version or the bundle, as the question says, and answers with the nanoseconds."""
    import torch

    import onecopy

    torch.set_num_threads(1)
    start_device(device)
    store = onecopy.store.connect(framework="torch")
    ways = {
        "version": lambda: list(store.open(NAME).values()),
        "bundle": lambda: list(onecopy.open(handle, framework="torch").values()),
    }
    for question in talk.questions():
        kept: list[Any] = []
        talk.say(time_ns(lambda question=question: kept.extend(ways[question]())))
        if len(kept) != TENSORS:
            raise RuntimeError(f"{len(kept)} tensors came")


def opened(effort: Effort) -> Row:
    """Measures open() of a version beside open() of the bundle from its owner, in the same new process."""
    import onecopy

    row = Row("open() of 20,000 tensors of 4 KiB", "≤ 1.2 x open() of the same bundle from its owner")
    tensors = _filled(TENSORS, 2 * _SMALL, 1.0, effort.device)
    bundle = onecopy.share(tensors)
    found = {way: Samples() for way in ("version", "bundle")}
    again = {way: Samples() for way in found}
    with own_store() as store:
        store.publish(NAME, tensors)
        for number in range(effort.rounds(2 * _ROUNDS)):
            with Peer(open_all, handle=str(bundle), device=effort.device) as reader:
                for way in sorted(found, reverse=number % 2 == 0):
                    found[way].append(reader.ask(way))
                for way in found:
                    again[way].append(reader.ask(way))
    row.add("the bundle from its owner, the first time", found["bundle"].median(), "ns")
    ratio = found["version"].ratio_to(found["bundle"])
    row.judge_ratio("the version, the first time", found["version"].median(), "ns", "the bundle", at_most(ratio, 1.2))
    row.add("the bundle, a second time", again["bundle"].median(), "ns")
    ratio = again["version"].ratio_to(again["bundle"])
    row.add("the version, a second time", again["version"].median(), "ns", ratio, "the bundle")
    return row
