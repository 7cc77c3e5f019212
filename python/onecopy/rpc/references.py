# SPDX-License-Identifier: Apache-2.0
"""References to values of other members (RRef).

The owner keeps a value while its table names a holder. A count is always there before the message that makes it needed:
- The owner that gives a reference away counts the receiver, and then sends.
- A holder that passes one on announces the receiver to the owner, and then sends. The receiver accepts when it arrives.
- A holder that lets go sends a drop. It comes behind the holder's announcements, and a receiver's behind its
acceptance.
Lanes are first in, first out, and an item in them outlives its sender, so nothing is acknowledged and no member
waits. A member that ends loses its counts.
"""

from __future__ import annotations

import collections
import functools
import itertools
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..errors import PeerDied
from .futures import CallFuture, done, failed
from .owned import Cell, OwnedValues, Reference
from .registry import verb

_GATHERING = 0.001  # seconds for which drops of references are gathered
_MAX_DROPS = 1000  # of one message
_LOST = -1  # in place of a session


class Held:
    """A count of this process at another owner; dropped when this object goes. `creation` is the Future of the call
    that makes the value, as long as its answer has not been looked at: no thread is woken for it. `session` is the one
    with the owner in which it is counted; 0: not known yet."""

    __slots__ = ("__weakref__", "_drops", "creation", "error", "fork", "is_deleted", "owner", "reference", "session")

    def __init__(self, drops: queue.SimpleQueue[_Drop], owner: int, reference: Reference, fork: Reference) -> None:
        self._drops, self.owner, self.reference, self.fork = drops, owner, reference, fork
        self.creation: CallFuture | None = None
        self.error: Exception | None = None
        self.is_deleted = False
        self.session = 0

    def is_confirmed(self) -> bool:
        """Returns whether the owner is known to count it. Looks for the answer; from here on `error` is why there is no
        value."""
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

    def created(self) -> torch.futures.Future[Any]:
        """Returns a Future of None: done when the owner has made the value, or has said why there is none."""
        creation = self.creation
        if creation is not None:
            return creation.then(lambda made: made.value())
        return done(None) if self.error is None else failed(self.error)

    def delete(self) -> None:
        """Drops the count."""
        if not self.is_deleted:
            self.is_deleted = True
            if not self.is_lost:
                self._drops.put((self.owner, self.reference))

    __del__ = delete

    @property
    def is_lost(self) -> bool:
        """Returns whether the owner has forgotten it."""
        return self.session == _LOST

    def lose(self, error: Exception) -> None:
        """Notes that the owner counts it no longer, since the session has ended."""
        self.error, self.session = error, _LOST


def _why_not_made(error: Exception) -> Exception:
    text = str(error)
    if "more than set timeout" not in text:
        return error
    return RuntimeError(
        "RRef creation via rpc.remote() timed out, and it is possible that the RRef on the owner node does "
        f"not exist. ({text})"
    )


_Drop = tuple[int, Reference] | Callable[[], Any] | None  # of an owner's value; a function to run; None: the end


class References:
    """The references of this process. Thread safety: all members may be called concurrently."""

    def __init__(self, agent: Any) -> None:
        self._agent, self._numbers = agent, itertools.count()
        self.owned = OwnedValues()
        self._drops: queue.SimpleQueue[_Drop] = (
            queue.SimpleQueue()
        )  # its put() may be called by a destructor at any moment
        self._thread = threading.Thread(target=self._send_drops, name="onecopy-rpc-drops", daemon=True)
        self._thread.start()
        self._lock = threading.Lock()
        self._all: weakref.WeakSet[Held] = weakref.WeakSet()

    def new_id(self) -> Reference:
        """Returns an id that no other reference or fork of the group has."""
        return (self._agent.info.id, next(self._numbers))

    def debug_info(self) -> dict[str, str]:
        """Returns torch's debug information."""
        values, forks = self.owned.counts()
        with self._lock:
            held = list(self._all)
        return {
            "num_owner_rrefs": str(values),
            "num_forks": str(forks),
            "num_pending_users": str(sum(not one.is_confirmed() for one in held)),
            "num_pending_futures": str(self._agent.pending_count()),
        }

    def hold(self, owner: int, reference: Reference, fork: Reference) -> Held:
        """Returns a count of this process, which its owner has."""
        held = Held(self._drops, owner, reference, fork)
        with self._lock:
            self._all.add(held)
        return held

    # --- crossing

    def give(self, owner: int, reference: Reference, cell: Cell | None, receiver: int) -> Reference:
        """Counts `receiver`, and returns the fork by which it makes its own of this reference. REQUIRES: the reference
        is put into that member's lane next."""
        fork = self.new_id()
        if cell is not None:
            self.owned.enter(reference, cell)
            self.owned.count(reference, receiver)  # also for this process, until the message is here
        elif receiver != owner:
            self._agent.note(owner, "announce", (reference, fork, receiver))
        return fork

    def take_back(self, given: Iterable[tuple[Any, Reference]], receiver: int) -> None:
        """Undoes give() for (RRef, fork) of a message that was not sent."""
        for rref, fork in given:
            if rref._owner == self._agent.info.id:
                self.owned.count(rref._reference, receiver, -1)
            elif receiver != rref._owner:
                self.later(functools.partial(self._accept_and_drop, rref._owner, rref._reference, fork))

    def _accept_and_drop(self, owner: int, reference: Reference, fork: Reference) -> None:
        self._agent.note(owner, "accept", (reference, fork))
        self._agent.note(owner, "drop", [reference])

    def take(self, owner: int, reference: Reference, fork: Reference, sender: int) -> Cell | Held:
        """Returns the value of a reference that came, on its owner, or a count. Called in the order of the lane."""
        me = self._agent.info.id
        if owner == me:
            cell = self.owned.cell(reference)
            if sender == me:
                self.owned.count(reference, me, -1)
            return cell
        if sender != owner:
            self._agent.note(owner, "accept", (reference, fork))
        held = self.hold(owner, reference, fork)
        if sender == owner:
            held.session = self._agent.member(owner).ended_session + 1
        else:
            held.session = self._agent.endpoint.session_with(owner)
        return held

    # --- the end

    def lose(self, owner: int, session: int) -> None:
        """Makes the references that were counted in a session with their owner raise."""
        with self._lock:
            lost = [held for held in self._all if held.owner == owner and 0 < held.session <= session]
        for held in lost:
            held.lose(
                PeerDied(f"{self._agent.member(owner).info} forgot this reference when the session with it ended")
            )

    def delete_all(self, seconds: float) -> None:
        """Drops all references of this process to others' values, and waits until no other holds ours, `seconds` at
        most."""
        with self._lock:
            all_held = list(self._all)
        for held in all_held:
            held.delete()
        sent, never = threading.Event(), threading.Event()
        self.later(sent.set)
        sent.wait()
        end = time.monotonic() + seconds
        while self.owned.held() and time.monotonic() < end:
            never.wait(0.005)
        self.owned.forget_unheld()

    def later(self, function: Callable[[], Any]) -> None:
        """Runs a function in the thread that sends drops, behind those. A destructor may call this at any moment."""
        self._drops.put(function)

    def stop(self) -> None:
        """Ends the thread."""
        self._drops.put(None)
        self._thread.join()

    def _send_drops(self) -> None:
        while True:
            taken = [self._drops.get()]
            if type(taken[0]) is tuple:  # more may be on their way, and nothing waits for them
                time.sleep(_GATHERING)
            while not self._drops.empty():
                taken.append(self._drops.get())
            for are_drops, some in itertools.groupby(taken, lambda one: type(one) is tuple):
                if are_drops:
                    self._send(some)
                    continue
                for function in some:
                    if not callable(function):
                        return
                    function()

    def _send(self, drops: Iterable[Any]) -> None:
        gathered = collections.defaultdict(list)
        for owner, reference in drops:
            gathered[owner].append(reference)
        for owner, references in gathered.items():
            for i in range(0, len(references), _MAX_DROPS):
                self._agent.note(owner, "drop", references[i : i + _MAX_DROPS])


@verb("drop")
def _drop(agent: Any, caller: int, references: list[Reference]) -> None:
    for reference in references:
        agent.references.owned.count(tuple(reference), caller, -1)


@verb("announce")
def _announce(agent: Any, caller: int, value: tuple[Reference, Reference, int]) -> None:
    reference, fork, receiver = value
    if not agent.member(receiver).has_ended:
        agent.references.owned.announce(tuple(reference), tuple(fork), receiver)


@verb("accept")
def _accept(agent: Any, caller: int, value: tuple[Reference, Reference]) -> None:
    reference, fork = value
    agent.references.owned.accept(tuple(reference), tuple(fork), caller)
