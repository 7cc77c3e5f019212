# SPDX-License-Identifier: Apache-2.0
"""Calls of functions in other members as torch.distributed.rpc has them, and references to their results.

Thread safety: all functions may be called concurrently.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

from .. import _core
from . import functions, registry
from .errors import RemoteFailure
from .futures import CallFuture
from .references import Cell, PyRRef, backward
from .registry import ASYNC_MARK, Deferred, verb
from .values import RefusedValue

local = threading.local()  # .future_list: the futures that _wait_all() collects


def call(to: Any, function: Any, args: Any, kwargs: Any, timeout: float) -> Any:
    """Returns the result of function(*args, **kwargs), run in a member."""
    try:
        return registry.current().endpoint.call(to, function, args, kwargs, timeout)
    except RefusedValue as refused:
        raise refused.located(func=function, args=args, kwargs=kwargs) from None


def begin(to: Any, function: Any, args: Any = None, kwargs: Any = None, timeout: float = -1.0) -> CallFuture:
    """Returns a Future of what call() returns. Raises TypeError before anything is sent when a value cannot cross;
    RuntimeError for arguments that no overload of a torch operator takes."""
    agent = registry.current()
    future = CallFuture(agent, agent.seconds_for(timeout))
    try:
        agent.endpoint.begin(to, function, args, kwargs, timeout, future)
    except RefusedValue as refused:
        raise refused.located(func=function, args=args, kwargs=kwargs) from None
    return future


def remote(to: Any, function: Any, args: Any = None, kwargs: Any = None, timeout: float = -1.0) -> PyRRef:
    """Returns a reference, at once, to the result of function(*args, **kwargs), which stays in the member."""
    agent = registry.current()
    owner = agent.member(to).info.id
    args, kwargs = tuple(args or ()), dict(kwargs or {})
    named = agent.wire_function(function)
    if (operator := functions.operator_of(function)) is not None:
        functions.check_operator(operator, args, kwargs)
    try:
        return _remote(agent, owner, ".make", (named, args, kwargs), timeout)
    except RefusedValue as refused:
        raise refused.located(func=function, args=args, kwargs=kwargs) from None


def invoke_method(rref: PyRRef, how: str, name: str, args: Any, kwargs: Any, timeout: float) -> Any:
    """Calls a method of a referenced value, as the proxies of references do."""
    agent = rref._agent
    running: Any = _core._current_call()
    if running is not None:  # a call for another member: it ends before the outer one
        running.check()
        left = running.remaining()
        seconds = agent.seconds_for(timeout)
        if left is not None and (not seconds or left < seconds):
            timeout = max(left, 1e-6)
    value = (rref if rref.is_owner() else rref._reference, name, args, kwargs)
    try:
        if how == "remote":
            return _remote(agent, rref._owner, ".make_method", value, timeout)
        if how == "async":
            return agent.begin_verb(rref._owner, ".method", value, timeout)
        if not rref.is_owner():
            rref._wait_until_made(timeout)
            rref._check()
        return agent.call_verb(rref._owner, ".method", value, timeout)
    except RefusedValue as refused:
        raise refused.located(args=args, kwargs=kwargs) from None


def _remote(agent: Any, owner: int, verb: str, args: tuple[Any, ...], timeout: float) -> PyRRef:
    references = agent.references
    reference = references.new_id()
    if owner == agent.info.id:
        return _remote_here(agent, verb, reference, args, timeout)
    held = references.hold(owner, reference, references.new_id())
    try:
        held.creation = agent.begin_verb(owner, verb, args, timeout, reference=reference)
    except BaseException:
        held.is_deleted = True  # nothing was sent, and nothing is to be dropped
        raise
    made: PyRRef = agent.rref_class._of_held(agent, held)
    return made


def _remote_here(agent: Any, verb: str, reference: tuple[int, int], args: tuple[Any, ...], timeout: float) -> PyRRef:
    """A call to this process: the table keeps the cell while the function runs."""
    cell, me = Cell(), agent.info.id
    agent.references.owned.enter(reference, cell)
    agent.references.owned.count(reference, me)
    rref: PyRRef = agent.rref_class._of_cell(agent, reference, cell)
    future = agent.begin_verb(me, verb, args, timeout, reference=reference)

    def is_made(made: Any) -> None:
        try:
            made.value()
        except Exception as error:
            cell.set(RemoteFailure(type(error), str(error)))
        agent.references.owned.count(reference, me, -1)

    future.add_done_callback(is_made)
    rref._created = future
    return rref


# --- in the member that is called


def _run(agent: Any, function: Any, args: Any, kwargs: Any, check: Callable[[Any], None] = functions.check) -> Any:
    """Returns the result, a Future of it for functions marked so, or the failure."""
    try:
        check(function)
        result = function(*args, **(kwargs or {}))
        if getattr(function, ASYNC_MARK, False):
            _check_future(result)
        return result
    except Exception as error:
        failure = RemoteFailure.of(error, agent.info, unescaped=True)
        print(failure.text, file=sys.stderr)
        return failure


def _check_future(result: Any) -> None:
    if not isinstance(result, torch._C.Future):
        raise RuntimeError(
            "Functions decorated with @rpc.async_function must return a torch.futures.Future object, but "
            f"got {type(result)}"
        )


def _settled(future: Any) -> Any:
    """Returns a Future that is done with another, and never fails."""
    out: Any = torch.futures.Future()
    future.add_done_callback(lambda _: out.set_result(None))
    return out


def _outcome(agent: Any, future: Any) -> Any:
    try:
        return future.wait()  # it is done; wait() orders this thread's streams behind the result's
    except Exception as error:
        return RemoteFailure.of(error, agent.info, unescaped=True)


def _answer(agent: Any, function: Any, result: Any) -> Any:
    if getattr(function, ASYNC_MARK, False) and isinstance(result, torch._C.Future):
        return Deferred(_settled(result), lambda _: _outcome(agent, result))
    return result


def run_async(agent: Any, function: Any, args: Any, kwargs: Any) -> Any:
    """Runs a function that returns a Future of its result."""
    return _answer(agent, function, _run(agent, function, args, kwargs, _is_checked))


def finished(agent: Any, function: Any, running: Any, result: Any) -> Any:
    """Returns the answer of a native call whose result may be a coroutine, a generator or a Future."""
    if inspect.iscoroutine(result):
        return asyncio.run(result)
    if inspect.isgenerator(result):
        result.close()
        raise TypeError(f"{running.function} is a generator function: call it with onecopy.rpc.stream()")
    return _answer(agent, function, result)


def _is_checked(function: Any) -> None:
    """Takes the place of functions.check() where the function was checked when it was found."""


def _cell_of(agent: Any, given: Any) -> Cell:
    """Returns the cell of a reference, or of an RRef to a value of this process."""
    cell: Cell = given._cell if isinstance(given, PyRRef) else agent.references.owned.cell(tuple(given))
    return cell


def _with_cell(agent: Any, caller: int, args: tuple[Any, ...], reference: Any) -> tuple[Any, ...]:
    return (_cell_of(agent, args[0]), *args[1:])


def _with_new_cell(agent: Any, caller: int, args: tuple[Any, ...], reference: Any) -> tuple[Any, ...]:
    return (agent.references.owned.made_by(tuple(reference), caller, agent.info.id), *args)


def _with_both_cells(agent: Any, caller: int, args: tuple[Any, ...], reference: Any) -> tuple[Any, ...]:
    return _with_new_cell(agent, caller, _with_cell(agent, caller, args, None), reference)


@verb(".apply")
def _apply(agent: Any, caller: int, function: Any, args: Any, kwargs: Any) -> Any:
    return _answer(agent, function, _run(agent, function, args, kwargs))


def _find_method(agent: Any, cell: Cell, name: str) -> tuple[Any, RemoteFailure | None]:
    """Waits until the value is made."""
    try:
        functions.check_method(name)
        return getattr(cell.value(), name), None
    except Exception as error:
        return None, RemoteFailure.of(error, agent.info, unescaped=True)


@verb(".method", _with_cell)
def _run_method(agent: Any, caller: int, cell: Cell, name: str, args: Any, kwargs: Any) -> Any:
    method, failure = _find_method(agent, cell, name)
    return failure if method is None else _answer(agent, method, _run(agent, method, args, kwargs, _is_checked))


def _make(agent: Any, cell: Cell, function: Any, result: Any) -> Any:
    """Puts a result into its cell. The answer says that it is there."""

    def set_outcome(_: Any) -> None:
        cell.set(_outcome(agent, result))

    if getattr(function, ASYNC_MARK, False) and isinstance(result, torch._C.Future):
        return Deferred(_settled(result), set_outcome)
    cell.set(result)
    return None


@verb(".make", _with_new_cell)
def _run_remote(agent: Any, caller: int, cell: Cell, function: Any, args: Any, kwargs: Any) -> Any:
    if not isinstance(function, str):
        return _make(agent, cell, function, _run(agent, function, args, kwargs))
    try:
        found = agent.function_named(function)
    except Exception as error:
        cell.set(agent.refusal(error))
        return cell.future.value()
    return _make(agent, cell, found, _run(agent, found, args, kwargs, _is_checked))


@verb(".make_method", _with_both_cells)
def _run_remote_method(agent: Any, caller: int, cell: Cell, of: Cell, name: str, args: Any, kwargs: Any) -> Any:
    method, failure = _find_method(agent, of, name)
    result = failure if method is None else _run(agent, method, args, kwargs, _is_checked)
    return _make(agent, cell, method, result)


def _of_value(cell: Cell, then: Callable[[Any], Any]) -> Any:
    """Returns then(the value of the cell), or a Deferred for one that is not made yet."""
    return then(cell.future.value()) if cell.future.done() else Deferred(cell.future, then)


@verb(".fetch", _with_cell)
def _fetch(agent: Any, caller: int, cell: Cell) -> Any:
    return _of_value(cell, lambda made: made)


@verb(".type", _with_cell)
def _type(agent: Any, caller: int, cell: Cell) -> Any:
    return _of_value(cell, lambda made: type(Cell.unwrap(made)))


@verb(".backward", _with_cell)
def _backward(agent: Any, caller: int, cell: Cell, context_id: int, retain_graph: bool) -> Any:
    return Deferred(cell.future, lambda made: backward(Cell.unwrap(made), context_id, retain_graph))
