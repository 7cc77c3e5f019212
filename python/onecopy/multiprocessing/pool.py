# SPDX-License-Identifier: Apache-2.0
"""A pool of processes that sends the tensors of tasks and results by handle."""

from __future__ import annotations

import io
import multiprocessing.pool
import multiprocessing.queues
import pickle
import time
from multiprocessing.context import reduction
from multiprocessing.pool import ThreadPool
from typing import Any

from .queues import SimpleQueue

__all__ = ["Pool", "ThreadPool"]


def __getattr__(name: str) -> Any:
    """Returns the other names of multiprocessing.pool."""
    return getattr(multiprocessing.pool, name)


class _Tasks(multiprocessing.queues.SimpleQueue):
    """A pipe of tasks. Each message contains two pickles: the number of a task, and its work.

    If the work cannot be unpickled, only this task fails. With a single pickle the worker would exit, and the caller
    would wait for ever.
    """

    def put(self, task: tuple | None) -> None:
        buffer = io.BytesIO()
        for part in (None,) if task is None else (task[:2], task[2:]):
            reduction.ForkingPickler(buffer).dump(part)
        with self._wlock:
            self._writer.send_bytes(buffer.getbuffer())

    def get(self) -> tuple | None:
        with self._rlock:
            message = self._reader.recv_bytes()
        return self._read(message)

    def _read(self, message: bytes) -> tuple | None:
        buffer = io.BytesIO(message)
        which = pickle.load(buffer)
        if which is None:
            return None
        try:
            return (*which, *pickle.load(buffer))
        except Exception as error:
            return (*which, _fail, (_for_the_caller(error),), {})

    def take_away(self) -> None:
        """Removes a task that no worker will run. Unpickling it releases its tensors."""
        self._read(self._reader.recv_bytes())


def _fail(error: Exception) -> None:
    raise error


def _for_the_caller(error: Exception) -> Exception:
    """Returns the error, or a RuntimeError in its place if the caller could not unpickle it.

    The thread of the caller that receives results would end otherwise.
    """
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"the task cannot be unpickled: {type(error).__name__}: {error}")
    return error


class Pool(multiprocessing.pool.Pool):
    """A pool whose results survive the worker that made them.

    Results come through a queue of onecopy, which still delivers what a dead process has put. Tasks go through a pipe:
    the pipe's end tells workers that the pool was killed.
    """

    def _setup_queues(self) -> None:
        self._inqueue = _Tasks(ctx=self._ctx)
        self._outqueue = SimpleQueue(ctx=self._ctx)
        self._quick_put = self._inqueue.put
        self._quick_get = self._outqueue._reader.recv

    @staticmethod
    def _help_stuff_finish(inqueue, task_handler, size):
        inqueue._rlock.acquire()
        while task_handler.is_alive() and inqueue._reader.poll():
            inqueue.take_away()
            time.sleep(0)

    @classmethod
    def _terminate_pool(cls, taskqueue, inqueue, *others):
        try:
            super()._terminate_pool(taskqueue, inqueue, *others)
        finally:
            while (
                inqueue._reader.poll()
            ):  # no worker reads now or was killed while reading, since this thread holds the lock
                inqueue.take_away()
