# SPDX-License-Identifier: Apache-2.0
"""Plain calls of an agent, and calls within a context of autograd whose values are plain."""

import functools
import sys
import time
import types

import onecopy

from ..errors import Timeout
from . import _plain, _quick, functions, registry
from ._futures import CallFuture
from .errors import RemoteFailure, late
from .registry import ASYNC_MARK

DEFAULT = -1.0
GENERAL, PLAIN_CALL, PLAIN_ANSWER = range(3)  # _RpcNode's forms
_NO_NAME, _NO_FUNCTION = (None, {}, ""), (None, {}, "")
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)


class PlainCalls:
    """A part of Agent. Thread safety: all members may be called concurrently."""

    def __init__(self):
        self._wire_names, self._named = {}, {}  # of functions, and the functions that others name
        self._own = {}  # functions of this package's, by the names that others call them by
        self.quick = _quick.QuickCalls(self)

    def call_and_wait(self, to, verb, value, *, timeout=DEFAULT, context=None):
        """The result of a call with a plain value; NotImplemented, with nothing sent, for a value that is not."""
        member = self._known(to)
        seconds = self.seconds_for(timeout)
        deadline = time.monotonic() + seconds if seconds else None
        try:
            call = self._send_plain(member, verb, context, value, deadline, None)
        except Timeout as error:  # of the first contact
            raise late(seconds, error) from None
        except (RuntimeError, onecopy.Error) as error:
            raise self._why_not_sent(member, error) from None
        if call is NotImplemented:
            return call
        try:
            call.wait()
        except BaseException:
            call.end()
            raise
        return self._result(self.outcome(call, seconds, context))

    def _send_plain(self, member, verb, context, value, deadline, future):
        """The call, or NotImplemented."""
        if member.info.id == self.info.id:
            return NotImplemented
        message = self._plain_message(verb, context, value, member)
        if message is None:
            return NotImplemented
        self._check_can_send(member)
        call = self.node.call(member.info.id, message, deadline, future, PLAIN_CALL)
        if call is NotImplemented and message[2] is not None:
            registry.autograd().not_sent(context, message[2])
        return call

    @staticmethod
    def record(context, tensors, member):
        return None if context is None else registry.autograd().about_to_send(context, tensors, member.info.id)

    def _plain_message(self, verb, context, value, member):
        tensors = _plain.tensors_in(value)
        if tensors is None:
            return None
        return verb, None if context is None else context.id, self.record(context, tensors, member), value

    def begin_plain(self, to, function, args, kwargs, timeout, trace=None):
        """A Future of the result of a plain call, or NotImplemented."""
        try:
            call = self.node.begin_plain(to, function, args, kwargs, timeout, trace)
        except Timeout as error:  # another host has not taken it
            call = error
        if call is NotImplemented:
            return NotImplemented
        seconds = self.seconds_for(timeout)
        future = CallFuture(self, seconds)
        if isinstance(call, Timeout):
            future.complete(None, late(seconds, call))
        else:
            future.begin(call)
        return future

    def learn(self, function):
        """From here on calls of `function` may be plain, if both sides can look it up by one name."""
        if type(function) not in _FUNCTIONS or self.node.knows(function):
            return
        operator = functions.operator_of(function)
        try:
            module, qualname = ("torch", function.__name__) if operator else functions.name_of(function)
        except (TypeError, AttributeError, PermissionError):
            return
        names = vars(functions.module_named(module))
        if names.get(qualname) is function:
            self._wire_names[function] = f"{module}:{qualname}", names, qualname
            check = operator and functools.partial(functions.check_operator, operator)
            self.node.learn(function, f"{module}:{qualname}", names, sys.intern(qualname), check)

    def name_of(self, function):
        """The name by which both sides look up a function that has been learnt; None for any other."""
        name, names, qualname = self._wire_names.get(function, _NO_NAME) if type(function) in _FUNCTIONS else _NO_NAME
        return name if names.get(qualname) is function else None

    def function_named(self, name):
        """The function that a member names. Throws AttributeError, PermissionError."""
        function, names, qualname = self._named.get(name, _NO_FUNCTION)
        if function is None or names.get(qualname) is not function:
            function, names, qualname = self._find_plain(name)
            self._named[name] = function, names, qualname
        return function

    def _answer_in_plain(self, member, number, context, result):
        """False, with nothing sent, for a result that is not plain."""
        message = self._plain_message("result", context, result, member)
        if message is None:
            return False
        if self._put_answer(member, number, message, False, PLAIN_ANSWER):
            return True
        if message[2] is not None:
            registry.autograd().not_sent(context, message[2])
        return False

    @staticmethod
    def _attach(value, recorded, context, sender):
        tensors = _plain.tensors_in(value)
        ids = [id(t) for t in tensors]
        before = list(tensors)  # as long as their ids count
        registry.autograd().arrived(context, recorded, tensors, sender)
        others = {i: t for i, t, was in zip(ids, tensors, before) if t is not was}
        return _plain.with_others(value, others)

    # --- that are no longer plain

    def _find_target(self, wire_name):
        """(function, the names that it is found in, its name there, RpcNode::Target::Kind). Throws AttributeError,
        PermissionError, NotServed."""
        if wire_name.startswith(_quick.PREFIX):
            return self.quick.target(wire_name, self._serve_quick)
        if wire_name in self._own:
            name = sys.intern(wire_name)
            return self._own[name], self._own, name, _quick.TOLD
        function, names, qualname = self._find_plain(wire_name)
        return function, names, qualname, _quick.FUTURE if getattr(function, ASYNC_MARK, False) else _quick.RESULT

    @staticmethod
    def _raise_late(seconds, reason):
        raise late(seconds, reason)

    def _find_plain(self, wire_name):
        """(function, its module's names, its name). Throws AttributeError, PermissionError."""
        module, _, qualname = wire_name.partition(":")
        function = functions.look_up(module, qualname)
        functions.check(function)
        names = vars(functions.module_named(module))
        return function, names, sys.intern(qualname)

    def enter_own(self, name, function):
        """Members call function(caller's rank, *args) by that name, with plain values. It waits for others as it needs."""

        def run(sender, number, deadline, args, kwargs, trace):
            try:
                return (function(sender, *args),)
            except Exception as error:
                self._answer_failure(number, sender, self._failure(error))
                return None

        self._own[name] = run

    def refusal(self, error):
        if isinstance(error, _quick.NotServed):
            return error.failure
        kind = RuntimeError if isinstance(error, AttributeError) else type(error)  # a name that is not here
        return RemoteFailure(kind, f"On {self.info}:\n{error}")

    def _refuse(self, number, sender, error):
        self._answer_failure(number, sender, self.refusal(error))

    def _refuse_text(self, number, sender, text):
        """A call whose message could not be read, or whose answer could not be written."""
        self._answer_failure(number, sender, RemoteFailure(RuntimeError, f"On {self.info}:\n{text}"))

    def _serve_plain(self, number, sender, function, args, kwargs):
        if sender not in self._members:
            self._refuse_text(
                number, sender, f"{function.__qualname__} gives its result later, which no program in C++ can take"
            )
            return
        self._serve(number, sender, "run", None, (function, list(args), kwargs or {}))

    def _answer_plain(self, number, sender, result):
        try:
            if sender not in self._members:
                raise TypeError(
                    f"a {type(result).__name__} cannot cross to a program in C++: only plain values and tensors can"
                )
            self._answer(number, sender, None, result)
        except Exception as error:
            self._answer_failure(number, sender, self._failure(error))

    def _answer_raised(self, number, sender, error):
        try:
            raise error
        except Exception as raised:
            failure = RemoteFailure.of(raised, self.info, unescaped=True)
        print(failure.text, file=sys.stderr)
        self._answer_failure(number, sender, failure)
