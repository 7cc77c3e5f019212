# SPDX-License-Identifier: Apache-2.0
"""How queues and pipes pickle objects other than plain values: once, with the tensors beside the pickle."""

from __future__ import annotations

import io
import pickle
from multiprocessing import context
from multiprocessing.reduction import ForkingPickler
from typing import Any

from . import _core
from ._children import keep_for_child


class _Pickler(ForkingPickler):
    """Hands every object that is not built in to ``rows.reduce`` first, then to the registered reducers."""

    def __init__(self, file: io.BytesIO, rows: _core._Rows) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.reducer_override = rows.reduce  # type: ignore[method-assign, assignment]


def dumps(obj: Any, rows: _core._Rows) -> memoryview:
    """Pickles an object, and moves its tensors and storages into ``rows``.

    Raises pickling's exceptions; nothing of the object is sent then.
    """
    buffer = io.BytesIO()
    _Pickler(buffer, rows).dump(obj)
    return buffer.getbuffer()


def loads(data: memoryview) -> Any:
    """Unpickles the result of :func:`dumps`, while its message is the current one."""
    with data:  # the memory goes with the message, and a traceback may keep this frame longer
        return ForkingPickler.loads(data)


def open_row(index: int, flags: int) -> Any:
    """The tensor or storage in a row of the current message. Pickles name this function."""
    return _core._open_row(index, flags)


def keep_open_for_child(thing: _core.Queue | _core.PipeHandle) -> bool:
    """Keeps an object until the child that is being started is gone. Returns False if none is being started."""
    kept = [thing]
    return keep_for_child(kept.clear)


def reduce_queue(queue: _core.Queue) -> tuple[Any, ...]:
    """Returns how a queue is pickled: it stays open here for a child, and is held for ten minutes for others."""
    kept = keep_open_for_child(queue)
    return connect_queue, (queue._handle_bytes() if kept else queue._held_handle_bytes(),)


def reduce_pipe_end(end: _core.PipeEnd) -> tuple[Any, ...]:
    """Returns how an end of a pipe is pickled: for a child only.

    The end counts as open until the child is gone, also if the child closes it before. The child's end is noticed
    by a call that waits for it or asks about it, and by a recv() or poll() that waits.
    """
    context.assert_spawning(end)
    handle = end.handle()
    keep_open_for_child(handle)
    return connect_pipe, (handle.to_bytes(),)


def connect_queue(handle: bytes) -> _core.Queue:
    """The queue of these bytes. Pickles name this function."""
    return _core._connect_queue(handle)


def connect_pipe(handle: bytes) -> _core.PipeEnd:
    """The end of a pipe of these bytes. Pickles name this function."""
    return _core.PipeEnd.connect(_core.PipeHandle.from_bytes(handle))
