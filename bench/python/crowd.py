# SPDX-License-Identifier: Apache-2.0
"""Measures four producers and four consumers on one queue."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from typing import Any

import contenders
from contenders import Contender
from effort import Effort
from footprint import processor_seconds
from hand_over import Other, measure
from peers import Peer, Talk
from report import Row, at_most
from samples import Samples

_USERS = 4
_ITEMS = 4000  # put by each producer in a round
_REPORT = 50  # items between two reports of a consumer
_ROUNDS = 15
_IDLE_SECONDS = 2.0

# --- what the processes do --------------------------------------------------------------------------


def lead(talk: Talk, contender: dict[str, Any]) -> None:
    """Answers "round" with items per second, and "idle" with the processor seconds of the busiest consumer
    blocked for _IDLE_SECONDS."""
    chosen = Contender(**contender)
    context = chosen.context()
    items = chosen.queues(1)[0]
    starts, ends = context.SimpleQueue(), context.SimpleQueue()
    producers = [context.Process(target=produce, args=(items, starts, ends)) for _ in range(_USERS)]
    consumers = [context.Process(target=consume, args=(items, ends)) for _ in range(_USERS)]
    for process in producers + consumers:
        process.start()
    for _ in producers + consumers:
        ends.get()
    rounds = Rounds(starts, ends)
    rounds.time()
    talk.say("ready")
    for question in talk.questions():
        if question == "idle":
            talk.say(_busiest([process.pid for process in consumers]))
        else:
            talk.say(_USERS * _ITEMS / rounds.time())
    for _ in range(_USERS):
        starts.put(0)
        items.put(None)
    for process in producers + consumers:
        process.join()


class Rounds:
    """Starts the producers and waits until the consumers have taken all items.

    Each consumer may have taken items that it has not reported yet, so a round ends early by these items, which belong
    to the next round.
    """

    def __init__(self, starts: Any, ends: Any) -> None:
        self._starts = starts
        self._ends = ends
        self._due = 0

    def time(self) -> float:
        """Returns how long an item took, in seconds."""
        start = time.perf_counter()
        for _ in range(_USERS):
            self._starts.put(_ITEMS)
        self._due += _USERS * _ITEMS
        while self._due >= _USERS * _REPORT:
            self._due -= self._ends.get()
        return time.perf_counter() - start


def _busiest(pids: list[int]) -> float:
    before = [processor_seconds(pid) for pid in pids]
    time.sleep(_IDLE_SECONDS)
    return max(processor_seconds(pid) - t for pid, t in zip(pids, before, strict=True))


def produce(items: Any, starts: Any, ends: Any) -> None:
    """Puts as many ints as each received number says, until the number is 0 or None."""
    ends.put("ready")
    while count := starts.get():
        for i in range(count):
            items.put(i)


def consume(items: Any, ends: Any) -> None:
    """Takes items and reports their number from time to time, until None arrives."""
    ends.put("ready")
    taken = 0
    while items.get() is not None:
        taken += 1
        if taken % _REPORT == 0:
            ends.put(_REPORT)


# --- rows -------------------------------------------------------------------------------------------


def many(effort: Effort) -> Row:
    row = Row("4 producers and 4 consumers, ints", "not slower than the standard library")
    samples, idle = _measure(effort.rounds(_ROUNDS))
    row.add(contenders.OURS.name, samples[contenders.OURS].median(), "/s")
    for other in (contenders.STANDARD, contenders.STANDARD_SIMPLE):
        share = samples[other].ratio_to(samples[contenders.OURS])
        row.judge_ratio(other.name, samples[other].median(), "/s", "ours", at_most(share, 1))
    limit = _IDLE_SECONDS * 1e6  # a thousandth of the time, in ns
    row.judge("the busiest of our consumers blocked for 2 s, processor time", idle, "ns", at_most(idle, limit))
    row.note(f"{_USERS * _ITEMS} items a round; consumers report every {_REPORT} of theirs by a SimpleQueue")
    return row


def _measure(rounds: int) -> tuple[dict[Contender, Samples], float]:
    chosen = (contenders.OURS, contenders.STANDARD, contenders.STANDARD_SIMPLE)
    with contextlib.ExitStack() as stack:
        leaders = {each: stack.enter_context(Peer(lead, contender=dataclasses.asdict(each))) for each in chosen}
        for leader in leaders.values():
            leader.hear()
        samples = {each: Samples() for each in chosen}
        for _ in range(rounds):
            for each, leader in leaders.items():
                samples[each].append(leader.ask("round"))
        return samples, leaders[contenders.OURS].ask("idle") * 1e9


def one_processor(effort: Effort) -> Row:
    """Runs all processes on one processor, where a spinning process delays the process that it waits for."""
    row = Row(
        "An int there and back, both processes on one processor",
        "no spinning: not slower than multiprocessing.SimpleQueue",
    )
    usable = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(usable)})
    try:
        others = [Other(contenders.STANDARD_SIMPLE, 200), Other(contenders.STANDARD, 200)]
        samples = measure("ints", {contenders.OURS: 200}, others, effort.rounds(41))
    finally:
        os.sched_setaffinity(0, usable)
    bound = at_most(samples[0].ratio_to(samples[1]), 1)
    row.judge_ratio(contenders.OURS.name, samples[0].median(), "ns", "SimpleQueue", bound)
    for other, values in zip(others, samples[1:], strict=True):
        row.add(other.contender.name, values.median(), "ns")
    return row
