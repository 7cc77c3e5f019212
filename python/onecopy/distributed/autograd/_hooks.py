# SPDX-License-Identifier: Apache-2.0
"""What joins distributed autograd and rpc: its hooks in calls, and its own messages.

Gradients are calls of the function GRADIENTS, whose values are plain. Marks are calls of verbs."""

from ...rpc import registry
from ...rpc.registry import Deferred, handler, handlers, note_handlers
from ._engine import engine_of_this_process as engine

GRADIENTS = "gradients"  # both the name of plain calls and the verb of others


class _Hooks:
    """See registry.AutogradHooks."""

    def started(self, agent):
        engine.start(agent.info.id, Transport(agent))
        agent.enter_own(GRADIENTS, engine.on_gradients)

    def about_to_send(self, context, tensors, receiver):
        return context.record_sent(tensors, receiver)

    def not_sent(self, context, record):
        context.forget_sent(record)

    def arrived(self, context, record, tensors, sender):
        context.attach_received(record, tensors, sender)

    def context(self, context_id, sender, make):
        if not make:
            return engine.find(context_id)
        context = engine.get_or_create(context_id)
        context.know(sender)
        return context

    def backward(self, context_id, roots, retain_graph):
        engine.backward(context_id, roots, retain_graph)


class Transport:
    """Sends gradients and marks to other workers. Each call returns a Future, and that of gradients something that has
    done() and wait() alone."""

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
    return engine.on_gradients(caller, *arguments)


@handler(handlers, "mark")
def _mark(agent, caller, arguments):
    return Deferred(engine.on_mark(*arguments), lambda nothing: None)


@handler(handlers, "mark_blocked")
def _mark_blocked(agent, caller, arguments):
    return Deferred(engine.on_mark_blocked(*arguments), lambda nothing: None)


@handler(handlers, "resolve")
def _resolve(agent, caller, arguments):
    return engine.on_resolve(*arguments)


@handler(note_handlers, "release_context")
def _release_context(agent, caller, context_id):
    engine.on_release(caller, context_id, agent.workers.run)


registry.set_autograd(_Hooks())
