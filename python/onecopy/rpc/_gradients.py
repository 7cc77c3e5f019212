# SPDX-License-Identifier: Apache-2.0
"""Messages of distributed autograd between workers, and the notes that references need."""

from ..distributed.autograd import _engine_of_this_process as autograd
from ._agent import Later, handler, handlers, note_handlers


GRADIENTS = "gradients"  # both the name of plain calls and the verb of others


class Transport:
    """Gradients and marks of distributed autograd between workers. Each call gives a Future, and that of gradients something
    that has done() and wait() alone."""

    def __init__(self, agent):
        self._agent = agent

    def send_gradients(self, to, *arguments):
        call = self._agent.node.begin_answering(to, GRADIENTS, arguments)
        return self._send_in_general(to, arguments) if call is NotImplemented else _GradientCall(self._agent, call)

    def call_gradients(self, to, *arguments):
        """As send_gradients(...).wait()."""
        result = self._agent.node.call_answering(self._agent, to, GRADIENTS, arguments)
        return self._send_in_general(to, arguments).wait() if result is NotImplemented else result

    def _send_in_general(self, to, arguments):
        return self._agent.call(to, GRADIENTS, arguments, timeout=0, is_result=True)

    def mark(self, to, *arguments):
        return self._agent.call(to, "mark", arguments, timeout=0)

    def mark_blocked(self, to, *arguments):
        return self._agent.call(to, "mark_blocked", arguments, timeout=0)

    def resolve(self, to, *arguments):
        return self._agent.call(to, "resolve", arguments, timeout=0)

    def release_context(self, to, context_id):
        self._agent.note(to, "release_context", context_id)


class _GradientCall:
    """A plain call. wait() is called once."""

    __slots__ = ("_agent", "_call")

    def __init__(self, agent, call):
        self._agent, self._call = agent, call

    def done(self):
        return self._call.done

    def wait(self):
        self._call.wait()
        return self._agent._result_of(self._call, 0)


@handler(handlers, GRADIENTS)
def _gradients(agent, caller, arguments):
    return autograd.on_gradients(caller, *arguments)


@handler(handlers, "mark")
def _mark(agent, caller, arguments):
    return Later(autograd.on_mark(*arguments), lambda nothing: None)


@handler(handlers, "mark_blocked")
def _mark_blocked(agent, caller, arguments):
    return Later(autograd.on_mark_blocked(*arguments), lambda nothing: None)


@handler(handlers, "resolve")
def _resolve(agent, caller, arguments):
    return autograd.on_resolve(*arguments)


@handler(note_handlers, "release_context")
def _release_context(agent, caller, context_id):
    autograd.on_release(caller, context_id, agent.workers.run)


@handler(note_handlers, "drop")
def _drop(agent, caller, value):
    for reference in value:
        agent.references.owned.count(tuple(reference), caller, -1)


@handler(note_handlers, "announce")
def _announce(agent, caller, value):
    reference, fork, receiver = value
    if not agent.member(receiver).has_ended:
        agent.references.owned.announce(tuple(reference), tuple(fork), receiver)


@handler(note_handlers, "accept")
def _accept(agent, caller, value):
    reference, fork = value
    agent.references.owned.accept(tuple(reference), tuple(fork), caller)
