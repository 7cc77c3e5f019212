# SPDX-License-Identifier: Apache-2.0
"""How a capture of torch begins, ends and goes, in memory of an arena."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from ._arena import Arena, OutputInUse

if TYPE_CHECKING:
    from ._pool import CapturePool

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


@contextlib.contextmanager
def recording(graph: torch.cuda.CUDAGraph, pool: CapturePool, arena: Arena) -> Iterator[None]:
    """The block's work is captured on the arena's stream, and its memory is the pool's."""
    stream = arena.stream
    here = torch.cuda.current_stream(arena.device)
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


def begin_capture(graph: torch.cuda.CUDAGraph, pool: CapturePool, mode: str) -> None:
    """Begins a capture on the current stream. REQUIRES: the pool is open."""
    graph.capture_begin(pool=pool.id, capture_error_mode=mode)


def end_capture(graph: torch.cuda.CUDAGraph, pool: CapturePool) -> None:
    """Raises RuntimeError when the capture has failed. Then torch leaves its pool as in a capture: that is ended
    here.
    """
    try:
        graph.capture_end()
    except RuntimeError:
        _failed.append(graph)
        pool.abandon()
        raise


def drop(graph: torch.cuda.CUDAGraph, pool: CapturePool) -> None:
    """Drops the graph at once. REQUIRES: the caller has waited for its last replay."""
    graph.reset()
    pool.close()


_dropped: list[tuple[torch.cuda.CUDAGraph | None, CapturePool, Arena, Any]] = []
"""Graphs that nobody has any more, and whose memory is still to be given back. None: torch has reset it."""


def drop_later(pool: CapturePool, arena: Arena, graph: torch.cuda.CUDAGraph | None = None, call: Any = None) -> None:
    """The pool's graph has gone, or is not held any more. The caller may hold any lock, and any graph may be in a
    capture."""
    _dropped.append((graph, pool, arena, call))


def close_dropped() -> None:
    """Gives memory back of graphs that have gone; that of an arena in use, or with outputs in use, remains for
    later.
    """
    if torch.cuda.is_current_stream_capturing():
        return
    for _ in range(len(_dropped)):
        one = _dropped.pop(0)
        if not _close_one(*one):
            _dropped.append(one)


def _close_one(graph: torch.cuda.CUDAGraph | None, pool: CapturePool, arena: Arena, call: Any) -> bool:
    if not arena.lock.acquire(blocking=False):
        return False
    try:
        arena.leases.evacuate()
        if call is not None:
            call.close()
        arena.turn.wait()
        if graph is not None:
            graph.reset()
        pool.close()
    except OutputInUse:
        return False
    finally:
        arena.lock.release()
    return True


def first_line(error: BaseException) -> str:
    """Returns the first line of the exception's message."""
    return str(error).partition("\n")[0]
