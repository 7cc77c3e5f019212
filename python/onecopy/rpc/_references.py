# SPDX-License-Identifier: Apache-2.0
"""References to values of other members (RRef).

The owner keeps a value while its table names a holder. A count is always there before the message that makes it needed:
- The owner that gives a reference away counts the receiver, and then sends.
- A holder that passes one on announces the receiver to the owner, and then sends. The receiver accepts when it arrives.
- A holder that lets go sends a drop. It comes behind the holder's announcements, and a receiver's behind its acceptance.
Lanes are first in, first out, and an item in them outlives its sender, so nothing is acknowledged and no member
waits. A member that ends loses its counts.
"""

import contextlib
import functools
import itertools
import queue
import threading
import time
import weakref

import torch

from . import registry, telemetry
from ._futures import done, failed
from .errors import RemoteFailure
from .registry import handler, note_handlers

_GATHERING = 0.001  # seconds for which drops of references are gathered
_MOST_DROPS = 1000  # of one message


class Cell:
    """A value on its owner, or the failure to make it; there, or still to come."""

    def __init__(self):
        self.future = torch.futures.Future()
        self._lock, self._is_set = threading.Lock(), False

    def set(self, value):
        """The first value counts. Callbacks of the future run in this thread, without the lock."""
        with self._lock:
            if self._is_set:
                return
            self._is_set = True
        self.future.set_result(value)

    def value(self):
        """Waits. Throws what making the value threw."""
        return self.unwrap(self.future.wait())

    @staticmethod
    def unwrap(value):
        if isinstance(value, RemoteFailure):
            raise value.exception()
        return value


class _Entry:
    def __init__(self):
        self.cell, self.holders, self.announced = Cell(), {}, {}

    def is_free(self):
        return not self.holders and not self.announced


class OwnedValues:
    """The owner's table. Thread safety: all members may be called concurrently."""

    def __init__(self):
        self._lock, self._entries = threading.Lock(), {}
        self._early = {}  # forks that were accepted, and not announced yet -> receiver

    def cell(self, reference):
        """Makes the entry where there is none: a reference may be used before its value is made."""
        with self._lock:
            return self._entries.setdefault(reference, _Entry()).cell

    def enter(self, reference, cell):
        with self._lock:
            self._entries.setdefault(reference, _Entry()).cell = cell

    def count(self, reference, holder, number=1):
        """`number` may be negative. The entry goes with its last holder."""
        with self._lock:
            entry = self._entries.setdefault(reference, _Entry())
            entry.holders[holder] = entry.holders.get(holder, 0) + number
            if entry.holders[holder] <= 0:
                del entry.holders[holder]
            gone = self._remove_free(reference)
        del gone  # without the lock: it may be anything

    def announce(self, reference, fork, receiver):
        with self._lock:
            if self._early.pop(fork, None) is None:
                self._entries.setdefault(reference, _Entry()).announced[fork] = receiver

    def accept(self, reference, fork, receiver):
        """It may come before the announcement, which another member sent: that one's own count keeps the value till then."""
        with self._lock:
            entry = self._entries.setdefault(reference, _Entry())
            if entry.announced.pop(fork, None) is None:
                self._early[fork] = receiver
            entry.holders[receiver] = entry.holders.get(receiver, 0) + 1

    def forget_member(self, member):
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

    def forget_unheld(self):
        with self._lock:
            gone = [self._remove_free(reference) for reference in list(self._entries)]
        del gone

    def counts(self):
        """(values, references to them)."""
        with self._lock:
            return len(self._entries), sum(sum(e.holders.values()) + len(e.announced) for e in self._entries.values())

    def held(self):
        """The references that others hold, for a report of leaks."""
        with self._lock:
            return {r: dict(e.holders) for r, e in self._entries.items() if not e.is_free()}

    def _remove_free(self, reference):
        if self._entries[reference].is_free():
            return self._entries.pop(reference)
        return None


class _Held:
    """One count of this process at another owner; dropped when this object goes. `creation` is the Future of the call that
    makes the value, as long as its answer has not been looked at: no thread is woken for it."""

    __slots__ = ("drops", "owner", "reference", "fork", "creation", "error", "is_deleted", "__weakref__")

    def __init__(self, drops, owner, reference, fork):
        self.drops, self.owner, self.reference, self.fork = drops, owner, reference, fork
        self.creation, self.error, self.is_deleted = None, None, False

    def is_confirmed(self):
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

    def created(self):
        """A Future of None: done when the owner has made the value, or has said why there is none."""
        creation = self.creation
        if creation is not None:
            return creation.then(lambda made: made.value())
        return done(None) if self.error is None else failed(self.error)

    def delete(self):
        if not self.is_deleted:
            self.is_deleted = True
            self.drops.put((self.owner, self.reference))

    __del__ = delete


def _why_not_made(error):
    text = str(error)
    if "more than set timeout" not in text:
        return error
    return RuntimeError(
        "RRef creation via rpc.remote() timed out, and it is possible that the RRef on the owner node does "
        f"not exist. ({text})"
    )


class References:
    """All references of this process. Thread safety: all members may be called concurrently."""

    def __init__(self, agent):
        self._agent, self._numbers = agent, itertools.count()
        self.owned = OwnedValues()
        self._drops = queue.SimpleQueue()  # whose put() may be called by a destructor at any moment
        self._thread = threading.Thread(target=self._send_drops, name="onecopy-rpc-drops", daemon=True)
        self._thread.start()
        self._lock = threading.Lock()
        self._all = weakref.WeakSet()

    def new_id(self):
        return (self._agent.info.id, next(self._numbers))

    def debug_info(self):
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

    def hold(self, owner, reference, fork):
        held = _Held(self._drops, owner, reference, fork)
        with self._lock:
            self._all.add(held)
        return held

    # --- crossing

    def give(self, rref, receiver):
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
        return rref._owner, rref._reference, fork, me

    def take_back(self, given, receiver):
        """References of a message that was not sent."""
        me = self._agent.info.id
        for rref, fork in given:
            if rref._owner == me:
                self.owned.count(rref._reference, receiver, -1)
            elif receiver != rref._owner:
                self.later(functools.partial(self._accept_and_drop, rref._owner, rref._reference, fork))

    def _accept_and_drop(self, owner, reference, fork):
        self._agent.note(owner, "accept", (reference, fork))
        self._agent.note(owner, "drop", [reference])

    def take(self, kind, owner, reference, fork, sender):
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

    def delete_all(self, seconds):
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

    def _drops_are_sent(self):
        sent = threading.Event()
        self._drops.put(sent.set)
        sent.wait()

    def later(self, function):
        """Runs it in the thread that sends drops, behind those. A destructor may call this at any moment."""
        self._drops.put(function)

    def stop(self):
        self._drops.put(None)
        self._thread.join()

    def _send_drops(self):
        while True:
            taken = [self._drops.get()]
            if type(taken[0]) is tuple:  # more may be on their way, and nothing waits for them
                time.sleep(_GATHERING)
            while not self._drops.empty():
                taken.append(self._drops.get())
            if not self._do(taken):
                return

    def _do(self, taken):
        """False at the end."""
        gathered = {}
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

    def _send_gathered(self, gathered):
        for owner, references in gathered.items():
            for i in range(0, len(references), _MOST_DROPS):
                self._agent.note(owner, "drop", references[i : i + _MOST_DROPS])
        gathered.clear()


def _text(number):
    return f"GloballyUniqueId(created_on={number[0]}, local_id={number[1]})"


class PyRRef:
    """A reference to a value of any type that a member of the group owns."""

    def __init__(self, value, type_hint=None):
        """Makes a reference to `value`, owned by this process."""
        agent = registry.current()
        self._make(agent, agent.info.id, agent.references.new_id(), cell=Cell())
        self._cell.set(value)

    def _make(self, agent, owner, reference, cell=None, held=None):
        self._agent, self._owner, self._reference, self._cell, self._held = agent, owner, reference, cell, held
        self._created = self._type = None
        return self

    @classmethod
    def _of_cell(cls, agent, reference, cell):
        return cls.__new__(cls)._make(agent, agent.info.id, reference, cell=cell)

    @classmethod
    def _of_held(cls, agent, held):
        return cls.__new__(cls)._make(agent, held.owner, held.reference, held=held)

    def is_owner(self):
        """Whether this process owns the value."""
        return self._held is None

    def confirmed_by_owner(self):
        """Whether the owner is known to count this reference."""
        return self._held is None or self._held.is_confirmed()

    def owner(self):
        """The owner's WorkerInfo."""
        return self._agent.get_worker_info(self._owner)

    def owner_name(self):
        """The owner's name."""
        return self.owner().name

    def to_here(self, timeout=-1.0):
        """The value, copied from its owner; waits until it is made.

        Throws what making it threw, RuntimeError after `timeout` seconds, and when the owner has ended."""
        if self.is_owner():
            return self.local_value()
        self._wait_until_made(timeout)
        self._check()
        return self._agent.result(self._owner, "fetch", (self._reference,), timeout=timeout, context=registry.context())

    def local_value(self):
        """The value itself, on its owner; waits until it is made. Throws RuntimeError elsewhere."""
        if not self.is_owner():
            raise RuntimeError(
                f"For {self._long()}, can't call localValue() on user {self._agent.info}. Call it on owner "
                f"{self.owner()}"
            )
        return self._cell.value()

    def rpc_sync(self, timeout=-1.0):
        """A proxy: proxy.method(...) runs the value's method on its owner and returns the result."""
        return RRefProxy(self, "sync", timeout)

    def rpc_async(self, timeout=-1.0):
        """A proxy: proxy.method(...) runs the value's method on its owner and returns a Future of the result."""
        return RRefProxy(self, "async", timeout)

    def remote(self, timeout=-1.0):
        """A proxy: proxy.method(...) runs the value's method on its owner and returns a reference to the result."""
        return RRefProxy(self, "remote", timeout)

    def backward(self, dist_autograd_ctx_id=-1, retain_graph=False):
        """Runs backward from the value, a scalar tensor, in that context; without one, on the owner alone."""
        if self.is_owner():
            return backward(self.local_value(), dist_autograd_ctx_id, retain_graph)
        if dist_autograd_ctx_id == -1:
            raise RuntimeError("User RRefs require 'dist_autograd_ctx_id' to be specified")
        self._check()
        self._agent.call(
            self._owner, "reference_backward", (self._reference, dist_autograd_ctx_id, retain_graph)
        ).wait()
        return None

    def _get_type(self, timeout=-1.0, blocking=True):
        """The value's type, or a Future of it; the owner is asked once."""
        future = self._type
        if future is None:
            future = self._type = self._ask_type(timeout)
            future.add_done_callback(self._forget_failed_type)
        return future.wait() if blocking else future

    def _ask_type(self, timeout):
        if self.is_owner():
            future = torch.futures.Future()
            future.set_result(type(self.local_value()))
            return future
        with telemetry.range_of_call("async", "_rref_typeof_on_owner", self._agent, self._owner):
            return self._agent.call(self._owner, "type", (self._reference,), timeout=timeout)

    def _forget_failed_type(self, future):
        try:
            future.value()
        except Exception:
            self._type = None

    def _get_future(self):
        """Done when the value is made (its owner), or when the owner has said so."""
        if self._created is None:
            self._created = self._cell.future if self.is_owner() else self._held.created()
        return self._created

    def _wait_until_made(self, timeout):
        """Before a call whose function waits for the value: else two workers of the owner are in each other's way. Not where
        a way there and back takes long, or where the value may take longer than the call."""
        creation = self._held.creation
        if creation is None or self._agent.member(self._owner).is_far:
            return
        seconds = self._agent.seconds_for(timeout)
        if not seconds or 0 < creation.seconds <= seconds:
            with contextlib.suppress(Exception):  # _check() has it
                creation.wait()

    def _check(self):
        if not self._agent.is_running or (self._held is not None and self._held.is_deleted):
            raise RuntimeError("Cannot call to_here() on it after deletion.")
        if self._held is not None and self._held.is_confirmed() and self._held.error is not None:
            raise self._held.error

    def _long(self):
        return f"UserRRef(rref_id={_text(self._reference)}, fork_id={_text(self._held.fork)})"

    def __repr__(self):
        if self.is_owner():
            return f"OwnerRRef({_text(self._reference)})"
        return f"UserRRef(RRefId = {_text(self._reference)}, ForkId = {_text(self._held.fork)})"

    def __reduce_ex__(self, protocol):
        raise RuntimeError("Can not pickle rref in python pickler, rref can only be pickled when using RPC")


class RRefProxy:
    """Calls methods of a referenced value on its owner."""

    def __init__(self, rref, how, timeout):
        self._rref, self._how, self._timeout = rref, how, timeout

    def __getattr__(self, name):
        def invoke(*args, **kwargs):
            self._rref._check()
            if self._how == "remote":  # else the mistake would be seen when the result is fetched
                getattr(self._rref._get_type(self._timeout), name)
            return self._rref._agent.invoke_method(self._rref, self._how, name, args, kwargs, self._timeout)

        invoke.__name__ = invoke.__qualname__ = name
        return invoke


def backward(value, context_id, retain_graph):
    if not isinstance(value, torch.Tensor):
        raise RuntimeError("RRef should contain a tensor for .backward()")
    if context_id == -1:
        torch.autograd.backward([value], retain_graph=retain_graph)
    else:
        registry.autograd().backward(context_id, [value], retain_graph)


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
