# SPDX-License-Identifier: Apache-2.0
"""Whether graphs of a function are worth their captures."""

from __future__ import annotations

from collections.abc import Hashable

_MAX_MISSES = 8
_MAX_COUNTED = 16


class ThrashDetector:
    """Notices a function whose graphs are captured or moved at nearly every call.

    It is in one of two states. *Capturing*: graphs are captured and moved as calls need it; each time is a miss, and
    each replay of a graph that was ready makes up for half a miss. *Thrashing*, from 8 misses on: a call that would
    move a graph, or would drop one to capture another, runs eagerly. A call like the one before may capture
    nevertheless, since its inputs have come to rest, and replays lead back to *capturing*.

    Thread safety: with the arena's lock.
    """

    def __init__(self) -> None:
        self._misses = 0.0
        self._hits = 0
        self._last: Hashable = None

    def note_miss(self) -> None:
        """A graph is captured or moved."""
        self._misses = min(self._misses + 1, _MAX_COUNTED)

    def is_thrashing(self, hits: int) -> bool:
        """``hits``: replays of the function's graphs that needed neither a capture nor a move, from its beginning."""
        self._misses = max(0.0, self._misses - (hits - self._hits) / 2)
        self._hits = hits
        return self._misses >= _MAX_MISSES

    def has_come_to_rest(self, call: Hashable) -> bool:
        """Returns whether the last call that was asked about had this key and these inputs in place."""
        is_same = call == self._last
        self._last = call
        return is_same
