# SPDX-License-Identifier: Apache-2.0
"""How queues and pipes pickle what is no plain value: once, with the tensors beside the pickle."""

from __future__ import annotations

import io
import pickle
from multiprocessing import context
from multiprocessing.reduction import ForkingPickler
from typing import Any

from . import _core


class _Pickler(ForkingPickler):
    """Hands every object that is not built in to ``rows.reduce`` first, then to the registered reducers."""

    def __init__(self, file: io.BytesIO, rows: _core._Rows) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.reducer_override = rows.reduce


def dumps(obj: Any, rows: _core._Rows) -> memoryview:
    """Pickle an object, and move its tensors and storages into ``rows``.

    Raises whatever pickling raises; nothing of the object is sent then.
    """
    buffer = io.BytesIO()
    _Pickler(buffer, rows).dump(obj)
    return buffer.getbuffer()


def loads(data: memoryview) -> Any:
    """Unpickle what :func:`dumps` made, while the message it came in is the current one."""
    return ForkingPickler.loads(data)


def open_row(index: int, flags: int) -> Any:
    """The tensor or storage in a row of the current message. Pickles name this function."""
    return _core._open_row(index, flags)


def keep_for_child(thing: Any) -> bool:
    """Keep something until the child that is being started is gone; False when none is."""
    popen = context.get_spawning_popen()
    if popen is None:
        return False
    vars(popen).setdefault("_onecopy_kept", []).append(thing)
    return True


def reduce_queue(queue: _core.Queue) -> tuple:
    """How a queue is pickled: for a child it stays open here, for others it is held for ten minutes."""
    kept = keep_for_child(queue)
    return connect_queue, (queue._handle_bytes() if kept else queue._held_handle_bytes(),)


def reduce_pipe_end(end: _core.PipeEnd) -> tuple:
    """How the end of a pipe is pickled: for a child only, its end counts as there until it is gone."""
    context.assert_spawning(end)
    handle = end.handle()
    keep_for_child(handle)
    return connect_pipe, (handle.to_bytes(),)


def connect_queue(handle: bytes) -> _core.Queue:
    """The queue of these bytes. Pickles name this function."""
    return _core._connect_queue(handle)


def connect_pipe(handle: bytes) -> _core.PipeEnd:
    """The end of a pipe of these bytes. Pickles name this function."""
    return _core.PipeEnd.connect(_core.PipeHandle.from_bytes(handle))
