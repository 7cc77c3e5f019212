# SPDX-License-Identifier: Apache-2.0
"""Where the tensors of a graph lie: places for intervals of time, so that tensors alive at one step never overlap."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

ALIGNMENT = 64  # bytes, as torch's own allocator has it


@dataclasses.dataclass(eq=False)
class Memory:
    """A storage of a recorded graph. Its bytes are needed from step ``made_at`` to step ``live_until``."""

    nbytes: int
    made_at: int
    live_until: int
    given: bool = False
    """It is the caller's: an input in place, or a constant of the graph. It has no place."""
    offset: int = -1
    """Its place, once there is one."""

    def meets(self, other: Memory) -> bool:
        """Returns whether both are needed at some step."""
        return self.made_at <= other.live_until and other.made_at <= self.live_until


def place(memories: Iterable[Memory]) -> int:
    """Gives each its offset, and returns how many bytes they take together: the largest first, each as low as it
    can.
    """
    placed: list[Memory] = []
    end = 0
    for memory in sorted(memories, key=lambda m: m.nbytes, reverse=True):
        memory.offset = _lowest_gap(memory, placed)
        placed.append(memory)
        end = max(end, memory.offset + memory.nbytes)
    return end


def _lowest_gap(memory: Memory, placed: list[Memory]) -> int:
    at = 0
    for other in sorted((m for m in placed if m.meets(memory)), key=lambda m: m.offset):
        if at + memory.nbytes <= other.offset:
            break
        at = max(at, _aligned(other.offset + other.nbytes))
    return at


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


def lower_bound(memories: Iterable[Memory]) -> int:
    """The most bytes that are needed at one step: no plan takes less."""
    changes: list[tuple[int, int]] = []
    for memory in memories:
        changes.append((memory.made_at, memory.nbytes))
        changes.append((memory.live_until + 1, -memory.nbytes))
    most = needed = 0
    for _, change in sorted(changes):
        needed += change
        most = max(most, needed)
    return most
