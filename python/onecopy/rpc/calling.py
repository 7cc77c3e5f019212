# SPDX-License-Identifier: Apache-2.0
"""Calls of functions in other members, for the native interface and torch's interface.

Thread safety: all functions may be called concurrently.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Generator, Iterable
from typing import Any

from ..errors import Timeout
from . import registry, rref, telemetry
from .errors import Cancelled, RefusedValue
from .futures import CallFuture, error_of, future_in_loop
from .peers import WorkerInfo
from .registry import verb
from .rref import PyRRef
from .rref_table import Reference


def call(to: Any, function: Any, args: Any, kwargs: Any, timeout: float | None, is_native: bool = False) -> Any:
    """Returns the result of function(*args, **kwargs), run in a member. `is_native`: see PythonEndpoint::call()."""
    agent = registry.this_agent or registry.current()
    try:
        if not telemetry.is_profiled():
            return agent.endpoint.call(to, function, args, kwargs, timeout, is_native)
        with telemetry.range_of_call("sync", function, agent, to):
            return agent.endpoint.call(to, function, args, kwargs, timeout, is_native)
    except RefusedValue as refused:
        raise refused.located(func=function, args=args, kwargs=kwargs) from None


def begin(to: Any, function: Any, args: Any, kwargs: Any, timeout: float | None) -> CallFuture:
    """Returns a Future of the result of call(). Raises, before anything is sent, TypeError if a value cannot be sent
    and RuntimeError for arguments that no overload of a torch operator takes."""
    agent = registry.current()
    future = CallFuture(agent, agent.seconds_for(timeout))
    try:
        if not telemetry.is_profiled():
            agent.endpoint.begin(to, function, args, kwargs, timeout, None, future)
            return future
        with telemetry.range_of_call("async", function, agent, to):
            agent.endpoint.begin(to, function, args, kwargs, timeout, None, future)
    except RefusedValue as refused:
        raise refused.located(func=function, args=args, kwargs=kwargs) from None
    return future


def remote(to: Any, function: Any, args: Any, kwargs: Any, timeout: float) -> PyRRef:
    """Returns at once a reference to the result of function(*args, **kwargs), which stays in the member."""
    agent = registry.current()

    def send(reference: Reference, made: Any) -> None:
        agent.endpoint.begin(to, function, args, kwargs, timeout, reference, made)

    try:
        owner = agent.endpoint.number_of(to)
        if not telemetry.is_profiled():
            return rref.begin(agent, owner, send, timeout)
        with telemetry.range_of_call("remote", function, agent, to):
            return rref.begin(agent, owner, send, timeout)
    except RefusedValue as refused:
        raise refused.located(func=function, args=args, kwargs=kwargs) from None


class Call(CallFuture):
    """A pending call, whose ``wait()`` and ``await`` return the result or raise the exception of the function.

    Thread safety: all members may be called concurrently."""

    def __init__(self, agent: Any, to: WorkerInfo, function: str) -> None:
        super().__init__(agent, 0.0)
        self.agent, self.to, self.function = agent, to, function

    @property
    def trace(self) -> str:
        """The name of the call in the logs of both sides, and of calls that its function makes."""
        trace: str = self._listed.trace
        return trace

    def cancel(self) -> bool:
        """Fails the call at once with Cancelled, and sets ``current_call().cancelled`` for its function. A function
        that has not started does not start. Returns False if the outcome had arrived already."""
        if not self.complete(None, Cancelled(f"{self.function} at {self.to} was cancelled by this process")):
            return False
        self.agent.note(self.to.id, "cancel", self._listed.number)
        return True

    def __await__(self) -> Generator[Any, None, Any]:
        future = future_in_loop(self.add_done_callback, self.wait)
        future.add_done_callback(lambda f: f.cancelled() and self.cancel())
        return future.__await__()

    def __repr__(self) -> str:
        return f"<Call of {self.function} at {self.to.name}>"

    def send(self, args: Any, kwargs: Any, timeout: float | None, is_stream: bool = False) -> None:
        """Sends the call once the member has room."""
        begin = self.agent.endpoint.begin_native
        try:
            self._listed = begin(self.to.id, self.function, args, kwargs, timeout, self, is_stream)
        except RefusedValue as refused:
            raise refused.located(args=args, kwargs=kwargs) from None
        self.seconds = self._listed.seconds
        self.add_done_callback(Call._ended)

    def _ended(self) -> None:
        error = error_of(self)
        if isinstance(error, Timeout):  # the result is not wanted
            self.agent.note(self.to.id, "cancel", self._listed.number)
        self._listed.end(error is None)


def call_async(to: Any, function: Any, args: Any = (), kwargs: Any = None, *, timeout: float | None = None) -> Call:
    """Starts a call and returns a Call, whose wait() or await returns the result. Blocks only while the member has no
    room (see init(max_calls=...))."""
    agent = registry.current()
    member = agent.member(to)
    made = Call(agent, member.info, agent.name_at(member, function))
    made.send(args, kwargs, timeout)
    return made


def wait_all(calls: Iterable[Call], timeout: float | None = None) -> list[Any]:
    """Returns the results of calls, in their order. Raises the error of the first call that fails, as soon as it fails,
    and Timeout after `timeout` seconds; the other calls continue."""
    calls, ended = list(calls), queue.SimpleQueue[Call]()
    for each in calls:
        each.add_done_callback(ended.put)
    end = None if timeout is None else time.monotonic() + timeout
    try:
        for count in range(len(calls)):
            try:
                first = ended.get(timeout=None if end is None else max(end - time.monotonic(), 0))
            except queue.Empty:
                text = f"{len(calls) - count} of {len(calls)} calls have not ended within {timeout:g} s"
                raise Timeout(text) from None
            first.wait()
        return [each.wait() for each in calls]
    finally:
        calls = ended = each = first = None  # type: ignore[assignment]  # they have the failure, whose frames include this one


@verb("cancel")
def _cancel(agent: Any, caller: int, number: int) -> None:
    agent.endpoint.cancel(caller, number)
