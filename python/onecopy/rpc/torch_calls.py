# SPDX-License-Identifier: Apache-2.0
"""Calls of functions in other members as torch.distributed.rpc has them, and references to their results.

Thread safety: all functions may be called concurrently.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch

from . import functions, registry, rref
from .errors import RemoteFailure
from .futures import CallFuture, Future
from .owned import Cell, Reference
from .refused import RefusedValue
from .registry import ASYNC_MARK, Deferred, verb
from .rref import PyRRef


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
    found = agent.resolve(function)  # how both sides find it, or None for a function that crosses as a value
    if (operator := functions.operator_of(function)) is not None:
        functions.check_operator(operator, args, kwargs)
    try:
        return rref.begin(agent, owner, ".make", (function if found is None else found[2], args, kwargs), timeout)
    except RefusedValue as refused:
        raise refused.located(func=function, args=args, kwargs=kwargs) from None


# --- in the member that is called


def _unchecked(function: object) -> None:
    """Takes the place of functions.check() where the function was checked when it was found."""


def _run(agent: Any, function: Any, args: Any, kwargs: Any, check: Callable[[Any], None] = _unchecked) -> Any:
    """Returns the result, a Future of it for functions marked so, or the failure."""
    try:
        check(function)
        result = function(*args, **(kwargs or {}))
        if getattr(function, ASYNC_MARK, False) and not isinstance(result, torch._C.Future):
            raise RuntimeError(
                "Functions decorated with @rpc.async_function must return a torch.futures.Future object, but "
                f"got {type(result)}"
            )
        return result
    except Exception as error:
        failure = RemoteFailure.of(error, agent.info, unescaped=True)
        print(failure.text, file=sys.stderr)
        return failure


def _outcome(agent: Any, future: Future) -> Any:
    try:
        return future.wait()  # it is done; wait() orders this thread's streams behind the result's
    except Exception as error:
        return RemoteFailure.of(error, agent.info, unescaped=True)


def _answer(agent: Any, function: Any, result: Any, then: Callable[[Any], Any] = lambda outcome: outcome) -> Any:
    """Returns then(result), or a Deferred for the Future of a function that is marked so."""
    if not getattr(function, ASYNC_MARK, False) or not isinstance(result, torch._C.Future):
        return then(result)
    settled: Future = torch.futures.Future()  # it never fails
    result.add_done_callback(lambda _: settled.set_result(None))
    return Deferred(settled, lambda _: then(_outcome(agent, result)))


def run_async(agent: Any, function: Any, args: Any, kwargs: Any) -> Any:
    """Runs a function that returns a Future of its result."""
    return _answer(agent, function, _run(agent, function, args, kwargs))


def finished(agent: Any, function: Any, running: Any, result: Any) -> Any:
    """Returns the answer of a native call whose result may be a coroutine, a generator or a Future."""
    if inspect.iscoroutine(result):
        return asyncio.run(result)
    if inspect.isgenerator(result):
        result.close()
        raise TypeError(f"{running.function} is a generator function: call it with onecopy.rpc.stream()")
    return _answer(agent, function, result)


@verb(".apply")
def _apply(agent: Any, caller: int, function: Any, args: Any, kwargs: Any) -> Any:
    return _answer(agent, function, _run(agent, function, args, kwargs, functions.check))


# Arguments of verbs are prepared in the order of the lane: the count of a reference that comes later may end a value.


def _with_cell(agent: Any, caller: int, args: tuple[Any, ...], reference: Any) -> tuple[Any, ...]:
    """The first argument is a reference, or an RRef to a value of this process."""
    given = args[0]
    return (given._cell if isinstance(given, PyRRef) else agent.references.owned.cell(tuple(given)), *args[1:])


def _with_new_cell(agent: Any, caller: int, args: tuple[Any, ...], reference: Reference) -> tuple[Any, ...]:
    return (agent.references.owned.made_by(tuple(reference), caller, agent.info.id), *args)


def _with_both_cells(agent: Any, caller: int, args: tuple[Any, ...], reference: Reference) -> tuple[Any, ...]:
    return _with_new_cell(agent, caller, _with_cell(agent, caller, args, None), reference)


def _run_method_of(agent: Any, cell: Cell, name: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Waits until the value is made. Returns (its method or None, the result)."""
    try:
        functions.check_method(name)
        method = getattr(cell.value(), name)
    except Exception as error:
        return None, RemoteFailure.of(error, agent.info, unescaped=True)
    return method, _run(agent, method, args, kwargs)


@verb(".method", _with_cell)
def _run_method(agent: Any, caller: int, *args: Any) -> Any:
    return _answer(agent, *_run_method_of(agent, *args))


@verb(".make_method", _with_both_cells)
def _make_by_method(agent: Any, caller: int, cell: Cell, *args: Any) -> Any:
    return _answer(agent, *_run_method_of(agent, *args), cell.set)  # the answer says that the value is there


@verb(".make", _with_new_cell)
def _make(agent: Any, caller: int, cell: Cell, function: Any, args: Any, kwargs: Any) -> Any:
    check = functions.check
    if isinstance(function, str):
        try:
            function, check = agent.function_named(function), _unchecked
        except Exception as error:
            cell.set(agent.refusal(error))
            return cell.future.value()
    return _answer(agent, function, _run(agent, function, args, kwargs, check), cell.set)


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
    return Deferred(cell.future, lambda made: rref.backward(Cell.unwrap(made), context_id, retain_graph))
