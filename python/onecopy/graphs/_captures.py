# SPDX-License-Identifier: Apache-2.0
"""Begins, ends and destroys torch's captures in memory of an arena."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Protocol

import torch

KEEPS_GRAPHS = hasattr(torch.cuda.CUDAGraph, "raw_cuda_graph_exec")
"""Whether torch gives access to a captured graph and to its executable."""


def new_graph() -> torch.cuda.CUDAGraph:
    """Returns a new graph, whose nodes can be changed later if torch supports it."""
    return torch.cuda.CUDAGraph(keep_graph=True) if KEEPS_GRAPHS else torch.cuda.CUDAGraph()


class _Collector:
    """Disables Python's garbage collector during captures, since it may free objects that a capture must not free.

    The collector is enabled again when the last of several captures ends. Thread safety: any thread may call it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._captures = 0
        self._was_enabled = False

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        with self._lock:
            if self._captures == 0:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._captures += 1
        try:
            yield
        finally:
            with self._lock:
                self._captures -= 1
                if self._captures == 0 and self._was_enabled:
                    gc.enable()


collector = _Collector()


class Pool(Protocol):
    """The memory pool of a capture; see CapturePool."""

    @property
    def id(self) -> tuple[int, int]: ...

    def open(self) -> contextlib.AbstractContextManager[None]: ...

    def abandon(self) -> None: ...

    def close(self) -> None: ...


@contextlib.contextmanager
def recording(graph: torch.cuda.CUDAGraph, pool: Pool, stream: torch.cuda.Stream) -> Iterator[None]:
    """Captures the block's work on the stream, with memory of the pool."""
    here = torch.cuda.current_stream(stream.device)
    stream.wait_stream(here)
    with capturing(graph, pool, stream, "thread_local"):
        yield
    here.wait_stream(stream)


_failed: list[torch.cuda.CUDAGraph] = []
"""Graphs whose capture failed. They are kept, since torch's allocator of pinned memory still uses them."""


@contextlib.contextmanager
def capturing(graph: torch.cuda.CUDAGraph, pool: Pool, stream: torch.cuda.Stream, mode: str) -> Iterator[None]:
    """Captures the block's work on the stream, which no other stream's work is ordered with."""
    with collector.paused(), pool.open(), torch.cuda.stream(stream):
        graph.capture_begin(pool=pool.id, capture_error_mode=mode)
        try:
            yield
        except BaseException:
            with contextlib.suppress(RuntimeError):  # only repeats that the capture has failed
                _end(graph, pool)
            raise
        _end(graph, pool)


def _end(graph: torch.cuda.CUDAGraph, pool: Pool) -> None:
    """Ends a capture. Raises RuntimeError if the capture has failed; then torch's use of the pool is ended, too."""
    try:
        graph.capture_end()
    except RuntimeError:
        _failed.append(graph)
        pool.abandon()
        raise


def drop(graph: torch.cuda.CUDAGraph, pool: Pool) -> None:
    """Destroys the graph at once. REQUIRES: the caller has waited for its last replay."""
    graph.reset()
    pool.close()


_dropped: list[Callable[[], bool]] = []
"""Functions that return the memory of unreferenced graphs."""


def drop_later(close: Callable[[], bool]) -> None:
    """Registers ``close``, which returns the memory of an unreferenced graph, or returns False to be tried again.

    The caller may hold any lock, and a capture may be active.
    """
    _dropped.append(close)


def close_dropped() -> None:
    """Frees the memory of unreferenced graphs. A graph whose arena or outputs are in use is tried again later."""
    if torch.cuda.is_current_stream_capturing():
        return
    for _ in range(len(_dropped)):
        close = _dropped.pop(0)
        if not close():
            _dropped.append(close)


def first_line(error: BaseException) -> str:
    """Returns the first line of the exception's message."""
    return str(error).partition("\n")[0]
