# SPDX-License-Identifier: Apache-2.0
"""The queues of multiprocessing, implemented by onecopy's queue: tensors and plain values are sent without pickle.

The classes derive from ``multiprocessing.queues`` and keep its API and semantics. Differences besides speed:

- ``put`` sends the object before it returns: there is no feeder thread, no buffer that is lost with the process, and
  nothing to join. If the process ends or is killed after ``put``, any process can still ``get`` the object.
- ``put`` pickles the object at once. As in the standard library, a failure of pickling is passed to
  ``_on_queue_feeder_error``, which prints the traceback, and the queue stays usable. ``put`` raises errors of onecopy
  (no memory, a tensor inside an autograd graph). SimpleQueue raises all errors.
"""

from __future__ import annotations

import multiprocessing.queues
import operator
import os
import threading
from functools import cached_property
from multiprocessing import context
from multiprocessing.util import register_after_fork
from queue import Empty, Full
from typing import Any

from .. import _core
from ..errors import Error
from ..pickling.messages import keep_open_for_child
from .queue_ends import Reader, Writer

__all__ = ["Empty", "Full", "JoinableQueue", "Queue", "SimpleQueue"]


def _state_for_child(queue: _core.Queue) -> bytes:
    """Returns the state with which a child that is being started connects.

    The queue stays open here until the child has ended.
    """
    keep_open_for_child(queue)
    return queue._handle_bytes()


class _OnQueue:
    """The private attributes of multiprocessing's queues that some programs use. Each attribute is created at its first
    use."""

    _core: _core.Queue

    @cached_property
    def _reader(self) -> Reader:
        return Reader(self._core)

    @cached_property
    def _writer(self) -> Writer:
        return Writer(self._core)

    @cached_property
    def _rlock(self) -> Any:
        """Returns an unused lock, for programs that take the queue's lock."""
        return threading.Lock()

    @cached_property
    def _wlock(self) -> Any:
        return threading.Lock()

    @property
    def _poll(self) -> Any:
        return self._reader.poll

    def __repr__(self) -> str:
        """Returns a text with the number of objects in the queue and its bound."""
        state = repr(self._core).removeprefix("<onecopy.Queue").removesuffix(">")
        return f"<onecopy.multiprocessing.{type(self).__name__}{state}{', closed here' if self._closed else ''}>"


class Queue(_OnQueue, multiprocessing.queues.Queue):
    """A queue between any number of processes. Objects of one producer stay in order.

    Args:
        maxsize: the maximum number of objects in the queue; 0 or less for no limit but memory.
        ctx: the context that the queue belongs to.
    """

    def __init__(self, maxsize: int = 0, *, ctx: Any) -> None:
        self._maxsize = max(operator.index(maxsize), 0)
        self._ignore_epipe = False
        self._opid = os.getpid()
        self._use(_core.Queue(self._maxsize))

    def _use(self, queue: _core.Queue) -> None:
        self._core = queue
        self._put = queue._put
        self._get = queue._get
        self._begin_put = queue._begin_put
        self._closed = False
        self._joincancelled = False
        register_after_fork(self, Queue._after_fork)

    def _after_fork(self) -> None:
        self._closed = False
        self._joincancelled = False

    def __getstate__(self) -> tuple:
        context.assert_spawning(self)
        return (self._ignore_epipe, self._maxsize, _state_for_child(self._core), self._opid)

    def __setstate__(self, state: tuple) -> None:
        self._ignore_epipe, self._maxsize, handle, self._opid = state
        self._use(_core._connect_queue(handle))

    def put(self, obj: Any, block: bool = True, timeout: float | None = None) -> None:
        """Puts an object. The consumer shares the memory of its tensors.

        Waits up to ``timeout`` seconds while the queue is full. Raises queue.Full, ValueError if this process has
        closed the queue, onecopy.Error, and exceptions of signal handlers. Prints exceptions of pickling.
        """
        if self._closed:
            raise ValueError(f"Queue {self!r} is closed")
        self._put(obj, block, timeout, self._report)

    def _report(self, error: Exception, obj: Any) -> None:
        """Passes a failure of pickling to the hook, as the standard library's queues do. Raises onecopy's errors."""
        try:
            raise error  # the hook prints the exception that is being handled
        except Error:
            raise
        except Exception:
            self._on_queue_feeder_error(error, obj)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Returns the next object.

        Waits up to ``timeout`` seconds for one. Raises queue.Empty, and ValueError if this process has closed the
        queue. Raises exceptions of unpickling, and loses the object then.
        """
        if self._closed:
            raise ValueError(f"Queue {self!r} is closed")
        return self._get(block, timeout)

    def get_nowait(self) -> Any:
        """Returns the next object, or raises queue.Empty."""
        return self.get(False)

    def put_nowait(self, obj: Any) -> None:
        """Puts an object, or raises queue.Full."""
        return self.put(obj, False)

    def qsize(self) -> int:
        """Returns the number of objects in the queue, which other processes may change at any time."""
        return self._core.size()

    def empty(self) -> bool:
        """Returns whether the queue is empty now. Raises OSError if this process has closed its reading end."""
        return not self._reader.poll()

    def full(self) -> bool:
        """Returns whether put() would wait now."""
        return 0 < self._maxsize <= self._core.size()

    def close(self) -> None:
        """Closes the queue for this process only. No object is lost."""
        self._closed = True

    def join_thread(self) -> None:
        """Returns at once, since all objects were sent. REQUIRES: close() was called."""
        assert self._closed, f"Queue {self!r} not closed"

    def cancel_join_thread(self) -> None:
        """Sets a flag only, since there is no thread to wait for and no object can be lost."""
        self._joincancelled = True


class JoinableQueue(Queue, multiprocessing.queues.JoinableQueue):
    """A queue that counts the objects that were put and not yet marked as done."""

    def __init__(self, maxsize: int = 0, *, ctx: Any) -> None:
        Queue.__init__(self, maxsize, ctx=ctx)
        self._unfinished_tasks = ctx.Semaphore(0)
        self._cond = ctx.Condition()

    def __getstate__(self) -> tuple:
        return (*Queue.__getstate__(self), self._cond, self._unfinished_tasks)

    def __setstate__(self, state: tuple) -> None:
        Queue.__setstate__(self, state[:-2])
        self._cond, self._unfinished_tasks = state[-2:]

    def put(self, obj: Any, block: bool = True, timeout: float | None = None) -> None:
        """Puts an object as Queue.put does. The object counts as unfinished until a process calls task_done()."""
        if self._closed:
            raise ValueError(f"Queue {self!r} is closed")
        putting = self._begin_put(obj, block, timeout, self._report)
        while putting is not None and not self._counted(putting):
            putting.wait_for_space()

    def _counted(self, putting: _core._Putting) -> bool:
        """Puts and counts the object if there is space. Returns whether there was.

        The lock, which task_done() takes, makes sure that an object is counted before a consumer marks it as done. The
        call does not wait for space: an object that was counted but never put could never be marked as done.
        """
        with self._cond:
            if not putting.at_once():
                return False
            self._unfinished_tasks.release()
            return True

    def task_done(self) -> None:
        """Marks one received object as done. Raises ValueError if called too many times."""
        with self._cond:
            if not self._unfinished_tasks.acquire(False):
                raise ValueError("task_done() called too many times")
            if self._unfinished_tasks._semlock._is_zero():
                self._cond.notify_all()

    def join(self) -> None:
        """Waits until all objects that were put are marked as done."""
        with self._cond:
            if not self._unfinished_tasks._semlock._is_zero():
                self._cond.wait()


class SimpleQueue(_OnQueue, multiprocessing.queues.SimpleQueue):
    """A queue without bounds and timeouts."""

    def __init__(self, *, ctx: Any) -> None:
        self._use(_core.Queue(0))

    def _use(self, queue: _core.Queue) -> None:
        self._core = queue
        self._put = queue._put  # bound here, since torch.compile calls methods of extension classes without self
        self._get = queue._get
        self._closed = False

    def __getstate__(self) -> bytes:
        context.assert_spawning(self)
        return _state_for_child(self._core)

    def __setstate__(self, state: bytes) -> None:
        self._use(_core._connect_queue(state))

    def get(self) -> Any:
        """Returns the next object. Waits for one. Raises OSError if this process has closed the queue."""
        if self._closed:
            raise OSError("handle is closed")
        return self._get(True, None)

    def put(self, obj: Any) -> None:
        """Puts an object. Raises OSError if this process has closed the queue, and exceptions of pickling."""
        if self._closed:
            raise OSError("handle is closed")
        self._put(obj, True, None)

    def empty(self) -> bool:
        """Returns whether the queue is empty now."""
        return not self._reader.poll()

    def close(self) -> None:
        """Closes the queue for this process only. No object is lost."""
        self._closed = True
        self._reader.close()
        self._writer.close()
