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

from .owned import Cell, OwnedValues, Reference
from .registry import verb

_GATHERING = 0.001  # seconds for which drops of references are gathered
_MAX_DROPS = 1000  # of one message


class References:
    """The references of this process. Thread safety: all members may be called concurrently."""

    def __init__(self, agent: Any) -> None:
        self._agent, self._numbers = agent, itertools.count()
        self.owned = OwnedValues()
        # A reference to drop, as (owner, id); a function to run; or None at the end. A destructor may call put() at any
        # moment.
        self._drops: queue.SimpleQueue[tuple[int, Reference] | Callable[[], Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._send_drops, name="onecopy-rpc-drops", daemon=True)
        self._thread.start()
        self._lock = threading.Lock()
        self._all: weakref.WeakSet[Any] = weakref.WeakSet()  # references to values of others

    def new_id(self) -> Reference:
        """Returns an id that no other reference or fork of the group has."""
        return (self._agent.info.id, next(self._numbers))

    def add(self, rref: Any) -> None:
        """Adds a reference of this process to a value of another."""
        with self._lock:
            self._all.add(rref)

    def _held(self) -> list[Any]:
        with self._lock:
            return list(self._all)

    def debug_info(self) -> dict[str, str]:
        """Returns torch's debug information."""
        values, forks = self.owned.counts()
        return {
            "num_owner_rrefs": str(values),
            "num_forks": str(forks),
            "num_pending_users": str(sum(not rref.confirmed_by_owner() for rref in self._held())),
            "num_pending_futures": str(self._agent.pending_count()),
        }

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
            if rref.is_owner():
                self.owned.count(rref._reference, receiver, -1)
            elif receiver != rref._owner:
                self.later(functools.partial(self._accept_and_drop, rref._owner, rref._reference, fork))

    def _accept_and_drop(self, owner: int, reference: Reference, fork: Reference) -> None:
        self._agent.note(owner, "accept", (reference, fork))
        self._agent.note(owner, "drop", [reference])

    # --- the end

    def lose(self, owner: int, session: int) -> None:
        """Makes the references that were counted in a session with their owner raise."""
        for rref in self._held():
            if rref._owner == owner and 0 < rref._session <= session:
                rref._lose()

    def delete_all(self, seconds: float) -> None:
        """Drops all references of this process to others' values, and waits until no other holds ours, `seconds` at
        most."""
        for rref in self._held():
            rref._delete()
        sent, never = threading.Event(), threading.Event()
        self.later(sent.set)
        sent.wait()
        end = time.monotonic() + seconds
        while self.owned.held() and time.monotonic() < end:
            never.wait(0.005)
        self.owned.forget_unheld()

    def drop(self, owner: int, reference: Reference) -> None:
        """Drops a count at an owner, soon. A destructor may call this at any moment."""
        self._drops.put((owner, reference))

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
