# SPDX-License-Identifier: Apache-2.0
"""The queues of multiprocessing on onecopy's: tensors and plain values cross without pickle.

They have the API and the semantics of ``multiprocessing.queues`` and are subclasses of its classes. The
differences, besides the speed:

- An object has left when ``put`` returns: there is no feeder thread, no buffer that dies with the process,
  and nothing to join. The process may end at once, or be killed; a later ``get`` of any process returns the object.
- The object is pickled by ``put``, not some time later. Failures of pickling are reported as there: to
  ``_on_queue_feeder_error``, which prints the traceback, and the queue goes on. Errors of onecopy (no memory, a
  tensor inside an autograd graph) are raised by ``put``. SimpleQueue raises all of them.
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
from .._pickling import keep_open_for_child
from ..errors import Error
from .queue_ends import Reader, Writer

__all__ = ["Empty", "Full", "JoinableQueue", "Queue", "SimpleQueue"]


def _state_for_child(queue: _core.Queue) -> bytes:
    """The state with which the child that is being started connects. Until it is gone the queue stays open here."""
    keep_open_for_child(queue)
    return queue._handle_bytes()


class _OnQueue:
    """An attribute for code that looks into a queue of multiprocessing, made at first use."""

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
        """Returns how many objects are in the queue now, and its bound."""
        state = repr(self._core).removeprefix("<onecopy.Queue").removesuffix(">")
        return f"<onecopy.multiprocessing.{type(self).__name__}{state}{', closed here' if self._closed else ''}>"


class Queue(_OnQueue, multiprocessing.queues.Queue):
    """Objects from any number of processes to any number of processes, in order per producer.

    Args:
        maxsize: how many objects fit; 0 or less: as many as memory allows.
        ctx: the context it belongs to.
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
        """Puts an object. Tensors in it are shared with the consumer.

        Waits while the queue is full, ``timeout`` seconds at most. Raises queue.Full, ValueError if this process
        has closed the queue, onecopy.Error, and exceptions of signal handlers. Exceptions of pickling are printed.
        """
        if self._closed:
            raise ValueError(f"Queue {self!r} is closed")
        self._put(obj, block, timeout, self._report)

    def _report(self, error: Exception, obj: Any) -> None:
        """Failures of pickling go to the hook, as with the standard library's queues."""
        try:
            raise error  # the hook prints the exception that is being handled
        except Error:
            raise
        except Exception:
            self._on_queue_feeder_error(error, obj)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """The next object.

        Waits for it, ``timeout`` seconds at most. Raises queue.Empty, ValueError if this process has closed the
        queue, and exceptions of unpickling; the object is gone then.
        """
        if self._closed:
            raise ValueError(f"Queue {self!r} is closed")
        return self._get(block, timeout)

    def get_nowait(self) -> Any:
        """The next object; raises queue.Empty if there is none."""
        return self.get(False)

    def put_nowait(self, obj: Any) -> None:
        """Puts an object, or raises queue.Full if there is no space."""
        return self.put(obj, False)

    def qsize(self) -> int:
        """Objects in the queue now; other processes may change it at any time."""
        return self._core.size()

    def empty(self) -> bool:
        """Is the queue empty now? Raises OSError if this process has closed its reading end."""
        return not self._reader.poll()

    def full(self) -> bool:
        """Returns whether put() would wait now."""
        return 0 < self._maxsize <= self._core.size()

    def close(self) -> None:
        """This process puts and gets no more. Nothing is lost, the others go on."""
        self._closed = True

    def join_thread(self) -> None:
        """Returns at once: all objects have left. Only after close()."""
        assert self._closed, f"Queue {self!r} not closed"

    def cancel_join_thread(self) -> None:
        """Has no effect but a flag: there is no thread to wait for, so no object can be lost."""
        self._joincancelled = True


class JoinableQueue(Queue, multiprocessing.queues.JoinableQueue):
    """A queue that counts objects that were put and not reported as done."""

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
        """As Queue.put; the object counts as unfinished until a process calls task_done()."""
        if self._closed:
            raise ValueError(f"Queue {self!r} is closed")
        putting = self._begin_put(obj, block, timeout, self._report)
        while putting is not None and not self._counted(putting):
            putting.wait_for_space()

    def _counted(self, putting: _core._Putting) -> bool:
        """Puts and counts if there is space.

        Both under the lock that task_done takes: a getter that gets the object at once is done with it only after
        it was counted. Never waits for space in here: an object that was counted and never put could never be done.
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
        """Waits until all that was put is done with."""
        with self._cond:
            if not self._unfinished_tasks._semlock._is_zero():
                self._cond.wait()


class SimpleQueue(_OnQueue, multiprocessing.queues.SimpleQueue):
    """A queue without bounds and timeouts."""

    def __init__(self, *, ctx: Any) -> None:
        self._use(_core.Queue(0))

    def _use(self, queue: _core.Queue) -> None:
        self._core = queue
        self._put = queue._put  # bound here: torch.compile calls a method of the core's classes without its object
        self._get = queue._get
        self._closed = False

    def __getstate__(self) -> bytes:
        context.assert_spawning(self)
        return _state_for_child(self._core)

    def __setstate__(self, state: bytes) -> None:
        self._use(_core._connect_queue(state))

    def get(self) -> Any:
        """The next object; waits for it. Raises OSError if this process has closed the queue."""
        if self._closed:
            raise OSError("handle is closed")
        return self._get(True, None)

    def put(self, obj: Any) -> None:
        """Puts an object. Raises OSError if this process has closed the queue, and exceptions of pickling."""
        if self._closed:
            raise OSError("handle is closed")
        self._put(obj, True, None)

    def empty(self) -> bool:
        """Is nothing in the queue now?"""
        return not self._reader.poll()

    def close(self) -> None:
        """This process puts and gets no more. Nothing is lost, the others go on."""
        self._closed = True
        self._reader.close()
        self._writer.close()
