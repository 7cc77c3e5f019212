# SPDX-License-Identifier: Apache-2.0
"""Measures a small object to another process and an int back."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import contenders
from contenders import Contender
from effort import Effort
from peers import Peer, Talk
from report import Row, at_least, at_most
from samples import Samples

_ROUNDS = 41
_WARM = 10
# A scheduler that has put both processes on one processor during a pause needs 10 to 20 ms to part them.
_SETTLED_MS = 30
_ELEMENTS = 16

# --- what the processes do --------------------------------------------------------------------------


def lead(talk: Talk, contender: dict[str, Any], what: str, settled_ms: float) -> None:
    """Answers each count with the nanoseconds per exchange, after warming up for settled_ms."""
    chosen = Contender(**contender)
    usable = os.sched_getaffinity(0)
    with chosen.starting():
        there, back = chosen.queues(2)
        follower = chosen.context().Process(target=follow, args=(there, back, chosen.strategy, usable))
        follower.start()
    maker = MAKERS[what]()
    exchange(there, back, maker, 100)
    talk.say("ready")
    for count in talk.questions():
        settle(there, back, maker, settled_ms)
        talk.say(exchange(there, back, maker, count))
    there.put(None)
    follower.join()


def exchange(there: Any, back: Any, prepare: Callable[[int], Callable[[], Any]], count: int) -> float:
    make = prepare(count)
    start = perf_counter_ns()
    for _ in range(count):
        there.put(make())
        back.get()
    return (perf_counter_ns() - start) / count


def settle(there: Any, back: Any, prepare: Callable[[int], Callable[[], Any]], for_ms: float = _SETTLED_MS) -> None:
    start = perf_counter_ns()
    exchange(there, back, prepare, _WARM)
    while perf_counter_ns() < start + for_ms * 1e6:
        exchange(there, back, prepare, _WARM)


def follow(there: Any, back: Any, strategy: str | None, usable: set[int]) -> None:
    """Answers each object with an int, until None arrives."""
    os.sched_setaffinity(0, usable)
    if strategy:
        import torch.multiprocessing

        torch.multiprocessing.set_sharing_strategy(strategy)
    while there.get() is not None:
        back.put(7)


# --- objects that are put: each gives, for a number of exchanges, a maker of the next object ------------------


def fresh_tensors() -> Callable[[int], Callable[[], Any]]:
    import torch

    return lambda count: lambda: torch.empty(_ELEMENTS)


def fresh_views() -> Callable[[int], Callable[[], Any]]:
    import torch

    return lambda count: lambda: torch.empty(4 * _ELEMENTS)[_ELEMENTS : 2 * _ELEMENTS]


def fresh_parameters() -> Callable[[int], Callable[[], Any]]:
    import torch

    return lambda count: lambda: torch.nn.Parameter(torch.empty(_ELEMENTS))


def state_dict_values() -> Callable[[int], Callable[[], Any]]:
    """Returns values whose modules and dicts are made before the measurement. The Parameter stays alive."""
    import torch

    def prepare(count: int) -> Callable[[], Any]:
        modules = [torch.nn.PReLU(_ELEMENTS) for _ in range(count)]
        values = iter([(module, module.state_dict()["weight"]) for module in modules])
        return lambda: next(values)[1]

    return prepare


def ints() -> Callable[[int], Callable[[], Any]]:
    return lambda count: lambda: 7


MAKERS = {f.__name__: f for f in (fresh_tensors, fresh_views, fresh_parameters, state_dict_values, ints)}

# --- rows -------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Other:
    """A contender to compare with, the exchanges per round, and the factor by which onecopy must be faster."""

    contender: Contender
    count: int
    faster: float | None = None


def measure(
    what: str, ours: dict[Contender, int], others: list[Other], rounds: int, settled_ms: float = _SETTLED_MS
) -> list[Samples]:
    """Measures all contenders in each round, onecopy first. Returns the samples in this order."""
    counts = ours | {other.contender: other.count for other in others}
    with contextlib.ExitStack() as stack:
        leaders = [
            stack.enter_context(Peer(lead, contender=dataclasses.asdict(contender), what=what, settled_ms=settled_ms))
            for contender in counts
        ]
        for leader in leaders:
            leader.hear()
        samples = [Samples() for _ in counts]
        for _ in range(rounds):
            for leader, count, values in zip(leaders, counts.values(), samples, strict=True):
                values.append(leader.ask(count))
    return samples


def _tensor_row(title: str, what: str, faster: float, faster_simple: float, effort: Effort) -> Row:
    row = Row(
        title,
        f"≥ {faster:g} x faster than torch.multiprocessing.Queue with either strategy, "
        f"≥ {faster_simple:g} x than its SimpleQueue",
    )
    others = [
        Other(contenders.TORCH_FD, 50, faster),
        Other(contenders.TORCH_FS, 50, faster),
        Other(contenders.TORCH_FD_SIMPLE, 50, faster_simple),
        Other(contenders.TORCH_FS_SIMPLE, 50, faster_simple),
    ]
    _fill(row, what, {contenders.OURS: 500, contenders.OURS_SIMPLE: 500}, others, effort)
    return row


def _fill(row: Row, what: str, ours: dict[Contender, int], others: list[Other], effort: Effort) -> None:
    samples = measure(what, ours, others, effort.rounds(_ROUNDS))
    for contender, values in zip(ours, samples, strict=False):
        row.add(contender.name, values.median(), "ns")
    for other, values in zip(others, samples[len(ours) :], strict=True):
        times = values.ratio_to(samples[0])
        if other.faster is None:
            row.add(other.contender.name, values.median(), "ns", times, "ours")
        else:
            bound = at_least(times, other.faster)
            row.judge_ratio(other.contender.name, values.median(), "ns", "ours", bound)


def tensors(effort: Effort) -> Row:
    title = "A fresh tensor of 16 elements there, an int back"
    return _tensor_row(title, "fresh_tensors", 20, 10, effort)


def views(effort: Effort) -> Row:
    return _tensor_row("A view of a fresh tensor there, an int back", "fresh_views", 10, 10, effort)


def parameters(effort: Effort) -> Row:
    return _tensor_row("A fresh Parameter there, an int back", "fresh_parameters", 10, 10, effort)


def state_values(effort: Effort) -> Row:
    title = "A tensor from state_dict() there, an int back"
    return _tensor_row(title, "state_dict_values", 10, 10, effort)


def numbers(effort: Effort) -> Row:
    row = Row(
        "An int there and back",
        "≥ 8 x faster than multiprocessing.Queue, ≥ 3 x than SimpleQueue",
    )
    others = [Other(contenders.STANDARD, 200, 8), Other(contenders.STANDARD_SIMPLE, 200, 3)]
    _fill(row, "ints", {contenders.OURS: 1000, contenders.OURS_SIMPLE: 1000}, others, effort)
    both = [contenders.OURS, contenders.STANDARD_SIMPLE]
    samples = measure("ints", dict.fromkeys(both, 200), [], effort.rounds(_ROUNDS), settled_ms=0)
    for contender, values in zip(both, samples, strict=True):
        times = None if contender is contenders.OURS else values.ratio_to(samples[0])
        row.add(f"{contender.name}, right after a pause", values.median(), "ns", times, times and "ours")
    return row


def numbers_sleeping(effort: Effort) -> Row:
    """Measures onecopy as on one processor, where it does not spin, since the standard library never spins."""
    row = Row("An int there and back, both sides sleep", "not slower than multiprocessing.SimpleQueue")
    ours = dataclasses.replace(contenders.OURS, sleeps=True)
    others = [Other(contenders.STANDARD_SIMPLE, 200), Other(contenders.STANDARD, 200)]
    samples = measure("ints", {ours: 200}, others, effort.rounds(_ROUNDS))
    bound = at_most(samples[0].ratio_to(samples[1]), 1)
    row.judge_ratio(ours.name, samples[0].median(), "ns", "SimpleQueue", bound)
    for other, values in zip(others, samples[1:], strict=True):
        row.add(other.contender.name, values.median(), "ns")
    row.note("both processes run on all processors; only the queue was told that there is one")
    return row
