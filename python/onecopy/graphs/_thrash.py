# SPDX-License-Identifier: Apache-2.0
"""Decides whether captures of a function are worth their cost."""

from __future__ import annotations

from collections.abc import Hashable

_MAX_MISSES = 8
_MAX_COUNTED = 16


class ThrashDetector:
    """Detects a function whose graphs are captured or moved at nearly every call.

    The detector has two states. *Capturing*: graphs are captured and moved as calls need it; each time counts as a
    miss, and each replay of a graph that was ready removes half a miss. *Thrashing*, from 8 misses on: a call that
    would move a graph, or evict one to capture another, runs eagerly. A call with the key and inputs of the
    last call that was refused may still capture, since its inputs no longer move, and its replays lead back to
    *capturing*.

    Thread safety: the caller holds the arena's lock.
    """

    def __init__(self) -> None:
        self._misses = 0.0
        self._hits = 0
        self._last: Hashable = None

    def note_miss(self) -> None:
        """Counts the capture or move of a graph."""
        self._misses = min(self._misses + 1, _MAX_COUNTED)

    def is_thrashing(self, hits: int) -> bool:
        """Returns whether the function is thrashing.

        ``hits`` is the total number of replays of its graphs that needed neither a capture nor a move.
        """
        self._misses = max(0.0, self._misses - (hits - self._hits) / 2)
        self._hits = hits
        return self._misses >= _MAX_MISSES

    def has_come_to_rest(self, call: Hashable) -> bool:
        """Returns whether ``call``, a key with addresses of inputs, equals the ``call`` of the last query."""
        is_same = call == self._last
        self._last = call
        return is_same
