# SPDX-License-Identifier: Apache-2.0
"""Serves torch's CUDA allocator from the pages of an arena."""

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
    """Returns torch's object for the extension's allocator, which is never destroyed and so outlives all segments
    (I7)."""
    return torch.cuda.memory.CUDAPluggableAllocator(_core.__file__, "onecopy_graph_allocate", "onecopy_graph_free")


class CapturePool:
    """A pool of torch whose memory lies in a window of an arena.

    The window lives until torch has freed its last segment, even if this object is destroyed earlier (I7).

    Thread safety: the caller holds the arena's lock.

    Args:
        window: a ``_core._GraphPool``.
    """

    def __init__(self, window: Any) -> None:
        self.window = window
        with torch.cuda.device(window.ordinal):  # torch makes a pool on the current device
            self._pool = torch.cuda.MemPool(_allocator().allocator())
        # The reference is leaked: the destructor aborts the process during any capture, and after a failed one.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._pool))
        self._is_open_to_torch = True

    @property
    def id(self) -> tuple[int, int]:
        """The id by which torch names the pool."""
        return self._pool.id

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Serves torch's allocations in this pool from the window, in the block.

        Only one pool of a device can be open: other threads wait. Raises InvalidArgument if this thread has opened one.
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
        """Serves all of this thread's allocations on the device from the window, in the block."""
        with self.open(), torch.cuda.use_mem_pool(self._pool, self.window.ordinal):
            yield

    def alive(self) -> list[tuple[int, int]]:
        """Returns the addresses and sizes in bytes of the live ranges."""
        return [
            (block["address"], block["size"])
            for segment in segments_of(self.id)
            for block in segment["blocks"]
            if block["state"] != "inactive"
        ]

    def keep_alive(self) -> None:
        """Maps the ranges alive after a capture to pages of their own, which are undefined then (I1)."""
        alive = self.alive()
        if alive:
            self.window.keep_alive(alive)

    def bytes_at(self, address: int, nbytes: int) -> torch.Tensor:
        """Returns a tensor of bytes in the window, which keeps the window alive."""
        view: torch.Tensor = _core._graph_bytes(self.window, address, nbytes)
        return view

    def abandon(self) -> None:
        """Ends torch's use of the pool after a failed capture."""
        torch._C._cuda_endAllocateToPool(self.window.ordinal, self.id)
        torch._C._cuda_releasePool(self.window.ordinal, self.id)

    def close(self) -> None:
        """Returns the shared pages at once. torch returns the addresses when it empties its caches.

        REQUIRES: the caller has reset the graph, and has waited for its last replay.
        """
        if self._is_open_to_torch:
            self._is_open_to_torch = False
            torch._C._cuda_releasePool(self.window.ordinal, self.id)
            self.window.retire()


@functools.cache
def captures_of(ordinal: int) -> threading.RLock:
    """Returns the lock that serializes first runs and captures on a card.

    A capture changes torch's current pool and random generator of the card.
    """
    return threading.RLock()


def _clear_workspaces() -> None:
    """Clears cuBLAS's table of workspaces, so that each capture allocates them as scratch memory."""
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if clear is not None:  # otherwise workspaces count as alive, and use unshared memory in each window
        clear()


def segments_of(pool: tuple[int, int]) -> Any:
    """Returns torch's segments of a pool, by its id."""
    if _a_look_drops_a_reference():
        for number in pool:
            _keep(number)
    return _look_at(pool)


@functools.cache
def _a_look_drops_a_reference() -> bool:
    """Returns whether torch's query of a pool drops one reference too many to each number of the pool's id.

    PyTorch's pull request 196366 fixes this. Python never frees numbers below 257; larger ones would be freed while in
    use, and a later line would crash.
    """
    number = int("1000000007")  # neither a pool nor other code uses this number
    before = sys.getrefcount(number)
    _keep(number)
    _look_at((0, number))
    return sys.getrefcount(number) == before


def _keep(number: int) -> None:
    """Adds the reference that torch drops too often."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(number))


def _look_at(pool: tuple[int, int]) -> Any:
    try:
        return torch.cuda.memory_snapshot(pool, include_traces=False)
    except TypeError:  # torch 2.8
        return torch.cuda.memory_snapshot(pool)
