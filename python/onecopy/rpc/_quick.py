# SPDX-License-Identifier: Apache-2.0
"""Native calls that go the way of plain ones (see _RpcNode), which encode no value in Python: those of plain values and
tensors, copied or lent. One that a call makes has that one's trace behind its arguments.

The wire name of such a call begins with a prefix. Its callee gets the call as well as its arguments, and serves it as any
other native call. Its number is that of the node, negative, since other native calls have numbers of their own."""

import sys
import types

from . import functions
from .errors import RemoteFailure

RESULT, FUTURE, TOLD = range(3)  # RpcNode::Target::Kind
PREFIX = "native "
_MOST = 4096  # functions of this process's calls
_KINDS = (str, types.FunctionType, types.BuiltinFunctionType, type)


class NotServed(Exception):
    """A function that is not to be called from other processes, or is not here."""

    def __init__(self, failure):
        super().__init__(failure.text)
        self.failure = failure


class Callee:
    """A function as callers name it."""

    __slots__ = ("name",)

    def __init__(self, name):
        self.name = name


class QuickCalls:
    """Of one agent. Thread safety: all members may be called concurrently."""

    def __init__(self, agent):
        self._agent = agent
        self._callees, self._names = {}, {}  # by function or its name; by wire name
        self._servers = {}  # by wire name: what the node calls

    def callee(self, function, name_for):
        """The Callee for that function or name; None for one that is not called so. Throws TypeError as name_for() does."""
        if type(function) not in _KINDS:
            return None
        found = self._callees.get(function)
        if found is None and len(self._callees) < _MOST:
            found = self._learn(function, name_for(function))
        return found

    def _learn(self, function, name):
        wire_name = sys.intern(PREFIX + name)
        found = self._names.setdefault(wire_name, Callee(name))
        self._agent.node.learn(found, wire_name, self._names, wire_name, None)
        self._callees[function] = found
        return found

    def target(self, wire_name, serve):
        """What the node calls for such a name. Throws NotServed. `serve(sender, number, deadline, trace, name, args, kwargs)`
        gives None if it answers itself, or else a tuple of the answer."""
        name = wire_name[len(PREFIX) :]
        try:
            functions.find(name)
        except Exception as error:
            raise NotServed(RemoteFailure.of(error, self._agent.info)) from None
        wire_name = sys.intern(wire_name)

        def run(sender, number, deadline, args, kwargs, trace):
            return serve(sender, number, deadline, trace, name, args, kwargs)

        return self._servers.setdefault(wire_name, run), self._servers, wire_name, TOLD


def trace_of(info, number):
    """The trace of such a call by that member, on both sides, where it is no other call's."""
    return f"{info.name}.c{number}"
