# SPDX-License-Identifier: Apache-2.0
"""Connects distributed autograd to rpc: the hooks in calls, and the messages, which are calls of verbs."""

from __future__ import annotations

import weakref
from typing import Any

from ...rpc import registry
from ...rpc.futures import Future
from ...rpc.registry import Deferred, verb
from ._engine import Context, engine_of_this_process as engine
from ._pass import Answer


class _Hooks:
    """Implements registry.AutogradHooks."""

    def started(self, agent: Any) -> None:
        engine.start(agent.info.id, _Transport(agent))

    def context(self, context_id: int, sender: int, make: bool) -> Context | None:
        if not make:
            return engine.find(context_id)
        context = engine.get_or_create(context_id)
        context.know(sender)
        return context

    backward = staticmethod(engine.backward)


class _Transport:
    """A _pass.Transport that calls verbs. Keeps no reference to the agent, so that the lanes can end."""

    def __init__(self, agent: Any) -> None:
        self._find = weakref.ref(agent)

    @property
    def _agent(self) -> Any:
        agent = self._find()
        if agent is None:
            raise RuntimeError("RPC agent is shut down")
        return agent

    def send_gradients(self, to: int, *arguments: Any) -> _GradientCall:
        return _GradientCall(self._agent, self._agent.endpoint.begin_gradients(to, arguments))

    def call_gradients(self, to: int, *arguments: Any) -> Answer:
        return self._agent.endpoint.call_gradients(to, arguments)

    def ask(self, to: int, what: str, *arguments: Any) -> Future:
        return self._agent.begin_verb(to, f".{what}", arguments, 0)

    def release_context(self, to: int, context_id: int) -> None:
        agent = self._find()
        if agent is not None:
            agent.note(to, "release_context", context_id)


class _GradientCall:
    __slots__ = ("_agent", "_call")

    def __init__(self, agent: Any, call: Any) -> None:
        self._agent, self._call = agent, call

    def done(self) -> bool:
        return self._call.done

    def wait(self) -> Answer:
        self._call.wait()
        value, error, points = self._agent.endpoint.outcome(self._call, 0)
        if error is not None:
            raise error
        self._agent.wait_for_points(points)
        return value


@verb(".gradients")
def _gradients(agent: Any, caller: int, *arguments: Any) -> Answer:
    return engine.on_gradients(caller, *arguments)


@verb(".mark")
def _mark(agent: Any, caller: int, *arguments: Any) -> Deferred:
    return Deferred(engine.on_ask("mark", *arguments), lambda nothing: None)


@verb(".mark_blocked")
def _mark_blocked(agent: Any, caller: int, *arguments: Any) -> Deferred:
    return Deferred(engine.on_ask("mark_blocked", *arguments), lambda nothing: None)


@verb(".resolve")
def _resolve(agent: Any, caller: int, *arguments: Any) -> list[tuple[int, int]]:
    return engine.on_ask("resolve", *arguments)


@verb("release_context")
def _release_context(agent: Any, caller: int, context_id: int) -> None:
    engine.on_release(caller, context_id, agent.run_soon)


registry.set_autograd(_Hooks())
