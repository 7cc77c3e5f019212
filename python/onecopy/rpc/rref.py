# SPDX-License-Identifier: Apache-2.0
"""References as programs have them, and calls of methods of the values."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from .. import _core
from . import registry, telemetry, values
from .errors import RemoteFailure
from .futures import CallFuture, Future, done, error_of
from .owned import Cell, Reference
from .peers import WorkerInfo
from .references import Held
from .refused import RefusedValue


class PyRRef:
    """A reference to a value of any type that a member of the group owns."""

    _created: Future | None = None
    _type: Future | None = None

    def __init__(self, value: Any, type_hint: Any = None) -> None:
        """Makes a reference to `value`, owned by this process."""
        agent, cell = registry.current(), Cell()
        self._make(agent, agent.info.id, agent.references.new_id(), cell, None)
        cell.set(value)

    def _make(self, agent: Any, owner: int, reference: Reference, cell: Cell | None, held: Held | None) -> PyRRef:
        self._agent, self._owner, self._reference, self._cell, self._held = agent, owner, reference, cell, held
        return self

    def is_owner(self) -> bool:
        """Returns whether this process owns the value."""
        return self._held is None

    def confirmed_by_owner(self) -> bool:
        """Returns whether the owner is known to count this reference."""
        return self._held is None or self._held.is_confirmed()

    def owner(self) -> WorkerInfo:
        """Returns the owner's WorkerInfo."""
        return self._agent.get_worker_info(self._owner)

    def owner_name(self) -> str:
        """Returns the owner's name."""
        return self.owner().name

    def to_here(self, timeout: float = -1.0) -> Any:
        """Returns the value, copied from its owner; waits until it is made.

        Throws what making it threw, RuntimeError after `timeout` seconds, and when the owner has ended."""
        if self._cell is not None:
            return self._cell.value()
        self._wait_until_made(timeout)
        self._check()
        return self._agent.call_verb(self._owner, ".fetch", (self._reference,), timeout)

    def local_value(self) -> Any:
        """Returns the value itself, on its owner; waits until it is made. Throws RuntimeError elsewhere."""
        if self._cell is None:
            raise RuntimeError(
                f"For UserRRef({self._ids('rref_id', 'fork_id', '=')}), can't call localValue() on user "
                f"{self._agent.info}. Call it on owner {self.owner()}"
            )
        return self._cell.value()

    def rpc_sync(self, timeout: float = -1.0) -> RRefProxy:
        """Returns a proxy: proxy.method(...) runs the value's method on its owner and returns the result."""
        return RRefProxy(self, "sync", timeout)

    def rpc_async(self, timeout: float = -1.0) -> RRefProxy:
        """Returns a proxy: proxy.method(...) runs the value's method on its owner and returns a Future of the
        result."""
        return RRefProxy(self, "async", timeout)

    def remote(self, timeout: float = -1.0) -> RRefProxy:
        """Returns a proxy: proxy.method(...) runs the value's method on its owner and returns a reference to the
        result."""
        return RRefProxy(self, "remote", timeout)

    def backward(self, dist_autograd_ctx_id: int = -1, retain_graph: bool = False) -> None:
        """Runs backward from the value, a scalar tensor, in that context; without one, on the owner alone."""
        if self.is_owner():
            return backward(self.local_value(), dist_autograd_ctx_id, retain_graph)
        if dist_autograd_ctx_id == -1:
            raise RuntimeError("User RRefs require 'dist_autograd_ctx_id' to be specified")
        self._check()
        args = (self._reference, dist_autograd_ctx_id, retain_graph)
        return self._agent.call_verb(self._owner, ".backward", args)

    def _get_type(self, timeout: float = -1.0, blocking: bool = True) -> Any:
        """Returns the value's type, or a Future of it; the owner is asked once."""
        future = self._type
        if future is None:
            future = self._type = self._ask_type(timeout)
            future.add_done_callback(self._forget_failed_type)
        return future.wait() if blocking else future

    def _ask_type(self, timeout: float) -> Future:
        if self.is_owner():
            return done(type(self.local_value()))
        with telemetry.range_of_call("async", "_rref_typeof_on_owner", self._agent, self._owner):
            return self._agent.begin_verb(self._owner, ".type", (self._reference,), timeout)

    def _forget_failed_type(self, future: Future) -> None:
        if error_of(future) is not None:
            self._type = None

    def _get_future(self) -> Future:
        """Returns a Future that is done when the value is made (its owner), or when the owner has said so."""
        if self._created is None:
            self._created = self._cell.future if self._cell is not None else self._used().created()
        return self._created

    def _used(self) -> Held:
        """Returns the count of this process. REQUIRES: another owner."""
        assert self._held is not None
        return self._held

    def _wait_until_made(self, timeout: float) -> None:
        """Waits for the value before a call whose function waits for it, so that the owner need not block a second
        worker.
        Not where a way there and back takes long, or where the value may take longer than the call."""
        creation = self._used().creation
        if creation is None or self._agent.member(self._owner).is_far:
            return
        seconds = self._agent.seconds_for(timeout)
        if not seconds or 0 < creation.seconds <= seconds:
            with contextlib.suppress(Exception):  # _check() has it
                creation.wait()

    def _check(self) -> None:
        held = self._held
        if not self._agent.is_running or (held is not None and held.is_deleted):
            raise RuntimeError("Cannot call to_here() on it after deletion.")
        if held is not None and held.is_confirmed() and held.error is not None:
            raise held.error

    def _ids(self, of_rref: str, of_fork: str, sign: str) -> str:
        return f"{of_rref}{sign}{_text(self._reference)}, {of_fork}{sign}{_text(self._used().fork)}"

    def __repr__(self) -> str:
        if self.is_owner():
            return f"OwnerRRef({_text(self._reference)})"
        return f"UserRRef({self._ids('RRefId', 'ForkId', ' = ')})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise RuntimeError("Can not pickle rref in python pickler, rref can only be pickled when using RPC")


def _text(number: Reference) -> str:
    return f"GloballyUniqueId(created_on={number[0]}, local_id={number[1]})"


class RRefProxy:
    """Calls methods of a referenced value on its owner."""

    def __init__(self, rref: PyRRef, how: str, timeout: float) -> None:
        self._rref, self._how, self._timeout = rref, how, timeout

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def invoke(*args: Any, **kwargs: Any) -> Any:
            self._rref._check()
            if self._how == "remote":  # else the mistake would be seen when the result is fetched
                getattr(self._rref._get_type(self._timeout), name)
            try:
                return _invoke(self._rref, self._how, name, args, kwargs, self._timeout)
            except RefusedValue as refused:
                raise refused.located(args=args, kwargs=kwargs) from None

        invoke.__name__ = invoke.__qualname__ = name
        return invoke


def _invoke(rref: PyRRef, how: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], timeout: float) -> Any:
    agent = rref._agent
    running: Any = _core._current_call()
    if running is not None:  # a call for another member: it ends before the outer one
        running.check()
        left = running.remaining()
        seconds = agent.seconds_for(timeout)
        if left is not None and (not seconds or left < seconds):
            timeout = max(left, 1e-6)
    value = (rref if rref.is_owner() else rref._reference, name, args, kwargs)
    if how == "remote":
        return begin(agent, rref._owner, ".make_method", value, timeout)
    if how == "async":
        return agent.begin_verb(rref._owner, ".method", value, timeout)
    if not rref.is_owner():
        rref._wait_until_made(timeout)
        rref._check()
    return agent.call_verb(rref._owner, ".method", value, timeout)


def backward(value: Any, context_id: int, retain_graph: bool) -> None:
    """Runs backward from a value in a context of distributed autograd; -1: in none."""
    if not isinstance(value, torch.Tensor):
        raise RuntimeError("RRef should contain a tensor for .backward()")
    if context_id == -1:
        torch.autograd.backward([value], retain_graph=retain_graph)
    else:
        registry.autograd().backward(context_id, [value], retain_graph)


# --- making references

_kind: type[PyRRef] = PyRRef


def use(kind: type[PyRRef]) -> None:
    """Makes references that come, and those of calls, instances of a subclass."""
    global _kind
    _kind = kind


def _made(agent: Any, owner: int, reference: Reference, cell: Cell | None, held: Held | None) -> PyRRef:
    return _kind.__new__(_kind)._make(agent, owner, reference, cell, held)


def begin(agent: Any, owner: int, verb: str, args: tuple[Any, ...], timeout: float) -> PyRRef:
    """Calls a verb that makes a value, and returns a reference to it."""
    references = agent.references
    reference = references.new_id()
    if owner == agent.info.id:
        return _begin_here(agent, verb, reference, args, timeout)
    held = references.hold(owner, reference, references.new_id())
    try:
        held.creation = agent.begin_verb(owner, verb, args, timeout, reference=reference)
    except BaseException:
        held.is_deleted = True  # nothing was sent, and nothing is to be dropped
        raise
    held.session = agent.endpoint.session_with(owner)
    return _made(agent, owner, reference, None, held)


def _begin_here(agent: Any, verb: str, reference: Reference, args: tuple[Any, ...], timeout: float) -> PyRRef:
    """Calls a verb of this process: the table keeps the cell while the function runs."""
    cell, me, owned = Cell(), agent.info.id, agent.references.owned
    owned.enter(reference, cell)
    owned.count(reference, me)
    rref = _made(agent, me, reference, cell, None)
    rref._created = made = agent.begin_verb(me, verb, args, timeout, reference=reference)

    def is_made(made: CallFuture) -> None:
        error = error_of(made)
        if error is not None:
            cell.set(RemoteFailure(type(error), str(error)))
        owned.count(reference, me, -1)

    made.add_done_callback(is_made)
    return rref


def _parts(rref: PyRRef) -> tuple[int, Reference, Reference]:
    giving: Any = _core._rpc_giving()
    if rref._held is not None and rref._held.is_deleted:
        raise RuntimeError("Cannot call fork an UserRRef after deletion.")
    if rref._held is not None and (rref._owner != giving.receiver or rref._held.is_lost):
        rref._check()
    fork = giving.agent.references.give(rref._owner, rref._reference, rref._cell, giving.receiver)
    giving.give(rref, fork)
    return rref._owner, rref._reference, fork


def _rebuild(owner: int, reference: Reference, fork: Reference) -> PyRRef:
    taking: Any = _core._rpc_taking()
    agent, sender = taking
    found = agent.references.take(owner, reference, fork, sender)
    cell, held = (found, None) if isinstance(found, Cell) else (None, found)
    return _made(agent, owner, reference, cell, held)


values.register("reference", PyRRef, _parts, _rebuild)
