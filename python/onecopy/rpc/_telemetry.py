# SPDX-License-Identifier: Apache-2.0
"""How long calls take and which are under way: counters, a histogram of latency for each function, and lines of the log.

Thread safety: all members may be called concurrently."""

import itertools
import logging
import threading
import time

_BUCKETS = 32  # of powers of two, in microseconds: the last begins at 36 minutes
log = logging.getLogger("onecopy.rpc")
_lock = threading.Lock()


class Histogram:
    """Times in buckets of powers of two: bucket n holds those below 2^n µs that the one before does not."""

    __slots__ = ("buckets", "calls", "errors", "total", "longest")

    def __init__(self):
        self.buckets, self.calls, self.errors, self.total, self.longest = [0] * _BUCKETS, 0, 0, 0.0, 0.0

    def add(self, seconds, failed):
        self.buckets[min(int(seconds * 1e6).bit_length(), _BUCKETS - 1)] += 1
        self.calls += 1
        self.errors += failed
        self.total += seconds
        self.longest = max(self.longest, seconds)

    def quantile(self, part):
        """A bound in microseconds below which at least that part of the calls stayed."""
        left = part * self.calls
        for n, count in enumerate(self.buckets):
            left -= count
            if left <= 0 and count:
                return 1 << n
        return 0

    def report(self):
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

    def __init__(self):
        self._counts = {}

    def add(self, name, number=1):
        with _lock:
            self._counts[name] = self._counts.get(name, 0) + number

    def report(self):
        with _lock:
            return dict(self._counts)

    def clear(self):
        with _lock:
            self._counts.clear()


called, served = {}, {}  # function -> Histogram
counts = Counters()
_traces = itertools.count(1)


def observe(table, function, seconds, failed):
    with _lock:
        found = table.get(function)
        if found is None:
            found = table[function] = Histogram()
        found.add(seconds, failed)


def new_trace(info):
    """A name for a call and all that it calls, unique in the group."""
    return f"{info.name}.{next(_traces)}"


def reports(table):
    with _lock:
        return {function: histogram.report() for function, histogram in table.items()}


def clear():
    """At the beginning of a group."""
    with _lock:
        called.clear()
        served.clear()
    counts.clear()


class Stages:
    """When a call came to which stage. One thread at a time writes."""

    __slots__ = ("times",)

    def __init__(self, stage):
        self.times = {stage: time.monotonic()}

    def reach(self, stage):
        self.times[stage] = time.monotonic()

    @property
    def last(self):
        return next(reversed(self.times))

    def ages(self, now):
        """{stage: seconds since it was reached}."""
        return {stage: now - when for stage, when in self.times.items()}
