# SPDX-License-Identifier: Apache-2.0
"""Contexts whose queues and pools keep tensors in shared memory.

They are the standard library's contexts with other queues. The default start method is the standard library's own:
``set_start_method`` here and ``multiprocessing.set_start_method`` set one value, so that locks and queues of both
can be handed to one child.
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
    """The methods of our contexts in place of the standard library's; while not installed, its own.

    Signatures are equal to the standard library's, missing annotations included.
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
        """The context of a start method; this one without a name."""
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


# The classes are our own so that a child that unpickles one imports this package first: it then sends
# and receives tensors as its parent does.
class ForkProcess(multiprocessing.context.ForkProcess):
    """A process started by fork()."""


class SpawnProcess(multiprocessing.context.SpawnProcess):
    """A process started as a fresh interpreter."""


class ForkServerProcess(multiprocessing.context.ForkServerProcess):
    """A process forked by a server that has no threads."""


class ForkContext(_SharingContext, multiprocessing.context.ForkContext):
    """Processes started by fork()."""

    Process = ForkProcess


class SpawnContext(_SharingContext, multiprocessing.context.SpawnContext):
    """Processes started as fresh interpreters."""

    Process = SpawnProcess


class ForkServerContext(_SharingContext, multiprocessing.context.ForkServerContext):
    """Processes forked by a server that has no threads."""

    Process = ForkServerProcess


class DefaultContext(_SharingContext, multiprocessing.context.DefaultContext):
    """The context of the start method that the standard library's default context has."""

    Process = Process

    def __init__(self, standard: multiprocessing.context.DefaultContext) -> None:
        self._standard = standard

    def get_context(self, method=None):
        """The context of a start method; without a name of the one that is set."""
        return super().get_context(self._standard.get_start_method() if method is None else method)

    def set_start_method(self, method, force=False):
        """Sets the start method, once: ``multiprocessing`` follows."""
        self._standard.set_start_method(method, force)

    def get_start_method(self, allow_none=False):
        """The start method that is set, here or in ``multiprocessing``."""
        return self._standard.get_start_method(allow_none)

    def get_all_start_methods(self):
        """The start methods of this platform, its default first."""
        return self._standard.get_all_start_methods()


_concrete_contexts = {
    "fork": ForkContext(),
    "spawn": SpawnContext(),
    "forkserver": ForkServerContext(),
}
_default_context = DefaultContext(multiprocessing.context._default_context)
