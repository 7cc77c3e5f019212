# SPDX-License-Identifier: Apache-2.0
"""Measures tensors on a CUDA device: sent to another process, opened in a new process, and a whole model.

All processes are spawned: CUDA does not survive a fork.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import contenders
import cuda_floor
from contenders import Contender
from effort import Effort
from hand_over import exchange, follow, settle
from many_tensors import failures_noted
from peers import Peer, Talk
from report import Row, at_least, at_most
from samples import Samples, time_ns

_ROUNDS = 21
_SMALL = 16  # elements of 4 bytes
_GIB = 1 << 30
_OPENS = 5
_SEGMENTS = 3960
"""Of torch's allocator, for the model below: 19,600 tensors, five in 2 MiB, and 400, ten in 20 MiB."""

OURS = contenders.OURS
OURS_SIMPLE = contenders.OURS_SIMPLE
TORCH = Contender("torch.multiprocessing")
TORCH_SIMPLE = Contender("torch.multiprocessing", "SimpleQueue")

# --- what the processes do --------------------------------------------------------------------------


def fresh_tensors(device: str, elements: int) -> Callable[[int], Callable[[], Any]]:
    """Returns a new tensor for each exchange, from memory in torch's cache."""
    import torch

    return lambda count: lambda: torch.empty(elements, device=device)


def lead(talk: Talk, contender: dict[str, Any], device: str) -> None:
    """Answers [elements, count] with the nanoseconds per exchange."""
    chosen = Contender(**contender)
    there, back = chosen.queues(2)
    arguments = (there, back, None, os.sched_getaffinity(0))
    follower = chosen.context().Process(target=follow, args=arguments)
    follower.start()
    exchange(there, back, fresh_tensors(device, _SMALL), 100)
    exchange(there, back, fresh_tensors(device, _GIB // 4), 3)
    talk.say("ready")
    for elements, count in talk.questions():
        maker = fresh_tensors(device, elements)
        settle(there, back, maker)
        talk.say(exchange(there, back, maker, count))
    there.put(None)
    follower.join()


def open_first(talk: Talk, device: str) -> None:
    """Answers two handles, in a new process that has a context, with the time of the first open of the second handle.
    The first handle, unless empty, is opened before, so that the measured time does not include connecting to the
    owner."""
    import torch

    import onecopy

    torch.zeros(1, device=device).add_(1)
    torch.cuda.synchronize(device)
    for small, text in talk.questions():
        kept = onecopy.open(small, framework="torch") if small else None
        opened = []
        talk.say(time_ns(lambda text=text: opened.append(onecopy.open(text, framework="torch"))))
        del kept, opened


def lend(talk: Talk, device: str) -> None:
    """Shares a small tensor, 1 GiB of onecopy's memory and 1 GiB of torch's memory; answers with the handles as
    text."""
    import torch

    import onecopy

    small = onecopy.share(onecopy.zeros(1, device=device))
    own = onecopy.share(onecopy.empty((_GIB,), "uint8", device))
    theirs = onecopy.share(torch.empty(_GIB, dtype=torch.uint8, device=device))
    torch.cuda.synchronize(device)
    for _ in talk.questions():
        talk.say([str(small), str(own), str(theirs)])


def lead_model(talk: Talk, contender: dict[str, Any], device: str) -> None:
    """Makes 20,000 tensors in the shapes of a mixture of experts with 30 billion parameters, 8 GiB in all. Answers
    "send" with the nanoseconds until another process has opened all of them."""
    import torch

    chosen = Contender(**contender)
    there, back = chosen.queues(2)
    follower = chosen.context().Process(target=open_model, args=(there, back, device))
    follower.start()
    back.get()
    shapes = [(768, 256)] * 19_600 + [(1024, 1024)] * 400
    model = {
        f"layers.{i}.weight": torch.empty(shape, dtype=torch.bfloat16, device=device) for i, shape in enumerate(shapes)
    }
    torch.cuda.synchronize(device)
    talk.say("ready")
    for _ in talk.questions():
        talk.say(time_ns(lambda: _send_model(chosen, there, back, model)))
        there.put("forget")
        back.get()
    there.put(None)
    follower.join()


def _send_model(chosen: Contender, there: Any, back: Any, model: dict[str, Any]) -> None:
    if chosen == OURS:
        import onecopy

        handle = onecopy.share(model)
        there.put(handle.to_bytes())
        count = back.get()
    else:
        there.put(model)
        count = back.get()
    if count != len(model):
        raise AssertionError("not all tensors came")


def open_model(there: Any, back: Any, device: str) -> None:
    """Opens the handle of a bundle; a dict of tensors is open already."""
    import torch

    torch.zeros(1, device=device)
    back.put("ready")
    model: Any = None
    while (sent := there.get()) is not None:
        if isinstance(sent, str):
            model = None
            gc.collect()
            back.put("done")
            continue
        if isinstance(sent, bytes):
            import onecopy

            sent = onecopy.open(sent, framework="torch").tree()
        model = sent
        back.put(len(model))
        del sent


# --- rows -------------------------------------------------------------------------------------------


def tensors(effort: Effort) -> Row:
    row = Row(
        "A fresh CUDA tensor of 16 elements there, an int back; and one of 1 GiB",
        "≥ 30 x faster than torch.multiprocessing.Queue, ≥ 6 x than its SimpleQueue; 1 GiB within 10 % of the "
        "small one",
    )
    asked: dict[str, tuple[Contender, int, int]] = {
        OURS.name: (OURS, _SMALL, 300),
        OURS_SIMPLE.name: (OURS_SIMPLE, _SMALL, 300),
        TORCH.name: (TORCH, _SMALL, 50),
        TORCH_SIMPLE.name: (TORCH_SIMPLE, _SMALL, 50),
        f"{OURS.name}, 1 GiB": (OURS, _GIB // 4, 300),
        f"{TORCH.name}, 1 GiB": (TORCH, _GIB // 4, 50),
    }
    small, simple, theirs, theirs_simple, large, theirs_large = _measure(asked, effort).values()
    names = list(asked)
    row.add(names[0], small.median(), "ns")
    row.add(names[1], simple.median(), "ns")
    bound = at_least(theirs.ratio_to(small), 30)
    row.judge_ratio(names[2], theirs.median(), "ns", "ours", bound)
    bound = at_least(theirs_simple.ratio_to(simple), 6)
    row.judge_ratio(names[3], theirs_simple.median(), "ns", "our SimpleQueue", bound)
    bound = at_most(large.ratio_to(small), 1.1)
    row.judge_ratio(names[4], large.median(), "ns", "the small one", bound)
    row.add(names[5], theirs_large.median(), "ns", theirs_large.ratio_to(large), "ours")
    return row


def _measure(asked: dict[str, tuple[Contender, int, int]], effort: Effort) -> dict[str, Samples]:
    samples = {name: Samples() for name in asked}
    peers = {
        contender: Peer(lead, contender=dataclasses.asdict(contender), device=effort.device)
        for contender, _, _ in asked.values()
    }
    try:
        for peer in peers.values():
            peer.hear()
        for _ in range(effort.rounds(_ROUNDS)):
            for name, (contender, elements, count) in asked.items():
                samples[name].append(peers[contender].ask([elements, count]))
    finally:
        for peer in peers.values():
            peer.__exit__(None, None, None)
    return samples


def first_open(effort: Effort) -> Row:
    row = Row(
        "The first open of a segment of 1 GiB in a new process that has a context",
        "≤ 300 µs for memory of onecopy when it knows the owner",
    )
    own, theirs, stranger = Samples(), Samples(), Samples()
    with Peer(lend, device=effort.device) as owner:
        small, own_handle, their_handle = owner.ask("handles")
        for _ in range(effort.rounds(_OPENS)):
            for samples, first, handle in (
                (own, small, own_handle),
                (theirs, small, their_handle),
                (stranger, "", own_handle),
            ):
                with Peer(open_first, device=effort.device) as opener:
                    samples.append(opener.ask([first, handle]))
    row.judge("memory of onecopy", own.median(), "ns", at_most(own.median(), 300e3))
    row.add("memory of torch (cudaMalloc)", theirs.median(), "ns")
    row.add("memory of onecopy, by a process that has to connect first", stranger.median(), "ns")
    return row


def model(effort: Effort) -> Row:
    row = Row(
        "20,000 CUDA tensors, 8 GiB, shaped as a mixture of experts: shared, and opened in another process",
        "≤ 100 ms in all",
    )
    samples = {OURS: Samples(), TORCH: Samples()}
    for contender, values in samples.items():
        with failures_noted(row, contender):
            arguments = {"contender": dataclasses.asdict(contender), "device": effort.device}
            with Peer(lead_model, **arguments) as leader:
                leader.hear()
                for _ in range(effort.rounds(_OPENS)):
                    values.append(leader.ask("send"))
                    time.sleep(0.2)  # so that released memory is returned
    ours, theirs = samples.values()
    row.add("the first time in both processes", ours[0], "ns")
    row.judge("as a bundle", ours.median(), "ns", at_most(ours.median(), 100e6))
    if theirs:
        row.add(TORCH.name + ", a dict", theirs.median(), "ns", theirs.ratio_to(ours), "ours")
    return row


_ALLOCATORS = {
    "torch's allocator": ({}, 250e6),
    "expandable segments": (
        dict.fromkeys(["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"], "expandable_segments:True"),
        400e6,
    ),
}


def first_model(effort: Effort) -> Row:
    """Measures the first model, with two new processes for each figure."""
    row = Row(
        "20,000 torch tensors as above, for the first time: shared as a bundle, and opened in another process",
        "≤ 250 ms from torch's allocator, ≤ 400 ms from expandable segments",
    )
    for name, (settings, limit) in _ALLOCATORS.items():
        samples = Samples()
        arguments = {"contender": dataclasses.asdict(OURS), "device": effort.device}
        for _ in range(effort.rounds(_OPENS)):
            with _environment(settings), Peer(lead_model, **arguments) as leader:
                leader.hear()
                samples.append(leader.ask("send"))
        row.judge(name, samples.median(), "ns", at_most(samples.median(), limit))
    _add_floor(row, effort)
    return row


def _add_floor(row: Row, effort: Effort) -> None:
    """Adds the driver's own time for the number of allocations that hold the model."""
    ordinal = int(effort.device.partition(":")[2] or 0)
    floors = {"cudaMalloc": cuda_floor.allocations, "descriptors": cuda_floor.chunks}
    for name, floor in floors.items():
        exported, opened = Samples(), Samples()
        for _ in range(effort.rounds(_OPENS)):
            for taken, values in zip(floor(ordinal, _SEGMENTS, 2 << 20), (exported, opened), strict=True):
                values.append(taken)
        row.add(f"the driver alone, {name}: {_SEGMENTS} exported", exported.median(), "ns")
        row.add(f"the driver alone, {name}: {_SEGMENTS} opened", opened.median(), "ns")


@contextlib.contextmanager
def _environment(settings: dict[str, str]) -> Iterator[None]:
    """Sets the environment of processes that are started in the block."""
    before = dict(os.environ)
    os.environ.update(settings)
    try:
        yield
    finally:
        for name in settings:
            os.environ.pop(name)
        os.environ.update({name: before[name] for name in settings if name in before})


def reduce_many(talk: Talk, device: str) -> None:
    """Answers "ours" or "torch" with the nanoseconds of one reduce_tensor(), of new tensors and again of the same."""
    import torch
    from torch.multiprocessing import reductions

    import onecopy.multiprocessing.reductions as ours

    functions = {"ours": ours.reduce_tensor, "torch": ours.patches.originals.reduce_tensor or reductions.reduce_tensor}
    for asked in talk.questions():
        reduce_one = functions[asked]
        tensors = [torch.empty(1024, device=device) for _ in range(1000)]
        torch.cuda.synchronize(device)
        times = []
        for _ in range(2):
            kept: list[Any] = []
            times.append(time_ns(lambda kept=kept: kept.extend(map(reduce_one, tensors))) / len(tensors))
            torch.cuda.synchronize(device)
        talk.say(times)


def reduced(effort: Effort) -> Row:
    row = Row("reduce_tensor() of a CUDA tensor of torch's allocator", "≥ 3 x faster than torch's")
    samples = {(name, when): Samples() for name in ("ours", "torch") for when in ("first", "again")}
    with Peer(reduce_many, device=effort.device) as peer:
        for name in ("ours", "torch"):
            peer.ask(name)
        for _ in range(effort.rounds(_OPENS)):
            for name in ("ours", "torch"):
                for when, taken in zip(("first", "again"), peer.ask(name), strict=True):
                    samples[name, when].append(taken)
    for when, text in (("first", "at first"), ("again", "of the same again")):
        ours, theirs = samples["ours", when], samples["torch", when]
        row.add(f"ours, {text}", ours.median(), "ns")
        bound = at_least(theirs.ratio_to(ours), 3)
        row.judge_ratio(f"torch's, {text}", theirs.median(), "ns", "ours", bound)
    return row


def put_ints(talk: Talk, device: str) -> None:
    """Answers "none", "idle" or "busy" with the nanoseconds of one put() and get() of an int in this process, which has
    used no device, one whose stream is idle, or one whose stream has work."""
    import torch

    import onecopy

    queue = onecopy.Queue()
    kept: list[Any] = []

    def exchange_ints(count: int) -> None:
        for step in range(count):
            queue.put(step)
            queue.get()

    for state in talk.questions():
        if state != "none" and not kept:
            kept.append(onecopy.share(torch.zeros(1, device=device)))
        if kept:
            torch.cuda.synchronize(device)
        if state == "busy":
            torch.cuda._sleep(200_000_000)
        count = 300 if state == "busy" else 3000
        talk.say(time_ns(lambda count=count: exchange_ints(count)) / count)
        if kept:
            torch.cuda.synchronize(device)


def numbers(effort: Effort) -> Row:
    row = Row("An int put and got in one process, which comes after what the current stream has", "no bound")
    samples = {state: Samples() for state in ("none", "idle", "busy")}
    with Peer(put_ints, device=effort.device) as peer:
        for state, values in samples.items():
            peer.ask(state)
            for _ in range(effort.rounds(_OPENS)):
                values.append(peer.ask(state))
    row.add("no device used", samples["none"].median(), "ns")
    row.add("the stream is idle", samples["idle"].median(), "ns")
    row.add("the stream has work", samples["busy"].median(), "ns")
    return row
