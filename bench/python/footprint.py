# SPDX-License-Identifier: Apache-2.0
"""Counts the open files of a process, from any process of its user."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import resource
from collections.abc import Iterator

SPARE_DESCRIPTORS = 16


@dataclasses.dataclass(frozen=True)
class Footprint:
    descriptors: int
    mappings: int


def footprint(pid: int) -> Footprint:
    with _whole_limit(), open(f"/proc/{pid}/maps") as maps:
        mappings = sum(1 for _ in maps)
        return Footprint(len(os.listdir(f"/proc/{pid}/fd")), mappings)


@contextlib.contextmanager
def _whole_limit() -> Iterator[None]:
    """Raises the limit in the block, so that a process without free descriptors can still be counted."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def processor_seconds(pid: int) -> float:
    """Returns the processor time of all threads of a process, in seconds."""
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/schedstat") as file:
            total += int(file.read().split()[0])
    return total / 1e9
