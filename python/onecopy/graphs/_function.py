# SPDX-License-Identifier: Apache-2.0
"""A compiled function, with one graph for each shape that it is called with."""

from __future__ import annotations

import collections
import itertools
import logging
import threading
from collections.abc import Collection, Sequence
from typing import Any

import torch

from .. import _core
from ..errors import OutOfMappings, OutOfMemory
from ._arena import Arena
from ._code import Code, Options
from ._cuda import CudaGraph
from ._cuda_run import CudaRun
from ._eager import CAPTURED, MOVING, NESTED, NEW, Eager
from ._host import HostGraph, HostRun
from ._key import MAX_KEYED_ELEMENTS, Keys
from ._operators import NotReplayable, check_storages
from ._thrash import ThrashDetector

_log = logging.getLogger("onecopy.graphs")


Graph = HostGraph | CudaGraph
Key = tuple[Any, ...]


class Function:
    """The function that torch.compile calls, with the graphs of the shapes that were used most recently (I6).

    The first call of a shape runs eagerly and returns the results of this run, whether the capture that follows
    succeeds or is undone (I5).

    Args:
        code: the code that runs.
        static: the indices of parameters and buffers.
        mutated: the indices of inputs that the function changes.
        options: the options of ``backend()``.
        whole: the indices of inputs whose storage the function reads beyond their elements, as by as_strided().

    Thread safety: any thread may call; calls in one arena run one at a time (I2). A nested call runs eagerly.
    """

    def __init__(
        self,
        code: Code,
        static: set[int],
        mutated: set[int],
        options: Options,
        whole: Collection[int] = (),
    ) -> None:
        self._boxed_call = True  # tells torch to pass one list, which the call empties
        self._code = code
        self._on_card = code.device.type != "cpu"
        self._mutated = mutated
        self._in_place = static | mutated
        self._whole = whole
        self._keys = Keys(static, whole, code.numbers.inputs, self._on_card)
        self._options = options
        self.arena = options.arena_of(code.device)
        self.name = code.name
        self.entries: dict[Key, Graph | Eager] = {}
        self._elsewhere: dict[Key, list[Graph]] = {}
        """Further graphs of a shape, whose inputs in place are at other addresses; the most recently used one last."""
        self._table: Any = None
        """The fast path: graphs that are replayed without Python."""
        self._ticks = itertools.count(1)
        self.captures = self.moves = self.recaptures = self.evicted = 0
        self._replays = 0
        self._thrash = ThrashDetector()
        self.moved_to: collections.deque[str] = collections.deque(maxlen=8)
        """The last moves, in words: which inputs moved to which addresses."""
        self.eager: collections.Counter[str] = collections.Counter()
        self.arenas: set[Arena] = {self.arena}
        self.arena.functions.add(self)

    @property
    def replays(self) -> int:
        """The number of replays of all graphs of the function."""
        return self._replays + (self._table.hits if self._table is not None else 0)

    def __call__(self, boxed: list[Any]) -> list[Any]:
        if getattr(_this_thread, "is_in_call", False):
            arguments = list(boxed)
            boxed.clear()
            return self._run_eagerly(NESTED, arguments)
        if not self._code.numbers:
            return self._replay_or_run(boxed)
        numbers = self._code.numbers.results_of(boxed)
        results = self._replay_or_run(boxed)
        for at, number in numbers.items():
            results[at] = number
        return results

    def _replay_or_run(self, boxed: list[Any]) -> list[Any]:
        if self._table is not None:
            results: list[Any] | None = self._table(boxed)
            if results is not None:
                return results
        arguments = list(boxed)
        boxed.clear()
        with self.arena.lock, self.arena.on_device():
            _this_thread.is_in_call = True
            try:
                return self._call(arguments)
            finally:
                _this_thread.is_in_call = False

    def _call(self, arguments: list[Any]) -> list[Any]:
        if self._on_card and torch.cuda.is_current_stream_capturing():
            return self._run_eagerly(CAPTURED, arguments)
        self.arena.require_resumed()
        key = self._keys.of(arguments)
        entry = self.entries.get(key)
        if isinstance(entry, Eager) and entry.windows is not None and entry.windows != self.arena.footprint.windows:
            entry = None  # the arena may have room now
        if entry is None:
            if len(self.entries) >= self._options.limit and self._would_be_wasted(key, arguments):
                return self._run_eagerly(NEW, arguments)
            return self._first(key, arguments)
        self._use(entry)
        if isinstance(entry, Eager):
            return self._run_eagerly(entry.reason, arguments)
        entry.evacuate()
        if not entry.is_in_place(arguments):
            other = self._at(key, arguments)
            if other is None and self._would_be_wasted(key, arguments):
                return self._run_eagerly(MOVING, arguments)
            entry = self._move(key, entry, other, arguments)
            if isinstance(entry, Eager):
                return self._code.run(arguments)
        self._replays += 1
        entry.replays += 1
        return entry.replay(arguments)

    def _would_be_wasted(self, key: Key, arguments: Sequence[Any]) -> bool:
        """Returns whether a graph captured or moved now would probably not be replayed."""
        if not self._thrash.is_thrashing(self.replays - self.moves):
            return False
        in_place = sorted(self._in_place_of(arguments))
        tensors = (arguments[i] for i in in_place if isinstance(arguments[i], torch.Tensor))
        return not self._thrash.has_come_to_rest((key, tuple(tensor.data_ptr() for tensor in tensors)))

    def _in_place_of(self, arguments: Sequence[Any]) -> set[int]:
        """Returns the indices of the inputs that graphs read where they are."""
        return set(range(len(arguments))) if self._options.inputs == "place" else self._in_place

    def _use(self, entry: Graph | Eager) -> None:
        entry.last_used = self._table.tick() if self._table is not None else next(self._ticks)

    def _run_eagerly(self, reason: str, arguments: list[Any]) -> list[Any]:
        self._count_eager(reason)
        return self._code.run(arguments)

    def _count_eager(self, reason: str) -> None:
        if reason not in self.eager:
            _log.warning("a graph runs eagerly: %s", reason)
        self.eager[reason] += 1

    def _first(self, key: Key, arguments: list[Any]) -> list[Any]:
        in_place = self._in_place_of(arguments)
        arena = Arena(self._code.device) if self._options.one_arena_a_graph else self.arena
        try:
            check_storages(arguments, set(self._whole) - in_place)
            run = self._code.start(arguments, in_place, arena, self._mutated)
        except NotReplayable as reason:
            self._give_up(key, str(reason))
            return self._code.run(arguments)
        self._enter(key, run, arguments, arena)
        results: list[Any] = run.results
        return results

    def _enter(self, key: Key, run: HostRun | CudaRun, arguments: list[Any], arena: Arena) -> None:
        try:
            entry = run.make(arguments, self._options.outputs)
        except NotReplayable as reason:
            self._give_up(key, str(reason))
            return
        except (OutOfMemory, OutOfMappings) as reason:
            self._give_up(key, f"no room: {reason}", self.arena.footprint.windows)
            return
        self.arenas.add(arena)
        self.captures += 1
        self._thrash.note_miss()
        self._enable_fast_path(entry, arguments)
        self._keep(key, entry)

    def _keep(self, key: Key, entry: Graph | Eager) -> None:
        """Adds a shape. Beyond the limit, removes the least recently used shape."""
        self.entries[key] = entry
        self._use(entry)
        while len(self.entries) > self._options.limit:
            self._evict()
            self.arena.collect()

    def _enable_fast_path(self, entry: Graph, arguments: list[Any]) -> None:
        if not entry.is_quick or self._whole:
            return
        if self._table is None:
            keyed = [i for i, a in enumerate(arguments) if self._keys.is_keyed(i, a)]
            self._table = _core._GraphCallTable(str(self._code.device), keyed, MAX_KEYED_ELEMENTS)
        self._table.add(arguments, entry.call)

    def _disable_fast_path(self, entry: Graph | Eager) -> None:
        if self._table is not None and isinstance(entry, CudaGraph) and entry.call is not None:
            self._table.remove(entry.call)

    def _evict(self) -> None:
        key = min(self.entries, key=lambda k: _last_use(self.entries[k]))
        self._disable_fast_path(self._forget(key))
        self.evicted += 1

    def _give_up(self, key: Key, reason: str, windows: int | None = None) -> None:
        """Marks the shape as one that runs eagerly."""
        self._count_eager(reason)
        self._elsewhere.pop(key, None)
        self._keep(key, Eager(reason, windows))

    def _at(self, key: Key, arguments: Sequence[Any]) -> Graph | None:
        """Returns the graph of the shape that was captured for inputs at these addresses, if there is one."""
        return next((graph for graph in self._elsewhere.get(key, ()) if graph.is_in_place(arguments)), None)

    def _move(self, key: Key, entry: Graph, other: Graph | None, arguments: list[Any]) -> Graph | Eager:
        """Serves the shape by another graph, for inputs at these addresses.

        Returns `other`, which was captured for them, or a graph that is captured now, or an Eager if none can be.
        """
        self.moves += 1
        moves = entry.describe_moves(arguments)
        self._disable_fast_path(entry)
        try:
            moved = self._swap(key, entry, other) if other is not None else self._recapture(key, entry, arguments)
            self.entries[key] = moved
            self._enable_fast_path(moved, arguments)
            self._use(moved)
            self.moved_to.append(moves)
        except NotReplayable as reason:
            self._give_up(key, str(reason))
        except (OutOfMemory, OutOfMappings) as reason:
            self._give_up(key, f"no room: {reason}", self.arena.footprint.windows)
        except Exception:
            self._forget(key)
            raise
        return self.entries[key]

    def _swap(self, key: Key, entry: Graph, other: Graph) -> Graph:
        """Keeps the graph for the addresses it has, and returns the other one."""
        others = self._elsewhere[key]
        others.remove(other)
        others.append(entry)
        other.evacuate()
        return other

    def _recapture(self, key: Key, entry: Graph, arguments: list[Any]) -> Graph:
        """Captures another graph of the shape while there are few, or else moves the one that was used longest ago."""
        self._thrash.note_miss()
        self.recaptures += self._on_card
        others = self._elsewhere.setdefault(key, [])
        if isinstance(entry, CudaGraph) and len(others) < _MAX_PLACES - 1:
            other = entry.again(arguments)
            if other is not None:
                others.append(entry)
                return other
        if others:
            others.append(entry)
            entry = others.pop(0)
        entry.move(arguments)
        return entry

    def _forget(self, key: Key) -> Graph | Eager:
        self._elsewhere.pop(key, None)
        return self.entries.pop(key)

    def forget_graphs(self) -> object:
        """Removes all graphs in a forked child, and returns them so that the caller can keep them alive."""
        had = self.entries, self._elsewhere, self._table
        self.entries, self._elsewhere, self._table = {}, {}, None
        return had


def _last_use(entry: Graph | Eager) -> int:
    call = entry.call if isinstance(entry, CudaGraph) else None
    return max(int(entry.last_used), int(call.last_used) if call is not None else 0)


_this_thread = threading.local()
"""``is_in_call``: whether this thread is inside a call of a Function."""
_MAX_PLACES = 4
"""The max number of graphs of a shape, for inputs in place at as many addresses; caches that take turns need two."""
