# SPDX-License-Identifier: Apache-2.0
"""The agent of this process, the verbs that members call in each other, and the hooks of distributed autograd.

Modules register the verbs they serve, so that the agent imports none of the modules.

Thread safety: the tables are filled while modules are imported, and only read afterwards.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

import torch

from .. import _core
from ..errors import MissingPackage

F = TypeVar("F", bound=Callable[..., Any])

FORKED = (
    "RPC does not survive fork(): this process was forked from a member of the group, whose threads stayed there. "
    "Start it with spawn or forkserver, or call init_rpc() in it under a name of its own"
)
_NOT_SET = "Current RPC agent is not set! Did you initialize the RPC framework (e.g. by calling `rpc.init_rpc`)?"
ASYNC_MARK = "_wrapped_async_rpc_function"  # an attribute of functions that return a Future of their result

this_agent: Any = None  # the agent of this process or None; calls read it directly, to save the frame of current()
_is_forked = False

# Verb -> (function(agent, caller's id, *args), a function that prepares args in the order of the lane, or None). Names
# of notes have no dot; a note has one argument and is handled in the order of its lane.
handlers: dict[str, tuple[Callable[..., Any], Callable[..., Any] | None]] = {}


class Deferred:
    """A handler's result that will be `then(value of the future)`."""

    def __init__(self, future: Any, then: Callable[[Any], Any]) -> None:
        self.future, self.then = future, then


def verb(name: str, prepare: Callable[..., Any] | None = None) -> Callable[[F], F]:
    """Returns a decorator that registers a function as a verb. A name with a leading dot is called and has an answer;
    other names are of notes. prepare(agent, caller's id, args) returns the arguments."""

    def register(function: F) -> F:
        handlers[name] = function, prepare
        return function

    return register


# --- the agent


def current(why_not: str = _NOT_SET) -> Any:
    """Returns the agent of this process. Raises RuntimeError before init(), after shutdown(), and in a forked child of
    a member."""
    if this_agent is None:
        raise RuntimeError(FORKED if _is_forked else why_not)
    return this_agent


def set_current(agent: Any) -> None:
    """Makes `agent`, or None, the agent of this process."""
    global this_agent, _is_forked
    this_agent, _is_forked = agent, False


def _leave_in_child() -> None:
    global this_agent, _is_forked
    if this_agent is not None:
        this_agent.is_running, this_agent.why_stopped = False, FORKED
        this_agent, _is_forked = None, True


os.register_at_fork(after_in_child=_leave_in_child)


# --- distributed autograd


class AutogradHooks(Protocol):
    """The interface of distributed autograd for calls. A context holds what one process does in one forward and
    backward pass; python/src/rpc/body.cpp calls its methods record_sent(), forget_sent() and attach_received()."""

    def started(self, agent: Any) -> None:
        """Takes an agent that can send."""

    def context(self, context_id: int, sender: int, make: bool) -> Any:
        """Returns the context of that id, or None. With `make`, makes a missing context, which `sender` has, too."""

    def backward(self, context_id: int, roots: list[Any], retain_graph: bool) -> None:
        """Runs a backward pass through all processes."""


hooks: AutogradHooks | None = None  # None until distributed autograd is imported
_AUTOGRAD = "onecopy.distributed.autograd"  # its import registers the hooks


def set_autograd(given: AutogradHooks) -> None:
    """Registers the hooks. Called when distributed autograd is imported."""
    global hooks
    hooks = given
    if this_agent is not None and this_agent.endpoint is not None:
        given.started(this_agent)


def autograd() -> AutogradHooks:
    """Returns the hooks of distributed autograd, which is imported at the first message within a context. Raises
    MissingPackage if onecopy was built without onecopy.distributed."""
    if hooks is None:
        try:
            importlib.import_module(_AUTOGRAD)
        except ModuleNotFoundError as error:
            if error.name not in (_AUTOGRAD, "onecopy.distributed"):
                raise
            missing = MissingPackage(
                "distributed autograd needs the package onecopy.distributed, which this build of onecopy leaves out: "
                "build onecopy with the CMake option ONECOPY_DISTRIBUTED=ON for each process that takes part"
            )
            missing.name = "onecopy.distributed"
            raise missing from error
    assert hooks is not None
    return hooks


def backward(value: Any, context_id: int, retain_graph: bool) -> None:
    """Runs backward from a value in a context of distributed autograd, or without a context if the id is -1."""
    if not isinstance(value, torch.Tensor):
        raise RuntimeError("RRef should contain a tensor for .backward()")
    if context_id == -1:
        torch.autograd.backward([value], retain_graph=retain_graph)
    else:
        autograd().backward(context_id, [value], retain_graph)


context: Callable[[], Any] = _core._rpc_context  # this thread's context of distributed autograd, or None
swap_context: Callable[[Any], Any] = _core._swap_rpc_context  # sets this thread's context, and returns the previous one


@contextlib.contextmanager
def within(context: Any) -> Iterator[None]:
    """Makes `context`, or None, this thread's context for a block."""
    before = swap_context(context)
    try:
        yield
    finally:
        swap_context(before)
