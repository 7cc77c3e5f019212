# SPDX-License-Identifier: Apache-2.0
"""What joins distributed autograd and rpc: its hooks in calls, and its own messages.

Its messages are calls of verbs."""

from ...rpc import registry
from ...rpc.registry import Deferred, note, verb
from ._engine import engine_of_this_process as engine


class _Hooks:
    """See registry.AutogradHooks."""

    def started(self, agent):
        engine.start(agent.info.id, Transport(agent))

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
        return _GradientCall(self._agent, self._agent.endpoint.begin_gradients(to, arguments))

    def call_gradients(self, to, *arguments):
        """As send_gradients(...).wait()."""
        return self._agent.endpoint.call_gradients(to, arguments)

    def mark(self, to, *arguments):
        return self._agent.begin_verb(to, ".mark", arguments, 0)

    def mark_blocked(self, to, *arguments):
        return self._agent.begin_verb(to, ".mark_blocked", arguments, 0)

    def resolve(self, to, *arguments):
        return self._agent.begin_verb(to, ".resolve", arguments, 0)

    def release_context(self, to, context_id):
        self._agent.note(to, "release_context", context_id)


class _GradientCall:
    """A call of gradients. wait() is called once."""

    __slots__ = ("_agent", "_call")

    def __init__(self, agent, call):
        self._agent, self._call = agent, call

    def done(self):
        return self._call.done

    def wait(self):
        self._call.wait()
        value, error, points = self._agent.endpoint.outcome(self._call, 0)
        if error is not None:
            raise error
        self._agent.wait_for_points(points)
        return value


@verb(".gradients")
def _gradients(agent, caller, *arguments):
    return engine.on_gradients(caller, *arguments)


@verb(".mark")
def _mark(agent, caller, *arguments):
    return Deferred(engine.on_mark(*arguments), lambda nothing: None)


@verb(".mark_blocked")
def _mark_blocked(agent, caller, *arguments):
    return Deferred(engine.on_mark_blocked(*arguments), lambda nothing: None)


@verb(".resolve")
def _resolve(agent, caller, *arguments):
    return engine.on_resolve(*arguments)


@note("release_context")
def _release_context(agent, caller, context_id):
    engine.on_release(caller, context_id, agent.run_soon)


registry.set_autograd(_Hooks())
