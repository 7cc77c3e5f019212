# SPDX-License-Identifier: Apache-2.0
"""How long calls take and which are under way: counters, a histogram of latency for each function, lines of the log, and
ranges of torch.profiler.

Thread safety: all functions and members may be called concurrently, except where a class says otherwise.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

_BUCKETS = 32  # of powers of two, in microseconds: the last begins at 36 minutes
log = logging.getLogger("onecopy.rpc")
_lock = threading.Lock()


class Histogram:
    """Times in buckets of powers of two: bucket n holds the times below 2^n µs that bucket n - 1 does not hold."""

    __slots__ = ("buckets", "calls", "errors", "total", "longest")

    def __init__(self) -> None:
        self.buckets = [0] * _BUCKETS
        self.calls = self.errors = 0
        self.total = self.longest = 0.0

    def add(self, seconds: float, failed: bool) -> None:
        """Adds one call."""
        self.buckets[min(int(seconds * 1e6).bit_length(), _BUCKETS - 1)] += 1
        self.calls += 1
        self.errors += failed
        self.total += seconds
        if seconds > self.longest:
            self.longest = seconds

    def quantile(self, part: float) -> int:
        """Returns a bound in microseconds below which at least that part of the calls stayed."""
        left = part * self.calls
        for n, count in enumerate(self.buckets):
            left -= count
            if left <= 0 and count:
                return 1 << n
        return 0

    def report(self) -> dict[str, Any]:
        """Returns the numbers as plain values."""
        return {
            "calls": self.calls,
            "errors": self.errors,
            "mean_us": 1e6 * self.total / max(self.calls, 1),
            "p50_us": self.quantile(0.5),
            "p99_us": self.quantile(0.99),
            "longest_us": 1e6 * self.longest,
            "buckets": list(self.buckets),
        }


class Counters:
    """Numbers by name."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def add(self, name: str, number: int = 1) -> None:
        """Adds to the number of that name."""
        with _lock:
            self._counts[name] = self._counts.get(name, 0) + number

    def report(self) -> dict[str, int]:
        """Returns a copy of all numbers."""
        with _lock:
            return dict(self._counts)

    def clear(self) -> None:
        """Forgets all numbers."""
        with _lock:
            self._counts.clear()


called: dict[str, Histogram] = {}  # by function
served: dict[str, Histogram] = {}
_traces = itertools.count(1)


def observe(table: dict[str, Histogram], function: str, seconds: float, failed: bool) -> None:
    """Adds a call of `function` to `called` or `served`."""
    with _lock:
        found = table.get(function)
        if found is None:
            found = table[function] = Histogram()
        found.add(seconds, failed)


def new_trace(info: Any) -> str:
    """Returns a name for a call and all that it calls, unique in the group."""
    return f"{info.name}.{next(_traces)}"


def reports(table: dict[str, Histogram]) -> dict[str, dict[str, Any]]:
    """Returns a report for each function of `called` or `served`."""
    with _lock:
        return {function: histogram.report() for function, histogram in table.items()}


def clear() -> None:
    """Forgets the calls of an earlier group."""
    with _lock:
        called.clear()
        served.clear()


class Stages:
    """The times at which a call came to each stage. One thread at a time writes."""

    __slots__ = ("times",)

    def __init__(self, stage: str) -> None:
        self.times = {stage: time.monotonic()}

    def reach(self, stage: str) -> None:
        """Notes that the call is at that stage now."""
        self.times[stage] = time.monotonic()

    @property
    def last(self) -> str:
        """The stage that the call came to last."""
        return next(reversed(self.times))

    def ages(self, now: float) -> dict[str, float]:
        """Returns {stage: seconds since it was reached}."""
        return {stage: now - when for stage, when in self.times.items()}


# --- torch.profiler

_NOTHING = contextlib.nullcontext()

# Whether this thread has a profiler.
is_profiled: Callable[[], bool] = torch.autograd._profiler_enabled


def range_of_call(how: str, function: Any, agent: Any, to: Any) -> contextlib.AbstractContextManager[Any]:
    """Returns a range in the profiler of this thread, if it has one, under the name that torch gives it. For a call that is
    not waited for the range covers its sending."""
    if not is_profiled():
        return _NOTHING
    name = torch.jit._builtins._find_builtin(function) or getattr(function, "__qualname__", function)
    title = f"rpc_{how}#{name}({agent.info.name} -> {agent.member(to).info.name})"
    made: contextlib.AbstractContextManager[Any] = torch.autograd.profiler.record_function(title)
    return made


def range_of_served(name: str, caller: Any) -> contextlib.AbstractContextManager[Any]:
    """Returns a range for a function in the profiler of the thread that runs it, if it has one."""
    if not is_profiled():
        return _NOTHING
    made: contextlib.AbstractContextManager[Any] = torch.autograd.profiler.record_function(
        f"onecopy.rpc {name} for {caller.name}"
    )
    return made
