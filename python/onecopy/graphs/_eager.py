# SPDX-License-Identifier: Apache-2.0
"""What runs eagerly in place of a graph, and why."""

from __future__ import annotations

import collections
import logging
from typing import Any

from ._arena import Arena
from ._code import Boxed

_log = logging.getLogger("onecopy.graphs")

NEW = (
    "nearly every call has new sizes, or new numbers in CPU tensors; "
    "pad sizes, and pass changing numbers as tensors on the device"
)
CAPTURED = "it was called during the capture of another graph"
NESTED = "it was called by an operator of another captured function"
MOVING = "tensors that it uses in place are at new addresses at nearly every call; write into them with copy_()"
_GRADIENTS = "its results need gradients; call it under torch.no_grad() for graphs"


class Eager:
    """A shape that runs eagerly, with the reason."""

    def __init__(self, reason: str, windows: int | None = None) -> None:
        self.reason = reason
        self.last_used = 0
        self.windows = windows
        """The number of windows when the arena had no room; a capture is tried again when it differs. None: never."""


class EagerFunction:
    """A graph that always runs eagerly, for one reason. Each call is counted."""

    def __init__(self, run: Boxed, arena: Arena, reason: str = _GRADIENTS) -> None:
        self._boxed_call = True  # set on the object, since torch copies its attributes to wrappers
        self._run = run
        self.arena = arena
        self.arenas = {arena}
        self.name = "graph that runs eagerly"
        self._reason = reason
        self.entries: dict[Any, Any] = {}
        self.captures = self.replays = self.moves = self.recaptures = self.evicted = 0
        self.moved_to: collections.deque[str] = collections.deque(maxlen=8)
        self.eager: collections.Counter[str] = collections.Counter()
        arena.functions.add(self)
        _log.warning("a graph runs eagerly: %s", reason)

    def __call__(self, boxed: list[Any]) -> list[Any]:
        arguments = list(boxed)
        boxed.clear()
        self.eager[self._reason] += 1
        return self._run(arguments)
