# SPDX-License-Identifier: Apache-2.0
"""Pickles what queues and pipes carry besides plain values. Tensors travel beside the pickle."""

from __future__ import annotations

import io
import pickle
from multiprocessing import context
from multiprocessing.reduction import ForkingPickler
from typing import Any

from .. import _core
from .children import keep_for_child


class _Pickler(ForkingPickler):
    """Passes every object that is not built in to ``rows.reduce`` first, then to the registered reducers."""

    def __init__(self, file: io.BytesIO, rows: _core._Rows) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.reducer_override = rows.reduce  # type: ignore[method-assign, assignment]


def dumps(obj: Any, rows: _core._Rows) -> memoryview:
    """Pickles an object, and moves its tensors and storages into ``rows``.

    Raises pickling's exceptions; then nothing is sent.
    """
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, rows).dump(obj)
    except (pickle.PicklingError, AttributeError) as error:
        if "Can't" in str(error) and hasattr(error, "add_note"):  # Python 3.11
            error.add_note("onecopy pickles functions and classes by name: define them at the top level of a module.")
        raise
    return buffer.getbuffer()


def loads(data: memoryview) -> Any:
    """Unpickles the result of :func:`dumps`. REQUIRES: its message is the current one."""
    with data:  # the memory is released with the message, and a traceback may keep this frame longer
        return ForkingPickler.loads(data)


def open_row(index: int, flags: int) -> Any:
    """Returns the tensor or storage in a row of the current message. Pickles contain the name of this function."""
    return _core._open_row(index, flags)


def keep_open_for_child(thing: _core.Queue | _core.PipeHandle) -> bool:
    """Keeps an object until the child that is being started has ended. Returns False if no child is being started."""
    kept = [thing]
    return keep_for_child(kept.clear)


def reduce_queue(queue: _core.Queue) -> tuple[Any, ...]:
    """Returns the pickle of a queue. The queue stays open here as long as a child being started lives, and for ten
    minutes for any other receiver."""
    kept = keep_open_for_child(queue)
    return connect_queue, (queue._handle_bytes() if kept else queue._held_handle_bytes(),)


def reduce_pipe_end(end: _core.PipeEnd) -> tuple[Any, ...]:
    """Returns the pickle of an end of a pipe. Only a child that is being started can receive one.

    The end counts as open until the child has ended, even if the child closes it earlier. A call that joins or polls
    the child notices that it has ended, and so does a recv() or poll() that waits.
    """
    context.assert_spawning(end)
    handle = end.handle()
    keep_open_for_child(handle)
    return connect_pipe, (handle.to_bytes(),)


def connect_queue(handle: bytes) -> _core.Queue:
    """Returns the queue of a handle's bytes. Pickles contain the name of this function."""
    return _core._connect_queue(handle)


def connect_pipe(handle: bytes) -> _core.PipeEnd:
    """Returns the end of a pipe of a handle's bytes. Pickles contain the name of this function."""
    return _core.PipeEnd.connect(_core.PipeHandle.from_bytes(handle))
