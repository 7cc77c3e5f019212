# SPDX-License-Identifier: Apache-2.0
"""Pools of processes whose tasks and results carry tensors by handle."""

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
    """The rest of multiprocessing.pool, as it is."""
    return getattr(multiprocessing.pool, name)


class _Tasks(multiprocessing.queues.SimpleQueue):
    """A pipe of tasks: the number of a task and its work, in two pickles of one message.

    If the work cannot be unpickled, that task fails. With one pickle the worker would end, and its pool would never
    learn the task's fate.
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
        """Takes a task that no worker will do; unpickled, so that its tensors are not kept any more."""
        self._read(self._reader.recv_bytes())


def _fail(error: Exception) -> None:
    raise error


def _for_the_caller(error: Exception) -> Exception:
    """The error itself if the caller can unpickle it. Otherwise it would end the thread that receives all results."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"the task cannot be unpickled: {type(error).__name__}: {error}")
    return error


class Pool(multiprocessing.pool.Pool):
    """The standard library's pool; results are there although the worker that made them is gone.

    Results come through our queue, which delivers what a dead process put. Tasks go through a pipe: its end
    tells workers that their pool was killed.
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
            ):  # no worker reads any more, and none was stopped while it did: we have the lock
                inqueue.take_away()
