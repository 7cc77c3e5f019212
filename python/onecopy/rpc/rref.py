# SPDX-License-Identifier: Apache-2.0
"""The reference objects of programs, and calls of methods of the values."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from .. import _core
from ..errors import PeerDied
from . import registry, telemetry
from .cells import Cell
from .errors import RefusedValue, RemoteFailure
from .futures import CallFuture, Future, done, error_of
from .peers import WorkerInfo
from .rref_table import Reference

LOST = -1  # stands for the session of a lost reference


class PyRRef:
    """A reference to a value of any type that a member of the group owns."""

    # The owner has a cell. Any other process is counted at the owner until the reference is deleted.
    _cell: Cell | None = None
    _fork: Reference = (0, 0)
    _session = 0  # the session with the owner in which the reference is counted; 0 if unknown
    _call: Any = None  # a _core._RpcCall that makes the value, until its outcome is taken
    _seconds = 0.0  # the timeout of the call
    _answer: tuple[Any] | None = None  # the value, if the answer of the call contained it
    _error: Exception | None = None  # why the value does not exist
    _is_deleted = True
    _created: Future | None = None
    _type: Future | None = None

    def __init__(self, value: Any, type_hint: Any = None) -> None:
        """Makes a reference to `value`, owned by this process."""
        agent = registry.current()
        self._own(agent, agent.references.new_id(), Cell()).set(value)

    def _own(self, agent: Any, reference: Reference, cell: Cell) -> Cell:
        self._agent, self._owner, self._reference, self._cell = agent, agent.info.id, reference, cell
        return cell

    def _hold(self, agent: Any, owner: int, reference: Reference, fork: Reference) -> PyRRef:
        self._agent, self._owner, self._reference, self._fork = agent, owner, reference, fork
        self._is_deleted = False
        agent.references.add(self)
        return self

    def _delete(self) -> None:
        """Drops the count at the owner. A destructor may call _delete() at any moment."""
        if not self._is_deleted:
            self._is_deleted = True
            if self._session != LOST:
                self._agent.references.drop(self._owner, self._reference)

    __del__ = _delete

    def _lose(self) -> None:
        """Makes the reference raise, since the session with its owner has ended."""
        self._error = PeerDied(f"{self.owner()} forgot this reference when the session with it ended")
        self._session = LOST

    def is_owner(self) -> bool:
        """Returns whether this process owns the value."""
        return self._cell is not None

    def confirmed_by_owner(self) -> bool:
        """Returns whether the owner is known to count this reference."""
        call = self._call
        if call is not None and call.done:
            self._settle()
        return self._call is None

    def _settle(self, call: Any = None) -> None:
        """Takes the outcome of the call that makes the value. Called by a worker, too, if want() was called."""
        with self._agent.references.outcomes:
            if self._call is None:
                return
            answer, error, _ = self._agent.endpoint.outcome(self._call, self._seconds)
            if self._session != LOST:  # a lost reference keeps its error
                self._answer, self._error = answer, error and _why_not_made(error)
            self._call = None
        if self._created is not None:
            self._complete(self._created)

    def _complete(self, created: Future) -> Future:
        created.set_result(None) if self._error is None else created.set_exception(self._error)
        return created

    def complete(self, answer: Any, error: Exception) -> None:  # the endpoint could not send the call
        self._error = _why_not_made(error)

    def owner(self) -> WorkerInfo:
        """Returns the owner's WorkerInfo."""
        return self._agent.get_worker_info(self._owner)

    def owner_name(self) -> str:
        """Returns the owner's name."""
        return self.owner().name

    def to_here(self, timeout: float = -1.0) -> Any:
        """Waits until the value is made, and returns a copy. Raises the failure to make the value, and RuntimeError
        after `timeout` seconds or if the owner has ended."""
        if self._cell is not None:
            return self._cell.value()
        self._wait_until_made(timeout)
        if self._answer is not None and not self._agent.endpoint.is_gone(self._owner):
            return self._answer[0]
        return self._agent.call_verb(self._owner, ".fetch", (self._reference,), timeout)

    def local_value(self) -> Any:
        """Waits until the value is made, and returns the value itself. Raises RuntimeError if another process owns the
        value."""
        if self._cell is None:
            raise RuntimeError(
                f"For UserRRef(rref_id={_text(self._reference)}, fork_id={_text(self._fork)}), can't call "
                f"localValue() on user {self._agent.info}. Call it on owner {self.owner()}"
            )
        return self._cell.value()

    def rpc_sync(self, timeout: float = -1.0) -> RRefProxy:
        """Returns a proxy whose proxy.method(...) runs the value's method on its owner and returns the result."""
        return RRefProxy(self, "sync", timeout)

    def rpc_async(self, timeout: float = -1.0) -> RRefProxy:
        """Returns a proxy whose proxy.method(...) runs the value's method on its owner and returns a Future of the
        result."""
        return RRefProxy(self, "async", timeout)

    def remote(self, timeout: float = -1.0) -> RRefProxy:
        """Returns a proxy whose proxy.method(...) runs the value's method on its owner and returns a reference to the
        result."""
        return RRefProxy(self, "remote", timeout)

    def backward(self, dist_autograd_ctx_id: int = -1, retain_graph: bool = False) -> None:
        """Runs backward from the value, a scalar tensor, in a context of distributed autograd, or without a context on
        the owner alone."""
        if self._cell is not None:
            return registry.backward(self._cell.value(), dist_autograd_ctx_id, retain_graph)
        if dist_autograd_ctx_id == -1:
            raise RuntimeError("User RRefs require 'dist_autograd_ctx_id' to be specified")
        self._check()
        args = (self._reference, dist_autograd_ctx_id, retain_graph)
        return self._agent.call_verb(self._owner, ".backward", args)

    def _get_type(self, timeout: float = -1.0, blocking: bool = True) -> Any:
        """Returns the type of the value, or a Future of the type. Asks the owner once."""
        if self._type is None or (self._type.done() and error_of(self._type) is not None):
            if self._cell is not None:
                self._type = done(type(self._cell.value()))
            else:
                with telemetry.range_of_call("async", "_rref_typeof_on_owner", self._agent, self._owner):
                    self._type = self._agent.begin_verb(self._owner, ".type", (self._reference,), timeout)
        return self._type.wait() if blocking else self._type

    def _get_future(self) -> Future:
        """Returns a Future that is done when the value is made or, in another process, when the owner's answer has
        arrived."""
        if self._created is None and self._cell is not None:
            self._created = self._cell.future
        if self._created is not None:
            return self._created
        with self._agent.references.outcomes:
            created, call = torch.futures.Future(), self._call
            if call is None:
                return self._complete(created)
            self._created = created
        if not call.want(self):
            self._settle()
        return created

    def _wait_until_made(self, timeout: float) -> None:
        """Waits until the value is made, so that a method call does not block a second worker of the owner. Does not
        wait if the owner is on another host or the value may take longer than the call. Raises the failure to make the
        value."""
        call = self._call
        if call is not None and not self._agent.member(self._owner).is_far:
            seconds = self._agent.seconds_for(timeout)
            if not seconds or 0 < self._seconds <= seconds:
                call.wait()
        self._check()

    def _check(self) -> None:
        if not self._agent.is_running or (self._cell is None and self._is_deleted):
            raise RuntimeError("Cannot call to_here() on it after deletion.")
        if self.confirmed_by_owner() and self._error is not None:
            raise self._error

    def __repr__(self) -> str:
        if self._cell is not None:
            return f"OwnerRRef({_text(self._reference)})"
        return f"UserRRef(RRefId = {_text(self._reference)}, ForkId = {_text(self._fork)})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise RuntimeError("Can not pickle rref in python pickler, rref can only be pickled when using RPC")


def _text(number: Reference) -> str:
    return f"GloballyUniqueId(created_on={number[0]}, local_id={number[1]})"


def _why_not_made(error: Exception) -> Exception:
    if "more than set timeout" not in str(error):
        return error
    text = "RRef creation via rpc.remote() timed out, and it is possible that the RRef on the owner node does not exist"
    return RuntimeError(f"{text}. ({error})")


class RRefProxy:
    """Calls methods of a referenced value on its owner."""

    def __init__(self, rref: PyRRef, how: str, timeout: float) -> None:
        self._rref, self._how, self._timeout = rref, how, timeout

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def invoke(*args: Any, **kwargs: Any) -> Any:
            self._rref._check()
            if self._how == "remote":  # otherwise a misspelt name would raise only when the result is fetched
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
    if running is not None:  # a nested call must end before the outer call
        running.check()
        left = running.remaining()
        seconds = agent.seconds_for(timeout)
        if left is not None and (not seconds or left < seconds):
            timeout = max(left, 1e-6)
    value = (rref if rref.is_owner() else rref._reference, name, args, kwargs)
    if how == "remote":
        method = functools.partial(agent.endpoint.begin_verb, rref._owner, ".method", value)
        return begin(agent, rref._owner, functools.partial(method, agent.seconds_for(timeout), False), timeout)
    if how == "async":
        return agent.begin_verb(rref._owner, ".method", value, timeout)
    rref._wait_until_made(timeout)
    return agent.call_verb(rref._owner, ".method", value, timeout)


# --- making references

_kind: type[PyRRef] = PyRRef
_Send = Callable[[Reference, Any], None]  # sends a call that makes a value; its last argument gets the call


def use(kind: type[PyRRef]) -> None:
    """Makes received references and the references of calls instances of a subclass."""
    global _kind
    _kind = kind


def new() -> PyRRef:
    """Returns an uninitialised reference, which the caller fills."""
    return _kind.__new__(_kind)


def begin(agent: Any, owner: int, send: _Send, timeout: float) -> PyRRef:
    """Returns a reference to the value that a call makes."""
    reference, rref, seconds = agent.references.new_id(), new(), agent.seconds_for(timeout)
    if owner == agent.info.id:
        _begin_here(agent, send, rref, rref._own(agent, reference, Cell()), CallFuture(agent, seconds))
        return rref
    agent.references.send_many(owner)
    rref._seconds = seconds
    send(reference, rref)
    rref._hold(agent, owner, reference, agent.references.new_id())
    rref._session = agent.endpoint.session_with(owner)
    return rref


def _begin_here(agent: Any, send: _Send, rref: PyRRef, cell: Cell, made: CallFuture) -> None:
    """Calls this process. The table of values keeps the cell while the function runs."""
    reference, me, owned = rref._reference, agent.info.id, agent.references.owned
    owned.enter(reference, cell)
    owned.count(reference, me)
    send(reference, made)
    rref._created = made.then(lambda made: made.value() and None)

    def is_made(made: CallFuture) -> None:
        error = error_of(made)
        if error is not None:
            cell.set(RemoteFailure(type(error), str(error)))
        owned.count(reference, me, -1)

    made.add_done_callback(is_made)
