# SPDX-License-Identifier: Apache-2.0
"""Finds functions, and answers calls of other members."""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

import onecopy

from . import functions, registry, streams
from .cells import Cell
from .errors import RefusedValue, RemoteFailure
from .futures import Future
from .peers import Member, WorkerInfo
from .registry import ASYNC_MARK, Deferred
from .rref_table import Reference, References

_OF_TORCH, _VERB = 0, 2  # kinds of targets
_CONSTANTS, _MAX_CONSTANT = {type(None), bool, int, float, str, bytes}, 512  # the max size in bytes
_NAMED = (types.FunctionType, types.BuiltinFunctionType)


class _NotServed(Exception):
    """The function does not exist, or others may not call it."""

    def __init__(self, failure: RemoteFailure) -> None:
        super().__init__(failure.text)
        self.failure = failure


class Serving:
    """Serves the rare cases of _core._RpcEndpoint: a function's first call, verbs, and deferred results.

    Thread safety: all members may be called concurrently."""

    info: WorkerInfo
    endpoint: Any = None
    references: References
    _members: dict[int, Member]

    def __init__(self) -> None:
        self._served: dict[str, Any] = {}  # functions registered under their wire names

    def resolve(self, function: Any, how: str) -> tuple[Any, str | None, str, Any] | None:
        """Returns how both sides find a function, as (the names of its module, its name in the module, its wire name, a
        check of its arguments or None), or None for a function that is sent as a value. `how` is "torch", "native",
        "stream" or "program". Only the callee looks up a "native" or "stream" function; a "program" in C++ may name its
        functions freely."""
        if how != "torch":
            is_named = how == "program" and isinstance(function, str)
            name = function if is_named else native_name(function)
            return None, None, name if how == "program" else f"{how} {name}", None
        if not callable(function):
            raise TypeError("function should be callable.")
        if type(function) not in _NAMED:
            return None
        operator = functions.operator_of(function)
        try:
            module, name = ("torch", function.__name__) if operator else functions.name_of(function)
            names = vars(functions.module_named(module))
        except (TypeError, AttributeError, PermissionError):
            return None
        if names.get(name) is not function:
            return None
        check = operator and (lambda args, kwargs: functions.check_operator(operator, args, kwargs))
        return names, sys.intern(name), f"{module}:{name}", check

    @staticmethod
    def name_at(member: Member, function: Any) -> str:
        """Returns the name by which a member finds a function."""
        return function if member.is_program and isinstance(function, str) else native_name(function)

    @staticmethod
    def check_arguments(args: Any) -> None:
        """Raises TypeError for the arguments of a call that are neither a list nor a tuple."""
        if not isinstance(args, (list, tuple)):
            raise TypeError(f"args is a tuple of arguments, not a {type(args).__name__}: args=({args!r:.60},)")

    def find_target(self, wire_name: str) -> tuple[Any, Any, str, bool, Any]:
        """Returns (function, a dict that holds the function, its key in the dict, whether it returns a Future of its
        result, the function that prepares its arguments or None). Raises AttributeError or PermissionError."""
        if wire_name.startswith("."):
            function, prepare = registry.handlers[wire_name]
            return function, {wire_name: function}, wire_name, False, prepare and functools.partial(prepare, self)
        how, _, public_name = wire_name.rpartition(" ")
        try:
            function = functions.find(public_name)
        except Exception as error:
            if not how:
                raise
            raise _NotServed(RemoteFailure.of(error, self.info)) from None
        if how == "stream":
            function = functools.partial(streams.run, self, public_name)
        names, name = functions.names_of(public_name)
        if names.get(name) is not function:
            names, name = self._served, wire_name
            names[name] = function
        return function, names, sys.intern(name), getattr(function, ASYNC_MARK, False), None

    def serve(self, function: Any, sender: int, call: int, args: tuple[Any, ...], cell: Any) -> tuple[Any] | None:
        """Runs a verb. Returns (answer,), or None for a deferred answer."""
        return self.answer_of(sender, call, function(self, sender, *args), cell)

    def finish(self, function: Any, sender: int, call: int, result: Any, cell: Any) -> tuple[Any] | None:
        """Returns answer_of() of a function's result. Runs a coroutine, and refuses a generator."""
        if inspect.iscoroutine(result):
            return self.answer_of(sender, call, asyncio.run(result), cell)
        if inspect.isgenerator(result):
            result.close()
            raise TypeError(
                f"{functions.text_name_of(function)} is a generator function: call it with onecopy.rpc.stream()"
            )
        return self.answer_of(sender, call, answer(self, function, checked_future(function, result)), cell)

    def new_cell(self, reference: Reference, sender: int) -> Cell:
        """Returns the cell for the result of a call that makes a reference. Called in the order of the lane."""
        return self.references.owned.made_by(reference, sender, self.info.id)

    @staticmethod
    def keep(cell: Cell, result: Any) -> tuple[Any] | None:
        """Sets a cell to a result. Returns the answer that tells the caller: (result,) for a small value that cannot
        change, so that to_here() need not ask for it, or else None."""
        cell.set(result)
        return (result,) if type(result) in _CONSTANTS and sys.getsizeof(result) <= _MAX_CONSTANT else None

    def answer_of(self, sender: int, call: int, result: Any, cell: Cell | None = None) -> tuple[Any] | None:
        """Returns (answer,), or None for a failure, which is sent here, and for a deferred answer. `cell` gets the
        result of a call that makes a reference."""
        if isinstance(result, RemoteFailure):
            self.fail(sender, call, result, cell)
            return None
        if not isinstance(result, Deferred):
            return (result if cell is None else self.keep(cell, result),)
        if self._members[sender].is_program:
            text = "the function gives its result later, which no program in C++ can take"
            self.fail(sender, call, RemoteFailure(RuntimeError, f"On {self.info}:\n{text}"))
            return None
        context = registry.context()
        result.future.add_done_callback(
            lambda future: self.run_soon(self._answer_later, sender, call, context, result.then, future, cell)
        )
        return None

    def _answer_later(
        self, sender: int, call: int, context: Any, then: Callable[[Any], Any], future: Any, cell: Cell | None
    ) -> None:
        try:
            with registry.within(context):
                answer = self.answer_of(sender, call, then(future.value()), cell)
                if answer is not None:
                    self.endpoint.answer(sender, call, answer[0])
        except BaseException as error:
            self.fail(sender, call, _failure(error), cell)

    def fail(self, to: int, call: int, failure: RemoteFailure, cell: Cell | None = None) -> None:
        """Answers a call with a failure, to which `cell` is set."""
        if cell is not None:
            cell.set(failure)
        code = getattr(failure.kind, "code", "")  # which is a slot of SystemExit
        self.endpoint.fail(to, call, failure.kind, failure.text, code if isinstance(code, str) else "")

    def refuse(self, sender: int, call: int, error: Any, reference: Any) -> None:
        """Answers a call that was not run or whose answer could not be written. Fails the value that the call should
        have made if `reference` is not None, so that no member waits for the value."""
        kind = type(error) if isinstance(error, Exception) else RuntimeError
        if issubclass(kind, (AttributeError, onecopy.Error)):  # an unknown name, or a malformed message
            kind = RuntimeError
        cell = None if reference is None else self.new_cell(reference, sender)
        is_known = isinstance(error, _NotServed)
        self.fail(sender, call, error.failure if is_known else RemoteFailure(kind, f"On {self.info}:\n{error}"), cell)

    def answer_error(
        self, sender: int, call: int, error: Exception, kind: int, has_run: bool, cell: Cell | None
    ) -> None:
        """Answers a call with the exception of a function, or with the reason why its result could not be written.
        `kind` is a PythonEndpoint::LocalFunction::Kind."""
        if has_run or kind == _VERB:
            failure = _failure(error)
        else:
            failure = failure_of(self, error) if kind == _OF_TORCH else RemoteFailure.of(error, self.info)
        self.fail(sender, call, failure, cell)

    def run_soon(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Runs a function in a worker."""
        self.endpoint.run_soon(functools.partial(function, *arguments))


def native_name(function: Any) -> str:
    """Returns the name by which the callee finds a function. Raises TypeError for a function without a name."""
    if isinstance(function, str):
        module, colon, qualname = function.partition(":")
        if not (module and colon and qualname):
            raise TypeError(f"a function is named as 'module:name', not {function!r}")
        return function
    if not callable(function):
        raise TypeError(f"expected a function, not a {type(function).__name__}")
    if isinstance(function, type) or getattr(function, "__qualname__", None):
        name = functions.text_name_of(function)
        if ("<" not in name and getattr(function, "__self__", None) is None) or name.startswith("torch:"):
            return name
    raise TypeError(f"{function!r} cannot be called in another process: it is not at the top level of a module")


def failure_of(agent: Any, error: BaseException) -> RemoteFailure:
    """Makes the failure of a function of torch's interface, and prints the failure."""
    failure = RemoteFailure.of(error, agent.info, unescaped=True)
    print(failure.text, file=sys.stderr)
    return failure


def checked_future(function: Any, result: Any) -> Any:
    """Returns the result of a function. Raises RuntimeError if the function is marked to return a Future and does
    not."""
    if getattr(function, ASYNC_MARK, False) and not isinstance(result, torch._C.Future):
        raise RuntimeError(
            "Functions decorated with @rpc.async_function must return a torch.futures.Future object, but "
            f"got {type(result)}"
        )
    return result


def run(agent: Any, function: Any, args: Any, kwargs: Any, is_checked: bool = False) -> Any:
    """Runs a function and returns the result, the Future of a function with ASYNC_MARK, or the failure. `is_checked` is
    whether functions.find() has checked the function."""
    try:
        if not is_checked:
            functions.check(function)
        return checked_future(function, function(*args, **(kwargs or {})))
    except BaseException as error:
        return failure_of(agent, error)


def answer(agent: Any, function: Any, result: Any) -> Any:
    """Returns the result, or a Deferred if the result is the Future of a function with ASYNC_MARK."""
    if not getattr(function, ASYNC_MARK, False) or not isinstance(result, torch._C.Future):
        return result
    settled: Future = torch.futures.Future()  # never fails
    result.add_done_callback(lambda _: settled.set_result(None))
    return Deferred(settled, lambda _: _outcome(agent, result))


def _outcome(agent: Any, future: Future) -> Any:
    try:
        return future.wait()  # is done; wait() orders this thread's streams after the streams of the result
    except BaseException as error:
        return RemoteFailure.of(error, agent.info, unescaped=True)


def _failure(error: BaseException) -> RemoteFailure:
    kind = TypeError if isinstance(error, RefusedValue) else type(error)
    return RemoteFailure(kind, str(error))
