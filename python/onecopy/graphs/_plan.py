# SPDX-License-Identifier: Apache-2.0
"""Plans the offsets of a graph's storages, so that storages that are needed at the same step never overlap."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

ALIGNMENT = 64  # bytes, the alignment of torch's own allocator


@dataclasses.dataclass(eq=False)
class Memory:
    """A storage of a recorded graph, which is needed from step ``made_at`` to step ``live_until``."""

    nbytes: int
    made_at: int
    live_until: int
    given: bool = False
    """Whether the caller owns the storage: an input in place, or a constant of the graph. It is not planned."""
    offset: int = -1
    """The offset in bytes, once it is planned."""

    def meets(self, other: Memory) -> bool:
        """Returns whether both are needed at the same step."""
        return self.made_at <= other.live_until and other.made_at <= self.live_until


def place(memories: Iterable[Memory]) -> int:
    """Sets the offset of each memory: the largest first, each at the lowest free offset. Returns the total size in
    bytes."""
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
    """Returns the maximum of bytes needed at one step. No plan can take less."""
    changes: list[tuple[int, int]] = []
    for memory in memories:
        changes.append((memory.made_at, memory.nbytes))
        changes.append((memory.live_until + 1, -memory.nbytes))
    most = needed = 0
    for _, change in sorted(changes):
        needed += change
        most = max(most, needed)
    return most
