# SPDX-License-Identifier: Apache-2.0
"""A compiled function: one graph for each shape that it is called with."""

from __future__ import annotations

import collections
import logging
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from ..errors import InvalidArgument, OutOfMemory
from ._arena import Arena
from ._host import HostGraph
from ._record import NotReplayable, record

_log = logging.getLogger("onecopy.graphs")

INPUTS = ("copy", "place")
OUTPUTS = ("copy", "view", "private")


class Options:
    """What ``backend()`` was given, checked."""

    def __init__(self, arena: Arena | None, inputs: str, outputs: str, limit: int, one_arena_a_graph: bool) -> None:
        if inputs not in INPUTS:
            raise InvalidArgument(f"inputs is {inputs!r}; it is one of {', '.join(INPUTS)}")
        if outputs not in OUTPUTS:
            raise InvalidArgument(f"outputs is {outputs!r}; it is one of {', '.join(OUTPUTS)}")
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise InvalidArgument(f"limit is {limit!r}; it counts graphs of one function and is at least 1")
        self.arena = arena if arena is not None else Arena()
        self.inputs = inputs
        self.outputs = outputs
        self.limit = limit
        self.one_arena_a_graph = one_arena_a_graph


class Eager:
    """A shape that is not replayed, and why."""

    def __init__(self, reason: str, windows: int | None = None) -> None:
        self.reason = reason
        self.windows = windows
        """Of the arena, when it had no room: with others it may have."""


class Function:
    """What torch.compile calls. Keys are compared in full; of many shapes those used last are kept (I6).

    A capture commits whole or leaves no trace: the first call of a shape runs by the book, and its results are the
    caller's either way (I5).

    Thread safety: calls run one at a time in an arena (I2).
    """

    def __init__(self, graph: torch.fx.GraphModule, static: set[int], mutated: set[int], options: Options) -> None:
        self._boxed_call = True  # torch's word: it takes one list, and empties it
        self._graph = graph
        self._static = static
        self._mutated = mutated
        self._options = options
        self.arena = options.arena
        self.name = getattr(graph, "_get_name", lambda: "graph")()
        self.entries: collections.OrderedDict[Any, HostGraph | Eager] = collections.OrderedDict()
        self.captures = self.replays = self.moves = self.evicted = 0
        self.moved_to: collections.deque[str] = collections.deque(maxlen=8)
        """The last moves: which inputs, to which addresses."""
        self.eager: collections.Counter[str] = collections.Counter()
        self.arenas: set[Arena] = {self.arena}
        self.arena.functions.add(self)

    def __call__(self, boxed: list[Any]) -> list[Any]:
        arguments = list(boxed)
        boxed.clear()
        with self.arena.lock:
            return self._call(arguments)

    def _call(self, arguments: list[Any]) -> list[Any]:
        self.arena.require_resumed()
        key = self._key(arguments)
        entry = self.entries.get(key)
        if isinstance(entry, Eager) and entry.windows is not None and entry.windows != self.arena.footprint.windows:
            entry = None  # there may be room by now
        if entry is None:
            return self._first(key, arguments)
        self.entries.move_to_end(key)
        if isinstance(entry, Eager):
            self.eager[entry.reason] += 1
            return list(self._graph(*arguments))
        if not entry.is_in_place(arguments):
            self._move(entry, arguments)
        self.replays += 1
        return entry.replay(arguments)

    def _key(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(
            (a.dtype, a.shape, a.stride()) if isinstance(a, torch.Tensor) else (type(a), a)
            for index, a in enumerate(arguments)
            if index not in self._static
        )

    def _first(self, key: Any, arguments: list[Any]) -> list[Any]:
        in_place = self._static | self._mutated
        if self._options.inputs == "place":
            in_place = set(range(len(arguments)))
        try:
            recording, results = record(self._graph, arguments, in_place)
        except NotReplayable as reason:
            self._give_up(key, str(reason))
            return list(self._graph(*arguments))
        self._enter(key, recording, arguments)
        return results

    def _enter(self, key: Any, recording: Any, arguments: list[Any]) -> None:
        arena = Arena() if self._options.one_arena_a_graph else self.arena
        try:
            self.entries[key] = HostGraph(recording, arguments, arena, self._options.outputs)
        except NotReplayable as reason:
            return self._give_up(key, str(reason))
        except OutOfMemory as reason:
            return self._give_up(key, f"no room: {reason}", self.arena.footprint.windows)
        self.arenas.add(arena)
        self.captures += 1
        while len(self.entries) > self._options.limit:
            self.entries.popitem(last=False)
            self.evicted += 1

    def _give_up(self, key: Any, reason: str, windows: int | None = None) -> None:
        if reason not in self.eager:
            _log.warning("a graph runs eagerly, since %s", reason)
        self.eager[reason] += 1
        self.entries[key] = Eager(reason, windows)

    def _move(self, entry: HostGraph, arguments: list[Any]) -> None:
        self.moves += 1
        self.moved_to.append(entry.describe_moves(arguments))
        entry.move(arguments)


class EagerFunction:
    """A graph that needs gradients: it runs as it is, and is counted."""

    def __init__(self, graph: torch.fx.GraphModule, arena: Arena) -> None:
        self._boxed_call = True  # in the object: torch copies what is there to the functions around it
        self._graph = graph
        self.arena = arena
        self.arenas = {arena}
        self.name = "graph with gradients"
        self.entries: dict[Any, Any] = {}
        self.captures = self.replays = self.moves = self.evicted = 0
        self.moved_to: collections.deque[str] = collections.deque(maxlen=8)
        self.eager: collections.Counter[str] = collections.Counter()
        arena.functions.add(self)
        _log.warning("a graph runs eagerly, since %s", _GRADIENTS)

    def __call__(self, boxed: list[Any]) -> list[Any]:
        arguments = list(boxed)
        boxed.clear()
        self.eager[_GRADIENTS] += 1
        return list(self._graph(*arguments))


_GRADIENTS = "its results need gradients; call it under torch.no_grad() for graphs"
