# SPDX-License-Identifier: Apache-2.0
"""How functions are found, and how calls of other members are answered."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import onecopy

from . import functions, registry, torch_calls
from .errors import RemoteFailure
from .members import Members
from .peers import Options, WorkerInfo
from .refused import RefusedValue
from .registry import ASYNC_MARK, Deferred

_NATIVE = "native "  # in front of the names of functions that native calls run
_NAMED = (types.FunctionType, types.BuiltinFunctionType)


class _NotServed(Exception):
    """A function that others may not call, or that is not here."""

    def __init__(self, failure: RemoteFailure) -> None:
        super().__init__(failure.text)
        self.failure = failure


class _Task:
    """What a worker runs."""

    __slots__ = ("_arguments", "_function")

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._function, self._arguments = function, arguments

    def _settle(self, call: Any) -> None:
        self._function(*self._arguments)


class Serving(Members):
    """What _core._RpcEndpoint asks where a call is rare: a function's first call, verbs, results that come later.

    Thread safety: all members may be called concurrently."""

    def __init__(self, info: WorkerInfo, options: Options, is_static_group: bool) -> None:
        super().__init__(info, options, is_static_group)
        self._served: dict[str, Any] = {}  # functions that are found by a name of ours

    def resolve(self, function: Any) -> tuple[Any, str, str, Any] | None:
        """Returns how both sides find a function: (the names of its module, its name there, its wire name, a check of
        its arguments or None). None for a function that crosses as a value."""
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

    def resolve_native(self, function: Any) -> tuple[None, None, str, None]:
        """As resolve(), of a native call, whose callee finds the function."""
        return None, None, _NATIVE + native_name(function), None

    def find_target(self, wire_name: str) -> tuple[Any, Any, str, str, Any]:
        """Returns (function, the names that it is found in, its name there, how it is run, what prepares its
        arguments).
        Raises AttributeError, PermissionError."""
        prepare, names, name, how = None, dict[str, Any](), wire_name, "python"
        if wire_name.startswith("."):
            function, prepare = registry.handlers[wire_name]
        elif wire_name.startswith(_NATIVE):
            try:
                function = functions.find(wire_name.removeprefix(_NATIVE))
            except Exception as error:
                raise _NotServed(RemoteFailure.of(error, self.info)) from None
            (names, name), how = functions.names_of(wire_name.removeprefix(_NATIVE)), "native"
        else:
            module, _, name = wire_name.partition(":")
            function, names = self.function_named(wire_name), vars(functions.module_named(module))
            how = "python" if getattr(function, ASYNC_MARK, False) else "result"
        if names.get(name) is not function:
            names, name = self._served, wire_name
            names[name] = function
        return function, names, sys.intern(name), how, prepare and functools.partial(prepare, self)

    def function_named(self, wire_name: str) -> Any:
        """Returns the function that a member names. Raises AttributeError, PermissionError."""
        module, _, qualname = wire_name.partition(":")
        function = functions.look_up(module, qualname)
        functions.check(function)
        return function

    def serve(self, function: Any, sender: int, call: int, args: tuple[Any, ...], kwargs: Any) -> tuple[Any] | None:
        """Runs a verb, or a function that returns a Future. Returns (its answer,), or None if it answers later."""
        try:
            if getattr(function, ASYNC_MARK, False):
                result = torch_calls.run_async(self, function, args, kwargs or {})
            else:
                result = function(self, sender, *args)
        except Exception as error:
            self.fail(sender, call, _failure(error))
            return None
        return self.answer_of(sender, call, result)

    def answer_of(self, sender: int, call: int, result: Any) -> tuple[Any] | None:
        """Returns (the answer,); or None if it is a failure, which is sent, or comes later."""
        if isinstance(result, RemoteFailure):
            self.fail(sender, call, result)
            return None
        if not isinstance(result, Deferred):
            return (result,)
        if self._members[sender].is_program:
            text = "the function gives its result later, which no program in C++ can take"
            self.fail(sender, call, RemoteFailure(RuntimeError, f"On {self.info}:\n{text}"))
            return None
        context = registry.context()
        result.future.add_done_callback(
            lambda future: self.run_soon(self._answer_later, sender, call, context, result.then, future)
        )
        return None

    def _answer_later(self, sender: int, call: int, context: Any, then: Callable[[Any], Any], future: Any) -> None:
        try:
            with registry.within(context):
                answer = self.answer_of(sender, call, then(future.value()))
                if answer is not None:
                    self.endpoint.answer(sender, call, answer[0])
        except Exception as error:
            self.fail(sender, call, _failure(error))

    def finish_native(self, function: Any, running: Any, result: Any) -> tuple[Any] | None:
        """As answer_of(), for a result of a native call that may be a coroutine, a generator or a Future."""
        return self.answer_of(running.caller_id, running.number, torch_calls.finished(self, function, running, result))

    def fail(self, to: int, call: int, failure: RemoteFailure) -> None:
        """Answers a call with a failure."""
        self.endpoint.fail(to, call, failure.kind, failure.text, getattr(failure.kind, "code", ""))

    def refuse(self, sender: int, call: int, error: Any) -> None:
        """Answers a call that was not run, or whose answer could not be written."""
        self.fail(sender, call, self.refusal(error))

    def refusal(self, error: Any) -> RemoteFailure:
        """Makes the failure of a call that was not run."""
        if isinstance(error, _NotServed):
            return error.failure
        kind = type(error) if isinstance(error, Exception) else RuntimeError
        if issubclass(kind, (AttributeError, onecopy.Error)):  # a name that is not here, or a message of no sense
            kind = RuntimeError
        return RemoteFailure(kind, f"On {self.info}:\n{error}")

    def fail_made(self, sender: int, reference: Any, error: Exception) -> None:
        """Fails the value that a call was to make: those that ask for the value do not wait for it."""
        self.references.owned.made_by(tuple(reference), sender, self.info.id).set(self.refusal(error))

    def answer_error(self, sender: int, call: int, error: Exception, is_functions: bool, is_torch: bool) -> None:
        """Answers with the exception of a function, or with the reason why its result could not be written."""
        if not is_functions:
            self.fail(sender, call, _failure(error))
            return
        failure = RemoteFailure.of(error, self.info, unescaped=is_torch)
        if is_torch:
            print(failure.text, file=sys.stderr)
        self.fail(sender, call, failure)

    def run_soon(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Runs a function in a worker."""
        self.endpoint.run_soon(_Task(function, arguments))


def native_name(function: Any) -> str:
    """Returns how the callee finds a function. Raises TypeError for a function that no process can call by name."""
    if isinstance(function, str):
        module, colon, qualname = function.partition(":")
        if not (module and colon and qualname):
            raise TypeError(f"a function is named as 'module:name', not {function!r}")
        return function
    if not callable(function):
        raise TypeError(f"a function is wanted, not a {type(function).__name__}")
    if isinstance(function, type) or getattr(function, "__qualname__", None):
        name = functions.text_name_of(function)
        if ("<" not in name and getattr(function, "__self__", None) is None) or name.startswith("torch:"):
            return name
    raise TypeError(f"{function!r} cannot be called in another process: it is no function at the top level of a module")


def _failure(error: Exception) -> RemoteFailure:
    kind = TypeError if isinstance(error, RefusedValue) else type(error)
    return RemoteFailure(kind, str(error))
