# SPDX-License-Identifier: Apache-2.0
"""Calls of functions in other members, for both interfaces: the native one and torch's.

Thread safety: all functions may be called concurrently.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from typing import Any

from .. import _core
from ..errors import Timeout
from . import devices, functions, registry, rref, telemetry
from .errors import Cancelled, RemoteFailure
from .futures import CallFuture, error_of, future_in_loop
from .peers import Member, WorkerInfo
from .refused import RefusedValue
from .registry import Deferred, verb
from .rref import PyRRef

_lock = threading.Lock()
_under_way: set[Call] = set()  # calls that no thread waits for from the start


def call(to: Any, function: Any, args: Any, kwargs: Any, timeout: float | None, is_native: bool = False) -> Any:
    """Returns the result of function(*args, **kwargs), run in a member. `is_native`: see python/src/rpc/endpoint.h."""
    agent = registry.this_agent or registry.current()
    try:
        if not telemetry.is_profiled():
            return agent.endpoint.call(to, function, args, kwargs, timeout, is_native)
        with telemetry.range_of_call("sync", function, agent, to):
            return agent.endpoint.call(to, function, args, kwargs, timeout, is_native)
    except RefusedValue as refused:
        raise refused.located(func=function, args=args, kwargs=kwargs) from None


def begin(to: Any, function: Any, args: Any, kwargs: Any, timeout: float | None) -> CallFuture:
    """Returns a Future of what call() returns. Raises TypeError before anything is sent when a value cannot cross;
    RuntimeError for arguments that no overload of a torch operator takes."""
    agent = registry.current()
    future = CallFuture(agent, agent.seconds_for(timeout))
    try:
        with telemetry.range_of_call("async", function, agent, to):
            agent.endpoint.begin(to, function, args, kwargs, timeout, future)
    except RefusedValue as refused:
        raise refused.located(func=function, args=args, kwargs=kwargs) from None
    return future


def remote(to: Any, function: Any, args: Any, kwargs: Any, timeout: float) -> PyRRef:
    """Returns a reference, at once, to the result of function(*args, **kwargs), which stays in the member."""
    agent = registry.current()
    args, kwargs = tuple(args or ()), dict(kwargs or {})
    found = agent.resolve(function)  # how both sides find it, or None for a function that crosses as a value
    if (operator := functions.operator_of(function)) is not None:
        functions.check_operator(operator, args, kwargs)
    made = (function if found is None else found[2], args, kwargs)
    try:
        with telemetry.range_of_call("remote", function, agent, to):
            return rref.begin(agent, agent.member(to).info.id, ".make", made, timeout)
    except RefusedValue as refused:
        raise refused.located(func=function, args=args, kwargs=kwargs) from None


class Call(CallFuture):
    """A call under way. ``wait()`` and ``await`` give its result, or throw what it threw.

    Thread safety: all members may be called concurrently."""

    def __init__(self, agent: Any, member: Member, function: str, timeout: float | None) -> None:
        parent: Any = _core._current_call()
        seconds, self.deadline = agent.endpoint.native_deadline(timeout)
        super().__init__(agent, seconds)
        self.agent, self.member, self.function = agent, member, function
        self.root: tuple[int, int] | None = parent.root if parent is not None else None
        self.number = 0  # that of the endpoint; 0 before it is sent
        self.times = {"made": time.monotonic()}  # when the call came to each stage

    @property
    def trace(self) -> str:
        """The name of the call in the logs of both sides, and of calls that its function makes."""
        trace: str = self.agent.trace_of(*(self.root or (self.agent.info.id, self.number)))
        return trace

    @property
    def to(self) -> WorkerInfo:
        """The WorkerInfo of the callee."""
        return self.member.info

    def cancel(self) -> bool:
        """Fails the call at once with Cancelled, and tells its function: current_call().cancelled. A function that has
        not begun does not begin. Returns False when the outcome was here already."""
        if self.done():
            return False
        self._tell_callee()
        self.complete(None, Cancelled(f"{self.function} at {self.to} was cancelled by this process"))
        return True

    def __await__(self) -> Generator[Any, None, Any]:
        future = future_in_loop(self.add_done_callback, self.wait)
        future.add_done_callback(lambda f: f.cancelled() and self.cancel())
        return future.__await__()

    def __repr__(self) -> str:
        return f"<Call of {self.function} at {self.to.name}, {next(reversed(self.times))}>"

    # --- from here on for this module and for streams

    def send(self, start: Callable[[], None], args: Any, kwargs: Any) -> None:
        """Makes the call with `start` when there is room for it. The arguments are for errors."""
        rank, endpoint = self.to.id, self.agent.endpoint
        left = 0.0 if self.deadline is None else max(self.deadline - time.monotonic(), 1e-6)
        endpoint.acquire(self.agent, rank, left)
        try:
            start()
        except BaseException as error:
            endpoint.release(rank)
            if isinstance(error, RefusedValue):
                raise error.located(args=args, kwargs=kwargs) from None
            raise
        if self.call is not None:
            self.number = self.call.number
        self._reach("sent", f"call {self.function} at {self.to}")
        with _lock:
            _under_way.add(self)
        self.add_done_callback(Call._ended)

    def send_here(self, run: Callable[[Any], Any]) -> None:
        """Lets a worker of this process call run(running call): nothing crosses, and nothing is copied."""
        sent = self.agent.endpoint.begin_here(self.seconds, self)
        self.number = sent.number
        self.begin(sent)
        self.agent.run_soon(self._serve_here, registry.context(), run)

    def _serve_here(self, context: Any, run: Callable[[Any], Any]) -> None:
        agent = self.agent
        with registry.within(context):
            result = serve(agent, agent.info.id, self.number, self.function, self.seconds, self.root, run)
        if isinstance(result, Deferred):
            result.future.add_done_callback(lambda f: self._complete_here(lambda: result.then(f.value())))
        else:
            self._complete_here(lambda: result)

    def _complete_here(self, result: Callable[[], Any]) -> None:
        try:
            value = result()
            error = value.exception() if isinstance(value, RemoteFailure) else None
        except Exception as failure:
            value, error = None, failure
        self.complete(None if error else devices.unmarked(value), error)

    def _tell_callee(self) -> None:
        if self.to.id == self.agent.info.id:
            self.agent.endpoint.cancel(self.agent.info.id, self.number)
        else:
            self.agent.note(self.to.id, "cancel", self.number)

    def _reach(self, stage: str, text: str) -> None:
        self.times[stage] = time.monotonic()
        telemetry.log.debug("%s: %s", self.trace, text)

    def _ended(self) -> None:
        self.agent.endpoint.release(self.to.id)
        with _lock:
            _under_way.discard(self)
        error = error_of(self)
        if isinstance(error, Timeout):
            self._tell_callee()  # the result is not wanted
        seconds = time.monotonic() - self.times["made"]
        self.agent.endpoint.observe(True, self.function, seconds, error is not None)
        stage = "answered" if error is None else "failed"
        self._reach(stage, f"{self.function} at {self.to} {stage} after {seconds:.6f} s")


def call_async(to: Any, function: Any, args: Any, kwargs: Any, timeout: float | None) -> Call:
    """Returns the Call of a native call, which has begun."""
    agent = registry.current()
    member = agent.member(to)
    agent.check_arguments(args)
    made = Call(agent, member, agent.name_at(member, function), timeout)

    def start() -> None:
        if member.info.id != agent.info.id:
            agent.endpoint.begin(member.info.id, made.function, args, kwargs, made.seconds, made, True)
            return
        given = devices.unmarked(args), devices.unmarked(kwargs or {})
        made.send_here(lambda running: _run_here(agent, running, *given))

    made.send(start, args, kwargs)
    return made


def _run_here(agent: Any, running: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    function = functions.find(running.function)
    running.check()
    return agent.finished(function, function(*args, **kwargs))


def under_way() -> list[Call]:
    """Returns the calls that no thread waited for from the start, and that have not ended."""
    with _lock:
        return list(_under_way)


def serve(
    agent: Any,
    caller: int,
    number: int,
    name: str,
    seconds: float,
    root: tuple[int, int] | None,
    run: Callable[[Any], Any],
) -> Any:
    """Returns run(call) with that call as the current one. Its failure is a RemoteFailure."""
    start, failed = time.monotonic(), False
    try:
        with telemetry.range_of_served(name, agent.get_worker_info(caller)):
            return agent.endpoint.run_as(agent, caller, number, name, seconds, root, run)
    except Exception as error:
        failed = True
        return RemoteFailure.of(error, agent.info)
    finally:
        agent.endpoint.observe(False, name, time.monotonic() - start, failed)


@verb("cancel")
def _cancel(agent: Any, caller: int, number: int) -> None:
    agent.endpoint.cancel(caller, number)
