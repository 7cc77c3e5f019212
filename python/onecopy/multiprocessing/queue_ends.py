# SPDX-License-Identifier: Apache-2.0
"""A queue's two ends, as the connections that code looks for in ``queue._reader`` and ``queue._writer``."""

from __future__ import annotations

import math
import time
from multiprocessing.connection import wait
from multiprocessing.reduction import ForkingPickler as _Pickler
from typing import Any, cast

from .. import _core

# Python waits for no longer at a time than a C int of milliseconds says.
_SLICE = 1e6


class _End:
    """Closing it is this object's own matter: the queue stays open."""

    def __init__(self, queue: _core.Queue) -> None:
        self._queue: _core.Queue | None = queue

    @property
    def closed(self) -> bool:
        """Was this end closed?"""
        return self._queue is None

    def close(self) -> None:
        """All other calls raise OSError from here on."""
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
    """The end that ``multiprocessing.connection.wait``, selectors and asyncio's ``add_reader`` can watch."""

    readable = True
    writable = False

    def fileno(self) -> int:
        """A descriptor that is readable while there are objects. It is not to be read."""
        return self._open().fileno()

    def poll(self, timeout: float | None = 0.0) -> bool:
        """Is there an object? Waits ``timeout`` seconds for one, for ever with None.

        Another process may take it before recv() does.
        """
        queue = self._open()
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while queue.empty():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if wait([cast(Any, self)], min(left, _SLICE)) and queue.empty():
                if queue.closed:  # recv() does not wait, it raises
                    return True
                time.sleep(0.001)  # it is readable a little longer than there are objects
        return True

    def recv(self) -> Any:
        """The next object; waits for it."""
        return self._open()._get(True, None)

    def recv_bytes(self, maxlength: int | None = None) -> bytes:
        """The next object, pickled. Raises OSError if that is longer than ``maxlength``; it is gone then."""
        pickled = bytes(_Pickler.dumps(self.recv()))
        if maxlength is not None and len(pickled) > maxlength:
            raise OSError("bad message length")
        return pickled


class Writer(_End):
    """The end to put into."""

    readable = False
    writable = True

    def send(self, obj: Any) -> None:
        """Put an object; waits while the queue is full."""
        self._open()._put(obj, True, None)

    def send_bytes(self, buf: Any, offset: int = 0, size: int | None = None) -> None:
        """Put the object that these bytes are the pickle of."""
        view = memoryview(buf).cast("B")[offset:]
        self.send(_Pickler.loads(view if size is None else view[:size]))
