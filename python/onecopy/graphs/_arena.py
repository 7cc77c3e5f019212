# SPDX-License-Identifier: Apache-2.0
"""The arena: the scratch memory that captured graphs share.

A *window* is a range of addresses, one for each graph, mapped to the shared pages of the arena. Comments of the package
name its invariants:

- I1: between replays the shared pages hold no value that anybody may read.
- I2: replays and captures of one arena never overlap, on threads or on the device.
- I3: a graph is replayed only after all inputs in place were compared with the graph's, in the same call.
- I5: a capture succeeds whole or leaves nothing behind.
- I6: keys are compared in full, and only the least recently used graphs are removed, after their last replay.
- I7: torch's pool and allocator, and the window, live until their last segment was freed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch

from .. import _core
from ..errors import InvalidArgument, OutOfMappings, Unsupported
from ._arena_lock import ArenaLock
from ._captures import KEEPS_GRAPHS, close_dropped
from ._leases import Leases, OutputInUse


class Arena:
    """The scratch memory of graphs on one device, as large as the largest graph needs.

    Graphs of one arena run one at a time. Thread safety: any thread may call any method.

    Args:
        device: ``"cpu"`` or a CUDA device; None for the device of the first graph.
        limit: the maximum of bytes that graphs share; a shape that needs more runs eagerly, which ``report()`` counts.
    """

    def __init__(self, device: Any = None, limit: int | None = None) -> None:
        if limit is not None and limit <= 0:
            raise InvalidArgument(f"limit is {limit} bytes; give a number above 0, or None for no limit")
        self.limit = limit
        self.lock: ArenaLock = ArenaLock()
        self.functions: weakref.WeakSet[Any] = weakref.WeakSet()
        self.leases: Leases = Leases(self.lock)
        self.copies_in_graphs: bool = False
        """Whether copies of inputs and outputs are nodes of graphs."""
        self.device: torch.device | None = None
        self._memory: Any = None
        if device is not None:
            self.bind(device)
        _arenas.add(self)

    def bind(self, device: Any) -> None:
        """Sets the device of the arena. A second call with the same device has no effect.

        Raises:
            InvalidArgument: the arena is on another device.
            Unsupported: graphs do not run on this device, or the process was forked from one that had used CUDA.
        """
        if torch.device(device).type == "cuda" and torch.cuda._is_in_bad_fork():
            raise Unsupported(
                "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the "
                "'spawn' start method"
            )
        device = _with_index(torch.device(device))
        with self.lock:
            if self.device is None:
                self._memory = _core._GraphArena(str(device), self.limit)
                self.device = device
                if device.type == "cuda":
                    self._prepare_captures(device)
            elif self.device != device:
                raise InvalidArgument(
                    f"the arena is on {self.device}, and this graph on {device}; give each device an arena of its own"
                )

    def _prepare_captures(self, device: torch.device) -> None:
        from ..device.captures import watch

        watch()  # releasing pinned memory during a capture would invalidate the capture
        with torch.cuda.device(device):
            self.stream: Any = torch.cuda.Stream()
        self.lock.core.bind(str(device))
        self.copies_in_graphs = KEEPS_GRAPHS and _core._prepare_graphs(str(device))

    def copy_nodes(self, memory: list[tuple[int, int]]) -> list[int]:
        """Adds copies to or from these addresses, of these sizes in bytes, to the active capture. Returns their
        nodes."""
        return list(_core._graph_copies(str(self.device), torch.cuda.current_stream(self.device).cuda_stream, memory))

    def open(self, nbytes: int) -> Any:
        """Returns a window for one capture on the CPU. Raises OutOfMemory; InvalidArgument while parked."""
        return self._memory.open(max(nbytes, 1))

    def open_pool(self) -> Any:
        """Returns a memory pool of torch in a new window, for one capture on a card.

        Raises OutOfMappings; InvalidArgument while parked.
        """
        from ._pool import CapturePool, captures_of

        assert self.device is not None
        total = torch.cuda.get_device_properties(self.device).total_memory
        window_bytes = min(self.limit or total, total)
        try:
            window = _core._GraphPool(self._memory, window_bytes)
        except OutOfMappings:
            with captures_of(self.device.index):
                torch.cuda.empty_cache()  # torch returns the addresses of destroyed captures only then
            window = _core._GraphPool(self._memory, window_bytes)
        return CapturePool(window)

    def collect(self) -> None:
        """Frees the memory of unreferenced graphs."""
        if self.device is not None and self.device.type == "cuda":
            close_dropped()

    def on_device(self) -> contextlib.AbstractContextManager[Any]:
        """Makes the arena's card torch's current device in the block."""
        if self.device is None or self.device.type == "cpu":
            return contextlib.nullcontext()
        return torch.cuda.device(self.device)

    @property
    def footprint(self) -> Any:
        """The size of the arena: ``shared`` bytes of memory, ``mapped`` bytes of addresses, ``windows``; ``parked``."""
        return self._memory.footprint() if self._memory is not None else _NOTHING

    def park(self) -> None:
        """Returns the memory to the system. Graphs keep their addresses, and calls fail until ``resume()``.

        Raises:
            OutputInUse: the program still holds an output that lies in the arena.
        """
        with self.lock, self.on_device():
            self.collect()
            self.leases.evacuate()
            if self.device is not None and self.device.type == "cuda":
                self.lock.wait()
            if self._memory is not None:
                self.lock.core.set_running(False)
                self._memory.park()

    def resume(self) -> None:
        """Allocates the memory again after ``park()``. Raises OutOfMemory; then the arena stays parked."""
        with self.lock, self.on_device():
            if self._memory is not None:
                self._memory.resume()
                self.lock.core.set_running(True)

    def require_resumed(self) -> None:
        """Raises InvalidArgument while parked."""
        if self.footprint.parked:
            raise InvalidArgument("the arena is parked; resume() it before its graphs run")

    def try_close(self, *closing: Callable[[], object]) -> bool:
        """Closes the parts of an unreferenced graph after its last replay.

        Returns False, and closes nothing, while the arena is in use or the program holds an output in it.
        """
        if not self.lock.acquire(blocking=False):
            return False
        try:
            with self.on_device():
                self.leases.evacuate()
                self.lock.wait()
                for close in closing:
                    close()
        except OutputInUse:
            return False
        finally:
            self.lock.release()
        return True

    def _start_over(self) -> None:
        """Gives the arena new memory in a forked child, since the child shares the old memory with its parent.

        The old memory is not freed: another thread of the parent may have held its locks at the fork.
        """
        if self.device is None or self.device.type != "cpu":
            return
        is_parked = self.footprint.parked
        _of_the_parent.append((self._memory, self.lock))
        self.lock = ArenaLock()
        self.leases = Leases(self.lock)
        self._memory = _core._GraphArena(str(self.device), self.limit)
        if is_parked:
            self.park()
        for function in self.functions:
            _of_the_parent.append(function.forget_graphs())


_arenas: weakref.WeakSet[Arena] = weakref.WeakSet()
_of_the_parent: list[Any] = []


def _start_over_in_the_child() -> None:
    for arena in list(_arenas):
        arena._start_over()


os.register_at_fork(after_in_child=_start_over_in_the_child)


class Arenas:
    """A set of arenas, one for each device, made on demand. Thread safety: any thread may call any method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._arenas: dict[torch.device, Arena] = {}

    def of(self, device: Any) -> Arena:
        """Returns the arena of the device. Raises Unsupported if graphs do not run on the device."""
        device = _with_index(torch.device(device))
        with self._lock:
            if device not in self._arenas:
                self._arenas[device] = Arena(device)
            return self._arenas[device]


def _with_index(device: torch.device) -> torch.device:
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        raise Unsupported(
            f"graphs run on the CPU and on CUDA devices, and this one is on {device}; run it eagerly, or use "
            'torch.compile(mode="reduce-overhead")'
        )
    return device if device.index is not None else torch.device("cuda", torch.cuda.current_device())


@dataclasses.dataclass(frozen=True)
class _Footprint:
    """The footprint of an arena without graphs."""

    shared: int = 0
    own: int = 0
    mapped: int = 0
    windows: int = 0
    mappings: int = 0
    parked: bool = False
    aliases: bool = True


_NOTHING = _Footprint()
