# SPDX-License-Identifier: Apache-2.0
"""The Future of a call. A thread that waits for the Future takes the answer from the lanes itself, so that no other
thread must wake."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import threading
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from . import devices

Future: TypeAlias = torch.futures.Future[Any]
Outcome = tuple[Any, "Exception | None", Any]  # value, error, points

_NO_DEVICES: list[Any] = []
# methods of torch's class in C++, without the wrappers of torch's class in Python
_wait: Callable[[Any], Any] = torch._C.Future.wait
_value: Callable[[Any], Any] = torch._C.Future.value
_make_future: Callable[[Any, Any], None] = torch._C.Future.__init__
_set_result: Callable[[Any, Any], None] = torch._C.Future.set_result


class CallFuture(torch.futures.Future):
    """A Future that completes once. The thread that waits for the Future takes the answer, sets the result and runs the
    callbacks. If no thread waits but the Future has callbacks, a worker completes it. Otherwise the answer stays in its
    lane.

    Thread safety: all members may be called concurrently.
    Invariant: the Future releases a call that has ended. The call may own the Future, and a cycle of the two would
    never be freed.
    """

    _call: Any = None  # a _core._RpcCall, which the endpoint sets when it has sent the call
    _given: Outcome | None = None
    _is_settled = False
    points: Any = ()  # events in streams after which the result's tensors are complete

    def __init__(self, agent: Any, seconds: float) -> None:
        """Takes the `agent`, which knows the outcome of a call that ends without complete(), and the timeout of the
        call."""
        _make_future(self, _NO_DEVICES)  # torch.futures.Future looks for devices first
        self._agent, self.seconds, self._turn = agent, seconds, threading.Lock()

    def wait(self) -> Any:
        """Waits for the call and returns its result. Raises the call's error."""
        if not self._is_settled:
            call = self._call
            if call is not None:
                call.wait()
            self._settle()
            call = None  # breaks the cycle Future -> call -> Future
        value = _wait(self)
        if self.points:
            devices.wait_for(self.points)
        return value

    def value(self) -> Any:
        """Returns the result, which must have arrived. Raises the call's error."""
        self.done()
        if self.points:
            devices.wait_for(self.points)
        return _value(self)

    def done(self) -> bool:
        """Returns whether the result or the error has arrived."""
        call = self._call
        if call is not None and not self._is_settled and call.done:
            self._settle()
        return super().done()

    def then(self, callback: Callable[[Any], Any]) -> Any:
        """Returns a torch.futures.Future of callback(self), which runs once this Future is done."""
        self.want()
        return super().then(callback)

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Calls callback(self) once this Future is done."""
        self.want()
        super().add_done_callback(callback)

    def __await__(self) -> Any:
        return future_in_loop(self.add_done_callback, self.wait).__await__()

    def want(self) -> None:
        """Lets a worker complete the Future if no thread waits. Needed before code in C++ gets torch's part of the
        Future."""
        call = self._call
        if call is not None and not self._is_settled and not call.want(self):
            self._settle()

    def complete(self, value: Any, error: Exception | None = None) -> bool:
        """Ends the call with this outcome. Returns False if the call has one already.

        Callbacks run here only if there is no call."""
        with self._turn:
            if self._given is not None or self._is_settled:
                return False
            self._given = (value, error, ())
            if self._call is not None and not self._call.end():
                self._given = None
                return False
        if self._call is None:
            self._settle()
        return True

    def complete_in_order(self, call: Any, outcome: Outcome) -> None:
        """Completes the Future with an answer that had to be decoded before the next message."""
        with self._turn:
            self._given = self._given or outcome
        call.complete()

    def _settle(self, call: Any = None) -> None:
        with self._turn:
            if self._is_settled:
                return
            self._is_settled = True
        value, error, self.points = self._given or self._agent.endpoint.outcome(call or self._call, self.seconds)
        self._call = self._agent = None
        if error is None:
            _set_result(self, value)
        else:
            self.set_exception(error)

    def set_exception(self, error: Exception) -> None:
        """Completes the Future with an error. Each call of wait() and value() raises a copy of the error.

        torch's part in C++ holds the error, and Python's garbage collector does not look there: frames of its
        traceback that have this Future in a variable would stay for ever.
        """
        self._set_unwrap_func(_raise_copy)
        self.set_result(error)


def _raise_copy(error: Exception) -> None:
    raise _copy_of(error)


def _copy_of(error: Exception) -> Exception:
    """Returns a copy of the error without its traceback, or the error itself if its class cannot be copied."""
    kind = type(error)
    builtin = next(base for base in kind.__mro__ if base.__module__ == "builtins")
    try:
        if kind.__init__ is builtin.__init__:  # type: ignore[misc]
            made: Exception = copy.copy(error)
        elif builtin.__basicsize__ == Exception.__basicsize__:  # its own __init__ may change the text once more
            made = kind.__new__(kind, *error.args)
            made.args = error.args
            made.__dict__.update(error.__dict__)
        else:  # a field of C that only __init__ sets
            return error
    except Exception:
        return error
    made.__cause__, made.__suppress_context__ = error.__cause__, error.__suppress_context__
    return made


def future_in_loop(subscribe: Callable[[Any], Any], result: Callable[[], Any]) -> asyncio.Future[Any]:
    """Returns a future of the running loop, which completes with the outcome of `result()` once `subscribe` calls
    back."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def settle() -> None:
        if future.done():  # the task was cancelled
            return
        try:
            future.set_result(result())
        except Exception as error:
            future.set_exception(error)

    def call_back(*_: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and no task waits
            loop.call_soon_threadsafe(settle)

    subscribe(call_back)
    return future


def error_of(future: Any) -> Exception | None:
    """Returns the error of a Future that is done, or None."""
    try:
        future.value()
    except Exception as error:
        return error.with_traceback(None)  # its frames hold the future, which holds the error
    return None


def done(value: Any) -> Future:
    """Returns a torch.futures.Future that is done, with this value."""
    future: Future = torch.futures.Future()
    future.set_result(value)
    return future
