# SPDX-License-Identifier: Apache-2.0
"""A compiled function: one graph for each shape that it is called with."""

from __future__ import annotations

import collections
import functools
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from .. import _core
from ..errors import InvalidArgument, OutOfMappings, OutOfMemory
from ._arena import Arena, Arenas
from ._host import HostRun
from ._record import NotReplayable

_log = logging.getLogger("onecopy.graphs")

INPUTS = ("copy", "place")
OUTPUTS = ("copy", "view", "private")
FEW = 8
"""Elements of a CPU tensor that are compared by value, where a graph runs on a card."""

Boxed = Callable[[list[Any]], list[Any]]
"""Takes one list, which it may empty."""


class Options:
    """The options of ``backend()``, checked."""

    def __init__(
        self, arena: Arena | Arenas | None, inputs: str, outputs: str, limit: int, one_arena_a_graph: bool
    ) -> None:
        if inputs not in INPUTS:
            raise InvalidArgument(f"inputs is {inputs!r}; it is one of {', '.join(INPUTS)}")
        if outputs not in OUTPUTS:
            raise InvalidArgument(f"outputs is {outputs!r}; it is one of {', '.join(OUTPUTS)}")
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise InvalidArgument(f"limit is {limit!r}; it counts graphs of one function and is at least 1")
        self._arena = arena if arena is not None else Arenas()
        self.inputs = inputs
        self.outputs = outputs
        self.limit = limit
        self.one_arena_a_graph = one_arena_a_graph

    def arena_of(self, device: torch.device) -> Arena:
        """Raises InvalidArgument when the arena that was given is on another device, Unsupported."""
        if isinstance(self._arena, Arenas):
            return self._arena.of(device)
        self._arena.bind(device)
        return self._arena


class Code:
    """The code of a function, and the way to capture a graph of it: on the CPU from torch's graph, on a card from
    the device.

    ``start(arguments, in_place, arena, mutated)`` runs it once by the book. In its result, ``results`` are the
    caller's and ``make(arguments, outputs)`` is the graph. If there can be no graph, it raises NotReplayable before
    anything has run.
    """

    def __init__(self, name: str, device: torch.device, run: Boxed, start: Callable[..., Any]) -> None:
        self.name = name
        self.device = device
        self.run = run
        self.start = start


def host_code(graph: torch.fx.GraphModule) -> Code:
    """Returns the code of a graph on the CPU: torch's operators one by one."""
    return Code(
        _name_of(graph), torch.device("cpu"), lambda boxed: list(graph(*boxed)), functools.partial(HostRun, graph)
    )


def cuda_code(graph: torch.fx.GraphModule, device: torch.device, run: Boxed | None = None) -> Code:
    """Returns the code of a graph on a card. ``run`` is its compiled code; None: its operators one by one."""
    from ._cuda import CudaRun

    if run is None:
        graph.graph.set_codegen(torch.fx.graph._BoxedCodeGen())  # it lets go of inputs that it needs no more
        graph.recompile()
        run = lambda boxed: list(graph(boxed))  # noqa: E731
    return Code(_name_of(graph), device, run, functools.partial(CudaRun, run))


def _name_of(graph: torch.fx.GraphModule) -> str:
    return getattr(graph, "_get_name", lambda: "graph")()


class Eager:
    """A shape that is not replayed, and why."""

    def __init__(self, reason: str, windows: int | None = None) -> None:
        self.reason = reason
        self.last_used = self.replays = 0
        self.windows = windows
        """Of the arena, when it had no room: with others it may have."""


class Function:
    """The function that torch.compile calls. Keys are compared in full; of many shapes those used last are kept (I6).

    A capture commits whole or leaves no trace: the first call of a shape runs by the book, and its results are the
    caller's either way (I5).

    Thread safety: calls run one at a time in an arena (I2).
    """

    def __init__(self, code: Code, static: set[int], mutated: set[int], options: Options) -> None:
        self._boxed_call = True  # torch's word: it takes one list, and empties it
        self._code = code
        self._on_card = code.device.type != "cpu"
        self._static = static
        self._mutated = mutated
        self._options = options
        self.arena = options.arena_of(code.device)
        self.name = code.name
        self.entries: dict[Any, Any] = {}
        self._table: Any = None
        """Of graphs that are replayed without Python."""
        self._ticks = itertools.count(1)
        self.captures = self.moves = self.recaptures = self.evicted = 0
        self._replays = 0
        self._in_vain = self._skipped = 0
        """Graphs in a row that were dropped and had never been replayed."""
        self.moved_to: collections.deque[str] = collections.deque(maxlen=8)
        """The last moves: which inputs, to which addresses."""
        self.eager: collections.Counter[str] = collections.Counter()
        self.arenas: set[Arena] = {self.arena}
        self.arena.functions.add(self)

    @property
    def replays(self) -> int:
        """Returns the replays of all its graphs."""
        return self._replays + (self._table.hits if self._table is not None else 0)

    def __call__(self, boxed: list[Any]) -> list[Any]:
        if self._table is not None:
            results = self._table(boxed)
            if results is not None:
                return results
        arguments = list(boxed)
        boxed.clear()
        with self.arena.lock:
            return self._call(arguments)

    def _call(self, arguments: list[Any]) -> list[Any]:
        if self._on_card and torch.cuda.is_current_stream_capturing():
            return self._run_eagerly(_CAPTURED, arguments)
        self.arena.require_resumed()
        key = self._key(arguments)
        entry = self.entries.get(key)
        if isinstance(entry, Eager) and entry.windows is not None and entry.windows != self.arena.footprint.windows:
            entry = None  # there may be room by now
        if entry is None:
            if self._is_in_vain():
                return self._run_eagerly(_NEW, arguments)
            return self._first(key, arguments)
        self._use(entry)
        if isinstance(entry, Eager):
            return self._run_eagerly(entry.reason, arguments)
        if not entry.is_in_place(arguments):
            if entry.is_restless(arguments):
                return self._run_eagerly(_RESTLESS, arguments)
            entry = self._moved(key, entry, arguments)
            if isinstance(entry, Eager):
                return self._code.run(arguments)
        self._replays += 1
        entry.replays += 1
        return entry.replay(arguments)

    def _is_in_vain(self) -> bool:
        """Returns whether another key would only replace a similar one. Now and then one is tried."""
        if self._in_vain < max(self._options.limit, _MOST_IN_VAIN):
            return False
        self._skipped += 1
        return self._skipped % _TRIED_AGAIN != 0

    def _use(self, entry: Any) -> None:
        entry.last_used = self._table.tick() if self._table is not None else next(self._ticks)

    def _run_eagerly(self, reason: str, arguments: list[Any]) -> list[Any]:
        if reason not in self.eager:
            _log.warning("a graph runs eagerly, since %s", reason)
        self.eager[reason] += 1
        return self._code.run(arguments)

    def _key(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        on_card = self._on_card
        return tuple(
            (a.dtype, a.shape, a.stride(), _content(a) if on_card else None)
            if isinstance(a, torch.Tensor)
            else (type(a), a)
            for index, a in enumerate(arguments)
            if index not in self._static or (on_card and _is_on_cpu(a))
        )

    def _first(self, key: Any, arguments: list[Any]) -> list[Any]:
        in_place = self._static | self._mutated
        if self._options.inputs == "place":
            in_place = set(range(len(arguments)))
        arena = Arena(self._code.device) if self._options.one_arena_a_graph else self.arena
        try:
            run = self._code.start(arguments, in_place, arena, self._mutated)
        except NotReplayable as reason:
            self._give_up(key, str(reason))
            return self._code.run(arguments)
        self._enter(key, run, arguments, arena)
        return run.results

    def _enter(self, key: Any, run: Any, arguments: list[Any], arena: Arena) -> None:
        try:
            self.entries[key] = run.make(arguments, self._options.outputs)
        except NotReplayable as reason:
            self._give_up(key, str(reason))
            return
        except (OutOfMemory, OutOfMappings) as reason:
            self._give_up(key, f"no room: {reason}", self.arena.footprint.windows)
            return
        self.arenas.add(arena)
        self.captures += 1
        entry = self.entries[key]
        self._quicken(entry, arguments)
        self._use(entry)
        while len(self.entries) > self._options.limit:
            self._evict()
            self.arena.collect()

    def _quicken(self, entry: Any, arguments: list[Any]) -> None:
        """Lets it be replayed without Python, where it can be."""
        if not getattr(entry, "is_quick", False):
            return
        if self._table is None:
            keyed = [i for i, a in enumerate(arguments) if i not in self._static or _is_on_cpu(a)]
            self._table = _core._GraphCallTable(str(self._code.device), keyed, FEW)
        self._table.add(arguments, entry.call)

    def _slow(self, entry: Any) -> None:
        """The reverse. The entry knows then when it was used last."""
        call = getattr(entry, "call", None)
        if self._table is not None and call is not None:
            self._table.remove(call)

    def _evict(self) -> None:
        key = min(self.entries, key=lambda k: _last_use(self.entries[k]))
        entry = self.entries.pop(key)
        self._slow(entry)
        self._in_vain = 0 if _was_replayed(entry) else self._in_vain + 1
        self.evicted += 1

    def _give_up(self, key: Any, reason: str, windows: int | None = None) -> None:
        """This call is the first that runs eagerly for this reason."""
        if reason not in self.eager:
            _log.warning("a graph runs eagerly, since %s", reason)
        self.eager[reason] += 1
        self.entries[key] = Eager(reason, windows)

    def _moved(self, key: Any, entry: Any, arguments: list[Any]) -> Any:
        """The graph for inputs at these places, or why there is none."""
        self.moves += 1
        moves = entry.describe_moves(arguments)
        self._slow(entry)
        try:
            entry.move(arguments)
            self._quicken(entry, arguments)
            self.recaptures += self._on_card
            self.moved_to.append(moves)
        except NotReplayable as reason:
            self._give_up(key, str(reason))
        except (OutOfMemory, OutOfMappings) as reason:
            self._give_up(key, f"no room: {reason}", self.arena.footprint.windows)
        return self.entries[key]


def _last_use(entry: Any) -> int:
    call = getattr(entry, "call", None)
    return max(int(entry.last_used), int(call.last_used) if call is not None else 0)


def _was_replayed(entry: Any) -> bool:
    call = getattr(entry, "call", None)
    return bool(entry.replays or (call is not None and call.runs))


def _is_on_cpu(argument: Any) -> bool:
    return isinstance(argument, torch.Tensor) and argument.device.type == "cpu"


def _content(tensor: torch.Tensor) -> tuple[Any, ...] | None:
    """A capture on a card bakes in the content of small tensors on the CPU."""
    if tensor.device.type != "cpu" or tensor.numel() > FEW:
        return None
    return tuple(tensor.flatten().tolist())


_MOST_IN_VAIN = 16
_TRIED_AGAIN = 64
_NEW = (
    "nearly every call has sizes, or numbers in tensors of the CPU, that have not been there before; "
    "pad sizes, and give numbers that change as tensors of the device"
)
_CAPTURED = "it was called while another graph was captured"
_GRADIENTS = "its results need gradients; call it under torch.no_grad() for graphs"
_RESTLESS = "its inputs in place move at nearly every call; keep them where they are"


class EagerFunction:
    """A graph that is not captured, for one reason: it runs as it is, and is counted."""

    def __init__(self, run: Boxed, arena: Arena, reason: str = _GRADIENTS) -> None:
        self._boxed_call = True  # in the object: torch copies what is there to the functions around it
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
        _log.warning("a graph runs eagerly, since %s", reason)

    def __call__(self, boxed: list[Any]) -> list[Any]:
        arguments = list(boxed)
        boxed.clear()
        self.eager[self._reason] += 1
        return self._run(arguments)
