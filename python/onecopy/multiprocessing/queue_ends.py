# SPDX-License-Identifier: Apache-2.0
"""The two ends of a queue as connections, for programs that use ``queue._reader`` and ``queue._writer``."""

from __future__ import annotations

import math
import time
from multiprocessing.connection import wait
from multiprocessing.reduction import ForkingPickler as _Pickler
from typing import Any, cast

from .. import _core

# The maximum time of one wait in seconds: Python counts milliseconds in a C int.
_SLICE = 1e6


class _End:
    """An end of a queue. Closing the end does not close the queue."""

    def __init__(self, queue: _core.Queue) -> None:
        self._queue: _core.Queue | None = queue

    @property
    def closed(self) -> bool:
        """Returns whether this end was closed."""
        return self._queue is None

    def close(self) -> None:
        """Closes this end: all other methods raise OSError afterwards."""
        self._queue = None

    def _open(self) -> _core.Queue:
        if self._queue is None:
            raise OSError("handle is closed")
        return self._queue

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class Reader(_End):
    """The reading end, which ``multiprocessing.connection.wait``, selectors and asyncio's ``add_reader`` can watch."""

    readable = True
    writable = False

    def fileno(self) -> int:
        """Returns a descriptor that is readable while the queue contains objects. Only poll it; do not read from it."""
        return self._open().fileno()

    def poll(self, timeout: float | None = 0.0) -> bool:
        """Returns whether the queue contains an object. Waits up to ``timeout`` seconds for one; None waits for ever.

        Another process may take the object before recv() does.
        """
        queue = self._open()
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while queue.empty():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if wait([cast(Any, self)], min(left, _SLICE)) and queue.empty():
                if queue.closed:  # recv() raises at once
                    return True
                time.sleep(0.001)  # the descriptor stays readable shortly after the last object was taken
        return True

    def recv(self) -> Any:
        """Returns the next object. Waits for one."""
        return self._open()._get(True, None)

    def recv_bytes(self, maxlength: int | None = None) -> bytes:
        """Returns the pickle of the next object. Raises OSError, and loses the object, if the pickle is longer than
        ``maxlength`` bytes."""
        pickled = bytes(_Pickler.dumps(self.recv()))
        if maxlength is not None and len(pickled) > maxlength:
            raise OSError("bad message length")
        return pickled


class Writer(_End):
    """The writing end."""

    readable = False
    writable = True

    def send(self, obj: Any) -> None:
        """Puts an object. Waits while the queue is full."""
        self._open()._put(obj, True, None)

    def send_bytes(self, buf: Any, offset: int = 0, size: int | None = None) -> None:
        """Puts the object that these bytes are a pickle of."""
        view = memoryview(buf).cast("B")[offset:]
        self.send(_Pickler.loads(view if size is None else view[:size]))
