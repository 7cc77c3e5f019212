# SPDX-License-Identifier: Apache-2.0
"""Tensors on a CUDA device: to another process and an int back, opened in a new process, and a whole model.

All processes are spawned: CUDA does not survive a fork.
"""

from __future__ import annotations

import dataclasses
import gc
import os
import time
from collections.abc import Callable
from typing import Any

import contenders
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

OURS = contenders.OURS
OURS_SIMPLE = contenders.OURS_SIMPLE
TORCH = Contender("torch.multiprocessing")
TORCH_SIMPLE = Contender("torch.multiprocessing", "SimpleQueue")

# --- what the processes do --------------------------------------------------------------------------


def fresh_tensors(device: str, elements: int) -> Callable[[int], Callable[[], Any]]:
    """A new one for each exchange, from memory that torch's allocator has at hand."""
    import torch

    return lambda count: lambda: torch.empty(elements, device=device)


def lead(talk: Talk, contender: dict[str, Any], device: str) -> None:
    """Answers [elements, count] with the nanoseconds that one of so many exchanges took."""
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
    """In a new process that has a context: answers two handles with what the first open of the second took. That of
    the first, if it is not empty, connects to the owner and is not in it."""
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
    """Shares something small, 1 GiB of onecopy's and as much of torch's; answers with the handles as text."""
    import torch

    import onecopy

    small = onecopy.share(onecopy.zeros(1, device=device))
    own = onecopy.share(onecopy.empty((_GIB,), "uint8", device))
    theirs = onecopy.share(torch.empty(_GIB, dtype=torch.uint8, device=device))
    torch.cuda.synchronize(device)
    for _ in talk.questions():
        talk.say([str(small), str(own), str(theirs)])


def lead_model(talk: Talk, contender: dict[str, Any], device: str) -> None:
    """Has 20,000 tensors shaped as a mixture of experts with 30 billion parameters, 8 GiB in all; answers "send"
    with the nanoseconds until another process has opened them."""
    import torch

    chosen = Contender(**contender)
    there, back = chosen.queues(2)
    follower = chosen.context().Process(target=open_model, args=(there, back, device))
    follower.start()
    back.get()
    shapes = [(768, 256)] * 19_600 + [(1024, 1024)] * 400
    model = {
        f"layers.{i}.weight": torch.empty(shape, dtype=torch.bfloat16, device=device)
        for i, shape in enumerate(shapes)
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
    """Bytes are a bundle's handle; a dict of tensors is open already."""
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
                    time.sleep(0.2)  # what was let go goes home
    ours, theirs = samples.values()
    row.add("the first time in both processes", ours[0], "ns")
    row.judge("as a bundle", ours.median(), "ns", at_most(ours.median(), 100e6))
    if theirs:
        row.add(TORCH.name + ", a dict", theirs.median(), "ns", theirs.ratio_to(ours), "ours")
    return row
