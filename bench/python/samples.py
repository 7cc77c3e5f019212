# SPDX-License-Identifier: Apache-2.0
"""Measurements of one thing, round by round, like bench/support/samples.h."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from time import perf_counter_ns


class Samples(list[float]):
    """The values of one measurement, one for each round."""

    def median(self) -> float:
        return statistics.median(self)

    def mean(self) -> float:
        return statistics.fmean(self)

    def best(self) -> float:
        return min(self)

    def ratio_to(self, other: Samples) -> float:
        """Returns the median over rounds of this value divided by `other` in the same round, since a disturbance of a
        round affects both."""
        return statistics.median(mine / theirs for mine, theirs in zip(self, other, strict=True))


def time_ns(work: Callable[[], object]) -> float:
    """Returns the nanoseconds that `work` takes."""
    start = perf_counter_ns()
    work()
    return float(perf_counter_ns() - start)
