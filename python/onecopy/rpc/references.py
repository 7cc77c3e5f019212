# SPDX-License-Identifier: Apache-2.0
"""References to values of other members (RRef).

The owner keeps a value while its table names a holder. A count is always there before the message that makes it needed:
- The owner that gives a reference away counts the receiver, and then sends.
- A holder that passes one on announces the receiver to the owner, and then sends. The receiver accepts when it arrives.
- A holder that lets go sends a drop. It comes behind the holder's announcements, and a receiver's behind its acceptance.
Lanes are first in, first out, and an item in them outlives its sender, so nothing is acknowledged and no member
waits. A member that ends loses its counts.
"""

from __future__ import annotations

from typing import Any

import contextlib
import functools
import itertools
import queue
import threading
import time
import weakref

import torch

from .. import _core
from . import functions, registry, telemetry, values
from .errors import RemoteFailure
from .futures import done, failed
from .registry import note

Reference = tuple[int, int]  # (id of the member that made it, number there)

_GATHERING = 0.001  # seconds for which drops of references are gathered
_MOST_DROPS = 1000  # of one message


class Cell:
    """A value on its owner, or the failure to make it; there, or still to come."""

    def __init__(self) -> None:
        self.future = torch.futures.Future()
        self._lock, self._is_set = threading.Lock(), False

    def set(self, value: Any) -> None:
        """The first value counts. Callbacks of the future run in this thread, without the lock."""
        with self._lock:
            if self._is_set:
                return
            self._is_set = True
        self.future.set_result(value)

    def value(self) -> Any:
        """Waits. Throws what making the value threw."""
        return self.unwrap(self.future.wait())

    @staticmethod
    def unwrap(value: Any) -> Any:
        if isinstance(value, RemoteFailure):
            raise value.exception()
        return value


class _Entry:
    def __init__(self) -> None:
        self.cell = Cell()
        self.holders: dict[int, int] = {}
        self.announced: dict[Reference, int] = {}

    def is_free(self) -> Any:
        return not self.holders and not self.announced


class OwnedValues:
    """The owner's table. Thread safety: all members may be called concurrently."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[Reference, _Entry] = {}
        self._early: dict[Reference, int] = {}  # forks that were accepted, and not announced yet -> receiver

    def cell(self, reference: Reference) -> Any:
        """Makes the entry where there is none: a reference may be used before its value is made."""
        with self._lock:
            return self._entries.setdefault(reference, _Entry()).cell

    def enter(self, reference: Reference, cell: Any) -> None:
        with self._lock:
            self._entries.setdefault(reference, _Entry()).cell = cell

    def count(self, reference: Reference, holder: int, number: int = 1) -> None:
        """`number` may be negative. The entry goes with its last holder."""
        with self._lock:
            entry = self._entries.setdefault(reference, _Entry())
            entry.holders[holder] = entry.holders.get(holder, 0) + number
            if entry.holders[holder] <= 0:
                del entry.holders[holder]
            gone = self._remove_free(reference)
        del gone  # without the lock: it may be anything

    def made_by(self, reference: Reference, holder: int, own: Any) -> Any:
        """Returns the cell of a reference that its maker counts on: it outlives the entry, which a quick drop may end."""
        if holder != own:
            self.count(reference, holder)
        return self.cell(reference)

    def announce(self, reference: Reference, fork: Reference, receiver: int) -> None:
        with self._lock:
            if self._early.pop(fork, None) is None:
                self._entries.setdefault(reference, _Entry()).announced[fork] = receiver

    def accept(self, reference: Reference, fork: Reference, receiver: int) -> None:
        """It may come before the announcement, which another member sent: that one's own count keeps the value till then."""
        with self._lock:
            entry = self._entries.setdefault(reference, _Entry())
            if entry.announced.pop(fork, None) is None:
                self._early[fork] = receiver
            entry.holders[receiver] = entry.holders.get(receiver, 0) + 1

    def forget_member(self, member: int) -> None:
        """No message of a member that has ended comes after this: neither its acceptances nor its announcements."""
        gone = []
        with self._lock:
            self._early = {fork: to for fork, to in self._early.items() if member not in (fork[0], to)}
            for reference in list(self._entries):
                entry = self._entries[reference]
                entry.holders.pop(member, None)
                entry.announced = {f: to for f, to in entry.announced.items() if to != member}
                gone.append(self._remove_free(reference))
        del gone

    def forget_unheld(self) -> None:
        with self._lock:
            gone = [self._remove_free(reference) for reference in list(self._entries)]
        del gone

    def counts(self) -> Any:
        """(values, references to them)."""
        with self._lock:
            return len(self._entries), sum(sum(e.holders.values()) + len(e.announced) for e in self._entries.values())

    def held(self) -> Any:
        """The references that others hold, for a report of leaks."""
        with self._lock:
            return {r: dict(e.holders) for r, e in self._entries.items() if not e.is_free()}

    def _remove_free(self, reference: Reference) -> Any:
        if self._entries[reference].is_free():
            return self._entries.pop(reference)
        return None


class _Held:
    """One count of this process at another owner; dropped when this object goes. `creation` is the Future of the call that
    makes the value, as long as its answer has not been looked at: no thread is woken for it."""

    __slots__ = ("drops", "owner", "reference", "fork", "creation", "error", "is_deleted", "__weakref__")

    def __init__(self, drops: Any, owner: int, reference: Reference, fork: Reference) -> None:
        self.drops, self.owner, self.reference, self.fork = drops, owner, reference, fork
        self.creation, self.error, self.is_deleted = None, None, False

    def is_confirmed(self) -> bool:
        """Whether the owner is known to count it. Looks for the answer; from here on `error` is why there is no value."""
        creation = self.creation
        if creation is None:
            return True
        if not creation.done():
            return False
        try:
            creation.value()
        except Exception as error:
            self.error = _why_not_made(error).with_traceback(None)  # its frames have this object
        self.creation = None
        return True

    def created(self) -> Any:
        """A Future of None: done when the owner has made the value, or has said why there is none."""
        creation = self.creation
        if creation is not None:
            return creation.then(lambda made: made.value())
        return done(None) if self.error is None else failed(self.error)

    def delete(self) -> None:
        if not self.is_deleted:
            self.is_deleted = True
            self.drops.put((self.owner, self.reference))

    __del__ = delete


def _why_not_made(error: Any) -> Any:
    text = str(error)
    if "more than set timeout" not in text:
        return error
    return RuntimeError(
        "RRef creation via rpc.remote() timed out, and it is possible that the RRef on the owner node does "
        f"not exist. ({text})"
    )


class References:
    """All references of this process. Thread safety: all members may be called concurrently."""

    def __init__(self, agent: Any) -> None:
        self._agent, self._numbers = agent, itertools.count()
        self.owned = OwnedValues()
        self._drops: queue.SimpleQueue[Any] = (
            queue.SimpleQueue()
        )  # whose put() may be called by a destructor at any moment
        self._thread = threading.Thread(target=self._send_drops, name="onecopy-rpc-drops", daemon=True)
        self._thread.start()
        self._lock = threading.Lock()
        self._all: weakref.WeakSet[_Held] = weakref.WeakSet()

    def new_id(self) -> Any:
        return (self._agent.info.id, next(self._numbers))

    def debug_info(self) -> Any:
        values, forks = self.owned.counts()
        with self._lock:
            held = list(self._all)
        pending = sum(not one.is_confirmed() for one in held)
        return {
            "num_owner_rrefs": str(values),
            "num_forks": str(forks),
            "num_pending_users": str(pending),
            "num_pending_futures": str(self._agent.pending_count()),
        }

    def hold(self, owner: int, reference: Reference, fork: Reference) -> Any:
        held = _Held(self._drops, owner, reference, fork)
        with self._lock:
            self._all.add(held)
        return held

    # --- crossing

    def give(self, rref: Any, receiver: int) -> Any:
        """The plain values by which `receiver` makes its own of this reference. REQUIRES: they are put into that member's
        lane next."""
        me, fork = self._agent.info.id, self.new_id()
        if rref._held is not None and rref._held.is_deleted:
            raise RuntimeError("Cannot call fork an UserRRef after deletion.")
        if rref._owner == me:
            self.owned.enter(rref._reference, rref._cell)
            self.owned.count(rref._reference, receiver)  # also for this process, until the message is here
        elif receiver != rref._owner:
            rref._check()
            self._agent.note(rref._owner, "announce", (rref._reference, fork, receiver))
        return rref._owner, rref._reference, fork

    def take_back(self, given: Any, receiver: int) -> None:
        """References of a message that was not sent."""
        me = self._agent.info.id
        for rref, fork in given:
            if rref._owner == me:
                self.owned.count(rref._reference, receiver, -1)
            elif receiver != rref._owner:
                self.later(functools.partial(self._accept_and_drop, rref._owner, rref._reference, fork))

    def _accept_and_drop(self, owner: int, reference: Reference, fork: Reference) -> None:
        self._agent.note(owner, "accept", (reference, fork))
        self._agent.note(owner, "drop", [reference])

    def take(self, kind: Any, owner: int, reference: Reference, fork: Reference, sender: int) -> Any:
        """The reference that came. Called in the order of the lane."""
        me = self._agent.info.id
        if owner == me:
            cell = self.owned.cell(reference)
            if sender == me:
                self.owned.count(reference, me, -1)
            return kind._of_cell(self._agent, reference, cell)
        if sender != owner:
            self._agent.note(owner, "accept", (reference, fork))
        return kind._of_held(self._agent, self.hold(owner, reference, fork))

    # --- the end

    def delete_all(self, seconds: float) -> None:
        """Drops all references of this process to others' values, and waits until no other holds ours, `seconds` at most."""
        deadline = threading.Event()
        with self._lock:
            all_held = list(self._all)
        for held in all_held:
            held.delete()
        self._drops_are_sent()
        waited = 0.0
        while self.owned.held() and waited < seconds and not deadline.wait(0.005):
            waited += 0.005
        self.owned.forget_unheld()

    def _drops_are_sent(self) -> None:
        sent = threading.Event()
        self._drops.put(sent.set)
        sent.wait()

    def later(self, function: Any) -> None:
        """Runs it in the thread that sends drops, behind those. A destructor may call this at any moment."""
        self._drops.put(function)

    def stop(self) -> None:
        self._drops.put(None)
        self._thread.join()

    def _send_drops(self) -> None:
        while True:
            taken = [self._drops.get()]
            if type(taken[0]) is tuple:  # more may be on their way, and nothing waits for them
                time.sleep(_GATHERING)
            while not self._drops.empty():
                taken.append(self._drops.get())
            if not self._do(taken):
                return

    def _do(self, taken: Any) -> bool:
        """False at the end."""
        gathered: dict[int, list[Reference]] = {}
        for one in taken:
            if type(one) is tuple:
                owner, reference = one
                gathered.setdefault(owner, []).append(reference)
                continue
            self._send_gathered(gathered)
            if one is None:
                return False
            one()
        self._send_gathered(gathered)
        return True

    def _send_gathered(self, gathered: Any) -> None:
        for owner, references in gathered.items():
            for i in range(0, len(references), _MOST_DROPS):
                self._agent.note(owner, "drop", references[i : i + _MOST_DROPS])
        gathered.clear()


def _text(number: Reference) -> Any:
    return f"GloballyUniqueId(created_on={number[0]}, local_id={number[1]})"


class PyRRef:
    """A reference to a value of any type that a member of the group owns."""

    def __init__(self, value: Any, type_hint: Any = None) -> None:
        """Makes a reference to `value`, owned by this process."""
        agent = registry.current()
        self._make(agent, agent.info.id, agent.references.new_id(), cell=Cell())
        self._cell.set(value)

    def _make(self, agent: Any, owner: int, reference: Reference, cell: Any = None, held: Any = None) -> Any:
        self._agent, self._owner, self._reference, self._cell, self._held = agent, owner, reference, cell, held
        self._created = self._type = None
        return self

    @classmethod
    def _of_cell(cls, agent: Any, reference: Reference, cell: Any) -> Any:
        return cls.__new__(cls)._make(agent, agent.info.id, reference, cell=cell)

    @classmethod
    def _of_held(cls, agent: Any, held: Any) -> Any:
        return cls.__new__(cls)._make(agent, held.owner, held.reference, held=held)

    def is_owner(self) -> bool:
        """Whether this process owns the value."""
        return self._held is None

    def confirmed_by_owner(self) -> Any:
        """Whether the owner is known to count this reference."""
        return self._held is None or self._held.is_confirmed()

    def owner(self) -> Any:
        """The owner's WorkerInfo."""
        return self._agent.get_worker_info(self._owner)

    def owner_name(self) -> str:
        """The owner's name."""
        return self.owner().name

    def to_here(self, timeout: float = -1.0) -> Any:
        """The value, copied from its owner; waits until it is made.

        Throws what making it threw, RuntimeError after `timeout` seconds, and when the owner has ended."""
        if self.is_owner():
            return self.local_value()
        self._wait_until_made(timeout)
        self._check()
        return self._agent.call_verb(self._owner, ".fetch", (self._reference,), timeout)

    def local_value(self) -> Any:
        """The value itself, on its owner; waits until it is made. Throws RuntimeError elsewhere."""
        if not self.is_owner():
            raise RuntimeError(
                f"For {self._long()}, can't call localValue() on user {self._agent.info}. Call it on owner "
                f"{self.owner()}"
            )
        return self._cell.value()

    def rpc_sync(self, timeout: float = -1.0) -> Any:
        """A proxy: proxy.method(...) runs the value's method on its owner and returns the result."""
        return RRefProxy(self, "sync", timeout)

    def rpc_async(self, timeout: float = -1.0) -> Any:
        """A proxy: proxy.method(...) runs the value's method on its owner and returns a Future of the result."""
        return RRefProxy(self, "async", timeout)

    def remote(self, timeout: float = -1.0) -> Any:
        """A proxy: proxy.method(...) runs the value's method on its owner and returns a reference to the result."""
        return RRefProxy(self, "remote", timeout)

    def backward(self, dist_autograd_ctx_id: int = -1, retain_graph: bool = False) -> Any:
        """Runs backward from the value, a scalar tensor, in that context; without one, on the owner alone."""
        if self.is_owner():
            return backward(self.local_value(), dist_autograd_ctx_id, retain_graph)
        if dist_autograd_ctx_id == -1:
            raise RuntimeError("User RRefs require 'dist_autograd_ctx_id' to be specified")
        self._check()
        self._agent.call_verb(self._owner, ".backward", (self._reference, dist_autograd_ctx_id, retain_graph))
        return None

    def _get_type(self, timeout: float = -1.0, blocking: bool = True) -> Any:
        """The value's type, or a Future of it; the owner is asked once."""
        future = self._type
        if future is None:
            future = self._type = self._ask_type(timeout)
            future.add_done_callback(self._forget_failed_type)
        return future.wait() if blocking else future

    def _ask_type(self, timeout: float) -> Any:
        if self.is_owner():
            future = torch.futures.Future()
            future.set_result(type(self.local_value()))
            return future
        with telemetry.range_of_call("async", "_rref_typeof_on_owner", self._agent, self._owner):
            return self._agent.begin_verb(self._owner, ".type", (self._reference,), timeout)

    def _forget_failed_type(self, future: Any) -> None:
        try:
            future.value()
        except Exception:
            self._type = None

    def _get_future(self) -> Any:
        """Done when the value is made (its owner), or when the owner has said so."""
        if self._created is None:
            self._created = self._cell.future if self.is_owner() else self._held.created()
        return self._created

    def _wait_until_made(self, timeout: float) -> None:
        """Before a call whose function waits for the value: else two workers of the owner are in each other's way. Not where
        a way there and back takes long, or where the value may take longer than the call."""
        creation = self._held.creation
        if creation is None or self._agent.member(self._owner).is_far:
            return
        seconds = self._agent.seconds_for(timeout)
        if not seconds or 0 < creation.seconds <= seconds:
            with contextlib.suppress(Exception):  # _check() has it
                creation.wait()

    def _check(self) -> None:
        if not self._agent.is_running or (self._held is not None and self._held.is_deleted):
            raise RuntimeError("Cannot call to_here() on it after deletion.")
        if self._held is not None and self._held.is_confirmed() and self._held.error is not None:
            raise self._held.error

    def _long(self) -> Any:
        return f"UserRRef(rref_id={_text(self._reference)}, fork_id={_text(self._held.fork)})"

    def __repr__(self) -> str:
        if self.is_owner():
            return f"OwnerRRef({_text(self._reference)})"
        return f"UserRRef(RRefId = {_text(self._reference)}, ForkId = {_text(self._held.fork)})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise RuntimeError("Can not pickle rref in python pickler, rref can only be pickled when using RPC")


class RRefProxy:
    """Calls methods of a referenced value on its owner."""

    def __init__(self, rref: Any, how: str, timeout: float) -> None:
        self._rref, self._how, self._timeout = rref, how, timeout

    def __getattr__(self, name: str) -> Any:
        def invoke(*args: Any, **kwargs: Any) -> Any:
            self._rref._check()
            if self._how == "remote":  # else the mistake would be seen when the result is fetched
                getattr(self._rref._get_type(self._timeout), name)
            return self._rref._agent.invoke_method(self._rref, self._how, name, args, kwargs, self._timeout)

        invoke.__name__ = invoke.__qualname__ = name
        return invoke


def backward(value: Any, context_id: int, retain_graph: bool) -> None:
    if not isinstance(value, torch.Tensor):
        raise RuntimeError("RRef should contain a tensor for .backward()")
    if context_id == -1:
        torch.autograd.backward([value], retain_graph=retain_graph)
    else:
        registry.autograd().backward(context_id, [value], retain_graph)


def _reduce(rref: Any) -> Any:
    giving: Any = _core._rpc_giving()
    parts = giving.agent.references.give(rref, giving.receiver)
    giving.give(rref, parts[2])
    return ("reference", *parts)


def _rebuild(owner: int, reference: Reference, fork: Reference) -> Any:
    taking: Any = _core._rpc_taking()
    agent, sender = taking
    return agent.references.take(agent.rref_class, owner, reference, fork, sender)


values.register(PyRRef, _reduce, "reference", _rebuild)


@note("drop")
def _drop(agent: Any, caller: int, value: Any) -> None:
    for reference in value:
        agent.references.owned.count(tuple(reference), caller, -1)


@note("announce")
def _announce(agent: Any, caller: int, value: Any) -> None:
    reference, fork, receiver = value
    if not agent.member(receiver).has_ended:
        agent.references.owned.announce(tuple(reference), tuple(fork), receiver)


@note("accept")
def _accept(agent: Any, caller: int, value: Any) -> None:
    reference, fork = value
    agent.references.owned.accept(tuple(reference), tuple(fork), caller)
