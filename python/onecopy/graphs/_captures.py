# SPDX-License-Identifier: Apache-2.0
"""How a capture of torch begins, ends and goes, in memory of an arena."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Protocol

import torch

KEEPS_GRAPHS = hasattr(torch.cuda.CUDAGraph, "raw_cuda_graph_exec")
"""Whether torch leaves a captured graph and what runs it to others."""


def new_graph() -> torch.cuda.CUDAGraph:
    """A graph whose nodes can be changed later, if torch has such."""
    return torch.cuda.CUDAGraph(keep_graph=True) if KEEPS_GRAPHS else torch.cuda.CUDAGraph()


class _Collector:
    """The switch of Python's garbage collector, which may free objects that must not be freed in a capture. The last of
    several captures to end switches it on again."""

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
    """The pool of a capture, see CapturePool."""

    @property
    def id(self) -> tuple[int, int]: ...

    def open(self) -> contextlib.AbstractContextManager[None]: ...

    def abandon(self) -> None: ...

    def close(self) -> None: ...


@contextlib.contextmanager
def recording(graph: torch.cuda.CUDAGraph, pool: Pool, stream: torch.cuda.Stream) -> Iterator[None]:
    """The block's work is captured on the stream, and its memory is the pool's."""
    here = torch.cuda.current_stream(stream.device)
    stream.wait_stream(here)
    with collector.paused(), pool.open(), torch.cuda.stream(stream):
        begin_capture(graph, pool, "thread_local")
        try:
            yield
        except BaseException:
            with contextlib.suppress(RuntimeError):  # it says once more that the capture has failed
                end_capture(graph, pool)
            raise
        end_capture(graph, pool)
    here.wait_stream(stream)


_failed: list[torch.cuda.CUDAGraph] = []
"""torch's allocator of pinned memory goes on asking a graph whose capture failed; so they are kept."""


def begin_capture(graph: torch.cuda.CUDAGraph, pool: Pool, mode: str) -> None:
    """Begins a capture on the current stream. REQUIRES: the pool is open."""
    graph.capture_begin(pool=pool.id, capture_error_mode=mode)


def end_capture(graph: torch.cuda.CUDAGraph, pool: Pool) -> None:
    """Raises RuntimeError when the capture has failed. Then torch leaves its pool as in a capture: that is ended
    here.
    """
    try:
        graph.capture_end()
    except RuntimeError:
        _failed.append(graph)
        pool.abandon()
        raise


def drop(graph: torch.cuda.CUDAGraph, pool: Pool) -> None:
    """Drops the graph at once. REQUIRES: the caller has waited for its last replay."""
    graph.reset()
    pool.close()


_dropped: list[Callable[[], bool]] = []
"""What gives the memory back of graphs that nobody has any more."""


def drop_later(close: Callable[[], bool]) -> None:
    """Notes a graph that nobody references. ``close`` gives its memory back, and returns whether it could.

    The caller may hold any lock, and any graph may be in a capture.
    """
    _dropped.append(close)


def close_dropped() -> None:
    """Gives back the memory of graphs that have gone. That of an arena in use, or with outputs in use, is for later."""
    if torch.cuda.is_current_stream_capturing():
        return
    for _ in range(len(_dropped)):
        close = _dropped.pop(0)
        if not close():
            _dropped.append(close)


def first_line(error: BaseException) -> str:
    """Returns the first line of the exception's message."""
    return str(error).partition("\n")[0]
