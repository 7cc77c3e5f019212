# SPDX-License-Identifier: Apache-2.0
"""The pages of an arena behind torch's CUDA allocator."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
import threading
from collections.abc import Iterator
from typing import Any

import torch

from .. import _core


@functools.cache
def _allocator() -> Any:
    """Returns torch's view of the extension's allocator: one for the process, which outlives all segments (I7)."""
    return torch.cuda.memory.CUDAPluggableAllocator(_core.__file__, "onecopy_graph_allocate", "onecopy_graph_free")


class CapturePool:
    """A pool of torch whose memory lies in a window of an arena.

    The window lasts until torch has given back its last segment, also if this object has gone before (I7).

    Thread safety: with the arena's lock.

    Args:
        window: a ``_core._GraphPool``.
    """

    def __init__(self, window: Any) -> None:
        self.window = window
        with torch.cuda.device(window.ordinal):  # torch makes a pool on the current device
            self._pool = torch.cuda.MemPool(_allocator().allocator())
        # Its destructor ends the process while any capture is under way, and after one that failed: it never runs.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._pool))
        self._is_open_to_torch = True

    @property
    def id(self) -> tuple[int, int]:
        """Returns torch's name of the pool."""
        return self._pool.id

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Opens the pool: torch's allocations in it come from the window.

        One pool of a device is open at a time: other threads wait. Raises InvalidArgument if this thread has one open.
        """
        with captures_of(self.window.ordinal), torch.cuda.device(self.window.ordinal):
            self.window.open()
            _clear_workspaces()
            try:
                yield
            finally:
                _clear_workspaces()
                self.window.close()

    @contextlib.contextmanager
    def use(self) -> Iterator[None]:
        """This thread's allocations come from the window."""
        with self.open(), torch.cuda.use_mem_pool(self._pool, self.window.ordinal):
            yield

    def alive(self) -> list[tuple[int, int]]:
        """Addresses and bytes of the live ranges."""
        return [
            (block["address"], block["size"])
            for segment in segments_of(self.id)
            for block in segment["blocks"]
            if block["state"] != "inactive"
        ]

    def keep_alive(self) -> None:
        """Ranges alive after a capture get memory of their own, which no other window shows (I1)."""
        alive = self.alive()
        if alive:
            self.window.keep_alive(alive)

    def bytes_at(self, address: int, nbytes: int) -> torch.Tensor:
        """A view that keeps the window."""
        view: torch.Tensor = _core._graph_bytes(self.window, address, nbytes)
        return view

    def abandon(self) -> None:
        """Ends the state that torch keeps if a capture has failed."""
        torch._C._cuda_endAllocateToPool(self.window.ordinal, self.id)
        torch._C._cuda_releasePool(self.window.ordinal, self.id)

    def close(self) -> None:
        """Gives the shared pages back, at once; torch gives the addresses back when it empties its caches.

        The caller has reset the graph, and has waited for its last replay.
        """
        if self._is_open_to_torch:
            self._is_open_to_torch = False
            torch._C._cuda_releasePool(self.window.ordinal, self.id)
            self.window.retire()


@functools.cache
def captures_of(ordinal: int) -> threading.RLock:
    """Returns the lock of a card for first runs and captures: one thread at a time does either.

    torch has one pool and one generator of random numbers for each card, and a capture changes both.
    """
    return threading.RLock()


def _clear_workspaces() -> None:
    """Clears cuBLAS's table of workspaces, so that they are scratch memory of each capture."""
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if clear is not None:  # without it they count as alive, and have memory of their own in each window
        clear()


def segments_of(pool: tuple[int, int]) -> Any:
    """Returns torch's segments of a pool, by its name."""
    if _a_look_drops_a_reference():
        for number in pool:
            _keep(number)
    return _look_at(pool)


@functools.cache
def _a_look_drops_a_reference() -> bool:
    """Returns whether torch, asked for a pool, drops one reference too many to each number of its name.

    That is PyTorch's pull request 196366. Python keeps small numbers for ever; those from 257 on would end early, and
    some later line would crash.
    """
    number = int("1000000007")  # of no pool, and of no other code
    before = sys.getrefcount(number)
    _keep(number)
    _look_at((0, number))
    return sys.getrefcount(number) == before


def _keep(number: int) -> None:
    """Keeps the number for ever, minus a reference that torch drops."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(number))


def _look_at(pool: tuple[int, int]) -> Any:
    try:
        return torch.cuda.memory_snapshot(pool, include_traces=False)
    except TypeError:  # torch 2.8
        return torch.cuda.memory_snapshot(pool)
