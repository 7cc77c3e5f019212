# SPDX-License-Identifier: Apache-2.0
"""Calls of functions in other members, and references to their results."""

import sys
import threading

import torch

from . import _running, _values, functions, registry
from ._references import Cell, backward
from .errors import RemoteFailure
from .registry import ASYNC_MARK, Deferred, handler, handlers

_PARTS = {"[0]": "func", "[1]": "args", "[2]": "kwargs"}  # of a call's value: how errors name them

local = threading.local()  # .future_list: the futures that _wait_all() collects


def call(to, function, args=None, kwargs=None, timeout=-1.0):
    """A Future of function(*args, **kwargs), run in that member. Throws TypeError before anything is sent when a value
    cannot cross; RuntimeError for arguments that no overload of a torch operator takes."""
    agent = registry.current()
    context, rank = registry.context(), agent.member(to).info.id
    value = _call_value(function, args, kwargs)
    verb, named = _named(agent, rank, "run", value)
    try:
        future = agent.call(rank, verb, named, timeout=timeout, context=context)
    except _values.RefusedValue as refused:
        raise refused.named(_PARTS) from None
    agent.learn(function)
    return future


def _named(agent, rank, verb, value):
    """The verb and the value of a request, with the function's name for it if both sides know that."""
    name = agent.name_of(value[0]) if rank != agent.info.id else None
    return (verb, value) if name is None else (f"{verb}_named", (name, *value[1:]))


def call_and_wait(to, function, args, kwargs, timeout):
    """The result of call(), without a Future where the values are plain."""
    agent = registry.current()
    context, name, rank = registry.context(), agent.name_of(function), agent.member(to).info.id
    if context is not None and name is not None:
        value = (name, *_call_value(function, args, kwargs)[1:])
        result = agent.call_and_wait(rank, "run_named", value, timeout=timeout, context=context)
        if result is not NotImplemented:
            return result
    return call(rank, function, args, kwargs, timeout).wait()


def remote(to, function, args=None, kwargs=None, timeout=-1.0):
    """A reference, at once, to the result of function(*args, **kwargs), which stays in that member."""
    agent = registry.current()
    owner = agent.member(to).info.id
    rref = _remote(agent, owner, *_named(agent, owner, "remote", _call_value(function, args, kwargs)), timeout)
    agent.learn(function)
    return rref


def invoke_method(rref, how, name, args, kwargs, timeout):
    agent = rref._agent
    if _running.current() is not None:  # a call for another: it ends before the outer one
        given = agent.timeout if timeout < 0 else timeout
        timeout = _running.seconds_until(_running.deadline_for(given, given))
    value, context = (rref, name, list(args), kwargs), registry.context()
    verb = "method"
    if not rref.is_owner():
        verb, value = "method_here", (rref._reference, *value[1:])
    if how == "remote":
        return _remote(agent, rref._owner, f"remote_{verb}", value, timeout)
    if how == "async":
        return agent.call(rref._owner, verb, value, timeout=timeout, context=context)
    if not rref.is_owner():
        rref._wait_until_made(timeout)
        rref._check()
    return agent.result(rref._owner, verb, value, timeout=timeout, context=context)


def _call_value(function, args, kwargs):
    if not callable(function):
        raise TypeError("function should be callable.")
    args, kwargs = tuple(args or ()), dict(kwargs or {})
    if (operator := functions.operator_of(function)) is not None:
        functions.check_operator(operator, args, kwargs)
    return (function, list(args), kwargs)


def _remote(agent, owner, verb, value, timeout):
    references = agent.references
    reference = references.new_id()
    if owner == agent.info.id:
        return _remote_here(agent, verb, reference, value, timeout)
    held = references.hold(owner, reference, references.new_id())
    try:
        held.creation = agent.call(owner, verb, (reference, *value), timeout=timeout, context=registry.context())
    except BaseException:
        held.is_deleted = True  # nothing was sent, and nothing is to be dropped
        raise
    return agent.rref_class._of_held(agent, held)


def _remote_here(agent, verb, reference, value, timeout):
    """A call to oneself: the table keeps the cell while the function runs."""
    cell = Cell()
    agent.references.owned.enter(reference, cell)
    agent.references.owned.count(reference, agent.info.id)
    rref = agent.rref_class._of_cell(agent, reference, cell)
    future = agent.call(agent.info.id, verb, (reference, *value), timeout=timeout, context=registry.context())

    def is_made(made):
        try:
            made.value()
        except Exception as error:
            cell.set(RemoteFailure(type(error), str(error)))
        agent.references.owned.count(reference, agent.info.id, -1)

    future.add_done_callback(is_made)
    rref._created = future
    return rref


# --- in the member that is called


def _run(agent, function, args, kwargs, check=functions.check):
    """The result, a Future of it for functions marked so, or the failure."""
    try:
        check(function)
        result = function(*args, **kwargs)
        if getattr(function, ASYNC_MARK, False):
            _check_future(result)
        return result
    except Exception as error:
        failure = RemoteFailure.of(error, agent.info, unescaped=True)
        print(failure.text, file=sys.stderr)
        return failure


def _check_future(result):
    if not isinstance(result, torch._C.Future):
        raise RuntimeError(
            "Functions decorated with @rpc.async_function must return a torch.futures.Future object, but "
            f"got {type(result)}"
        )


def _settled(future):
    """A Future of the outcome of another, which never fails."""
    out = torch.futures.Future()
    future.add_done_callback(lambda _: out.set_result(None))
    return out


def _outcome(agent, future):
    try:
        return future.wait()  # it is done; wait() orders this thread's streams behind the result's
    except Exception as error:
        return RemoteFailure.of(error, agent.info, unescaped=True)


def _answer(agent, function, result):
    if getattr(function, ASYNC_MARK, False) and isinstance(result, torch._C.Future):
        return Deferred(_settled(result), lambda _: _outcome(agent, result))
    return result


@handler(handlers, "run")
def _run_call(agent, caller, value):
    function, args, kwargs = value
    return _answer(agent, function, _run(agent, function, args, kwargs))


def _method_of(rref, name):
    """The method to call. The value must be here, and made: waits for it."""
    functions.check_method(name)
    return getattr(rref.local_value(), name)


def _is_found(method):
    """Methods of referenced values were checked when they were found."""


@handler(handlers, "method")
def _run_method(agent, caller, value):
    rref, name, args, kwargs = value
    method, failure = _find_method(agent, rref, name)
    return failure if method is None else _answer(agent, method, _run(agent, method, args, kwargs, _is_found))


def _find_method(agent, rref, name):
    try:
        return _method_of(rref, name), None
    except Exception as error:
        return None, RemoteFailure.of(error, agent.info, unescaped=True)


def _make(agent, cell, function, result):
    """Puts a result into its cell. The answer says that it is there."""

    def set_outcome(_):
        cell.set(_outcome(agent, result))

    if getattr(function, ASYNC_MARK, False) and isinstance(result, torch._C.Future):
        return Deferred(_settled(result), set_outcome)
    cell.set(result)
    return None


@handler(handlers, "run_named")
def _run_named(agent, caller, value):
    name, args, kwargs = value
    try:
        function = agent.function_named(name)
    except Exception as error:
        return agent.refusal(error)
    return _answer(agent, function, _run(agent, function, args, kwargs, _is_found))


@handler(handlers, "method_here")
def _run_method_here(agent, caller, value):
    cell, name, args, kwargs = value
    method, failure = _find_method_here(agent, cell, name)
    return failure if method is None else _answer(agent, method, _run(agent, method, args, kwargs, _is_found))


def _find_method_here(agent, cell, name):
    try:
        functions.check_method(name)
        return getattr(cell.value(), name), None
    except Exception as error:
        return None, RemoteFailure.of(error, agent.info, unescaped=True)


@handler(handlers, "remote")
def _run_remote(agent, caller, value):
    cell, function, args, kwargs = value
    return _make(agent, cell, function, _run(agent, function, args, kwargs))


@handler(handlers, "remote_named")
def _run_remote_named(agent, caller, value):
    cell, name, args, kwargs = value
    try:
        function = agent.function_named(name)
    except Exception as error:
        cell.set(agent.refusal(error))
        return cell.future.value()
    return _make(agent, cell, function, _run(agent, function, args, kwargs, _is_found))


@handler(handlers, "remote_method")
def _run_remote_method(agent, caller, value):
    cell, rref, name, args, kwargs = value
    return _make_by_method(agent, cell, *_find_method(agent, rref, name), args, kwargs)


@handler(handlers, "remote_method_here")
def _run_remote_method_here(agent, caller, value):
    cell, of, name, args, kwargs = value
    return _make_by_method(agent, cell, *_find_method_here(agent, of, name), args, kwargs)


def _make_by_method(agent, cell, method, failure, args, kwargs):
    result = failure if method is None else _run(agent, method, args, kwargs, _is_found)
    return _make(agent, cell, method, result)


def _of_value(cell, then):
    """then(the value of the cell), or a Deferred for one that is not made yet."""
    return then(cell.future.value()) if cell.future.done() else Deferred(cell.future, then)


@handler(handlers, "fetch")
def _fetch(agent, caller, value):
    (cell,) = value
    return _of_value(cell, lambda made: made)


@handler(handlers, "type")
def _type(agent, caller, value):
    (cell,) = value
    return _of_value(cell, lambda made: type(Cell.unwrap(made)))


@handler(handlers, "reference_backward")
def _reference_backward(agent, caller, value):
    cell, context_id, retain_graph = value
    return Deferred(cell.future, lambda made: backward(Cell.unwrap(made), context_id, retain_graph))
