# SPDX-License-Identifier: Apache-2.0
"""Contexts whose queues and pools keep tensors in shared memory.

The classes derive from the contexts of the standard library and replace their queues and pools. The default start
method is shared with the standard library: ``set_start_method`` here and ``multiprocessing.set_start_method`` set the
same value, so that a child can receive locks and queues of both packages.
"""

from __future__ import annotations

import multiprocessing.context
from multiprocessing.context import (
    AuthenticationError,
    BaseContext,
    BufferTooShort,
    ProcessError,
    TimeoutError,
    assert_spawning,
    get_spawning_popen,
    reduction,
    set_spawning_popen,
)

from ._state import installed

__all__ = [
    "AuthenticationError",
    "BaseContext",
    "BufferTooShort",
    "DefaultContext",
    "ForkContext",
    "ForkProcess",
    "ForkServerContext",
    "ForkServerProcess",
    "Process",
    "ProcessError",
    "SpawnContext",
    "SpawnProcess",
    "TimeoutError",
    "assert_spawning",
    "get_spawning_popen",
    "reduction",
    "set_spawning_popen",
]


class _SharingContext(BaseContext):
    """Makes the queues and pools of this package, or the standard library's while the patches are not installed.

    The signatures equal the standard library's, including the missing annotations.
    """

    def Queue(self, maxsize=0):
        """Returns a queue object"""
        if not installed():
            return super().Queue(maxsize)
        from .queues import Queue

        return Queue(maxsize, ctx=self.get_context())

    def JoinableQueue(self, maxsize=0):
        """Returns a queue object"""
        if not installed():
            return super().JoinableQueue(maxsize)
        from .queues import JoinableQueue

        return JoinableQueue(maxsize, ctx=self.get_context())

    def SimpleQueue(self):
        """Returns a queue object"""
        if not installed():
            return super().SimpleQueue()
        from .queues import SimpleQueue

        return SimpleQueue(ctx=self.get_context())

    def Pool(self, processes=None, initializer=None, initargs=(), maxtasksperchild=None):
        """Returns a process pool object"""
        if not installed():
            return super().Pool(processes, initializer, initargs, maxtasksperchild)
        from .pool import Pool

        return Pool(processes, initializer, initargs, maxtasksperchild, context=self.get_context())

    def get_context(self, method=None):
        """Returns the context of a start method, or this context without a name."""
        if method is None:
            return self
        try:
            context = _concrete_contexts[method]
        except KeyError:
            raise ValueError(f"cannot find context for {method!r}") from None
        context._check_available()
        return context


class Process(multiprocessing.context.Process):
    """A process started by the method of ``set_start_method``."""

    @staticmethod
    def _Popen(process_obj):
        return _default_context.get_context().Process._Popen(process_obj)


# A child that unpickles one of these classes imports this package first, and so sends and receives tensors as its
# parent does.
class ForkProcess(multiprocessing.context.ForkProcess):
    """A process started by fork()."""


class SpawnProcess(multiprocessing.context.SpawnProcess):
    """A process started as a fresh interpreter."""


class ForkServerProcess(multiprocessing.context.ForkServerProcess):
    """A process forked by a server that has no threads."""


class ForkContext(_SharingContext, multiprocessing.context.ForkContext):
    """A context that starts processes by fork()."""

    Process = ForkProcess


class SpawnContext(_SharingContext, multiprocessing.context.SpawnContext):
    """A context that starts processes as fresh interpreters."""

    Process = SpawnProcess


class ForkServerContext(_SharingContext, multiprocessing.context.ForkServerContext):
    """A context whose processes are forked by a server that has no threads."""

    Process = ForkServerProcess


class DefaultContext(_SharingContext, multiprocessing.context.DefaultContext):
    """A context that uses the start method of the standard library's default context."""

    Process = Process

    def __init__(self, standard: multiprocessing.context.DefaultContext) -> None:
        self._standard = standard

    def get_context(self, method=None):
        """Returns the context of a start method; without a name, of the current one."""
        return super().get_context(self._standard.get_start_method() if method is None else method)

    def set_start_method(self, method, force=False):
        """Sets the start method for this package and for ``multiprocessing``. Raises RuntimeError if a start method is
        set already and ``force`` is false."""
        self._standard.set_start_method(method, force)

    def get_start_method(self, allow_none=False):
        """Returns the start method that was set here or in ``multiprocessing``."""
        return self._standard.get_start_method(allow_none)

    def get_all_start_methods(self):
        """Returns the start methods of this platform, the default first."""
        return self._standard.get_all_start_methods()


_concrete_contexts = {
    "fork": ForkContext(),
    "spawn": SpawnContext(),
    "forkserver": ForkServerContext(),
}
_default_context = DefaultContext(multiprocessing.context._default_context)
