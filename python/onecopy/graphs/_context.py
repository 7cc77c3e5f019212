# SPDX-License-Identifier: Apache-2.0
"""A ``torch.cuda.graph()`` in memory of an arena, for engines that capture their graphs themselves."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Iterator

import torch

from ..errors import InvalidArgument
from ._arena import Arena
from ._captures import capturing, drop_later


@contextlib.contextmanager
def graph(
    cuda_graph: torch.cuda.CUDAGraph,
    arena: Arena,
    *,
    stream: torch.cuda.Stream | None = None,
    capture_error_mode: str = "global",
) -> Iterator[None]:
    """Captures the block as ``torch.cuda.graph()`` does, with scratch memory of an arena.

    Tensors that are still held when the block ends (static inputs made in the block, outputs) get memory that no other
    graph overwrites; the next replay of this graph does. ``cuda_graph.replay()`` waits, on the device, for the last
    graph of the arena, on whatever stream it ran.

    Args:
        cuda_graph: a new ``torch.cuda.CUDAGraph``.
        arena: an arena on the current CUDA device, or on no device yet.
        stream: the stream to capture; None for a stream of the arena.
        capture_error_mode: torch's option: ``"global"``, ``"thread_local"`` or ``"relaxed"``.

    Raises:
        InvalidArgument: the arena is parked or on another device, or another capture is active.
        The block's exceptions; then the capture is undone.
    """
    arena.bind(torch.device("cuda", torch.cuda.current_device()))
    if torch.cuda.is_current_stream_capturing():
        raise InvalidArgument("another graph is being captured; end that capture first, since captures cannot nest")
    with arena.lock:
        arena.require_resumed()
        arena.collect()
        torch.cuda.synchronize()
        pool = arena.open_pool()
        try:
            with capturing(cuda_graph, pool, stream or arena.stream, capture_error_mode):
                yield
            pool.keep_alive()
        except BaseException:
            cuda_graph.reset()
            pool.close()
            raise
    weakref.finalize(cuda_graph, drop_later, functools.partial(arena.try_close, pool.close)).atexit = False
    cuda_graph.replay = functools.partial(_replay, weakref.ref(cuda_graph), arena)


def _replay(reference: weakref.ref[torch.cuda.CUDAGraph], arena: Arena) -> None:
    """Replays in the order of the current stream, after the last graph of the arena."""
    cuda_graph = reference()
    assert cuda_graph is not None, "replay() is called through the graph, which is alive"
    arena.require_resumed()
    with arena.lock, arena.on_device(), arena.lock.of(torch.cuda.current_stream(arena.device)):
        arena.leases.evacuate()
        torch.cuda.CUDAGraph.replay(cuda_graph)
