# SPDX-License-Identifier: Apache-2.0
"""References to values of other members (RRef).

The owner keeps a value while its table names a holder. Each reference is counted before the message that carries it is
sent:
- An owner that sends a reference counts the receiver first.
- A holder that passes a reference on announces the receiver to the owner first. The receiver accepts on arrival.
- A holder that releases a reference sends a drop, after its announcements and its acceptance.

Lanes are first in, first out, and an item in a lane outlives its sender, so no message needs an acknowledgement. The
counts of a member end with the member.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from . import telemetry
from .cells import Cell
from .registry import verb

_GATHERING = 0.005  # seconds after which the drop thread sends drops of references that no call has sent
_MANY_DROPS = 64  # the number for one owner that the next remote() call to the owner sends
_MAX_DROPS = 1000  # the maximum in one message


Reference = tuple[int, int]  # (id of the member that made it, number there)


class _Entry:
    def __init__(self) -> None:
        self.cell = Cell()
        self.holders: dict[int, int] = {}
        self.announced: dict[Reference, int] = {}

    def is_free(self) -> bool:
        return not self.holders and not self.announced


class OwnedValues:
    """The owner's table of values and their holders. Thread safety: all members may be called concurrently."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: collections.defaultdict[Reference, _Entry] = collections.defaultdict(_Entry)
        self._early: dict[Reference, int] = {}  # accepted forks that are not announced yet -> receiver

    def cell(self, reference: Reference) -> Cell:
        """Returns the cell of a reference, and makes a missing one: a reference may be used before its value is
        made."""
        with self._lock:
            return self._entries[reference].cell

    def enter(self, reference: Reference, cell: Cell) -> None:
        """Adds the cell of a value of this process."""
        with self._lock:
            self._entries[reference].cell = cell

    def count(self, reference: Reference, holder: int, number: int = 1) -> None:
        """Adds `number`, which may be negative, to a holder's references. Removes an entry without holders."""
        with self._lock:
            gone = self._add(reference, holder, number)
        del gone  # destroys the value, whose destructor may run any code, without the lock

    def made_by(self, reference: Reference, holder: int, own: int) -> Cell:
        """Counts the maker of a reference and returns the cell, which outlives the entry if a drop removes the entry
        early."""
        with self._lock:
            cell = self._entries[reference].cell
            gone = None if holder == own else self._add(reference, holder, 1)
        del gone  # as in count()
        return cell

    def announce(self, reference: Reference, fork: Reference, receiver: int) -> None:
        """Counts a fork that another member sends to `receiver`."""
        with self._lock:
            if self._early.pop(fork, None) is None:
                self._entries[reference].announced[fork] = receiver

    def accept(self, reference: Reference, fork: Reference, receiver: int) -> None:
        """Counts a receiver that has its fork. An acceptance may arrive before the announcement of the sending member,
        whose own count keeps the value until then."""
        with self._lock:
            entry = self._entries[reference]
            if entry.announced.pop(fork, None) is None:
                self._early[fork] = receiver
            entry.holders[receiver] = entry.holders.get(receiver, 0) + 1

    def forget_member(self, member: int) -> None:
        """Drops all counts of a member that has ended. REQUIRES: all its messages were handled."""
        with self._lock:
            self._early = {fork: to for fork, to in self._early.items() if member not in (fork[0], to)}
            for entry in self._entries.values():
                entry.holders.pop(member, None)
                entry.announced = {f: to for f, to in entry.announced.items() if to != member}
        self.forget_unheld()

    def forget_unheld(self) -> None:
        """Drops the values without holders."""
        with self._lock:
            gone = [self._remove_free(reference) for reference in list(self._entries)]
        del gone

    def counts(self) -> tuple[int, int]:
        """Returns (number of values, number of references to values)."""
        with self._lock:
            return len(self._entries), sum(sum(e.holders.values()) + len(e.announced) for e in self._entries.values())

    def held(self) -> dict[Reference, dict[int, int]]:
        """Returns {reference: {holder: number}} of the held values, for a report of leaks."""
        with self._lock:
            return {r: dict(e.holders) for r, e in self._entries.items() if not e.is_free()}

    def _add(self, reference: Reference, holder: int, number: int) -> _Entry | None:
        """Returns the entry if it was removed, which the caller destroys without the lock."""
        holders = self._entries[reference].holders
        count = holders.pop(holder, 0) + number
        if count > 0:
            holders[holder] = count
        return self._remove_free(reference)

    def _remove_free(self, reference: Reference) -> _Entry | None:
        return self._entries.pop(reference) if self._entries[reference].is_free() else None


# --- the references of this process


class References:
    """The references of this process. Thread safety: all members may be called concurrently."""

    def __init__(self, agent: Any) -> None:
        self._agent, self._numbers = agent, itertools.count()
        self.owned = OwnedValues()
        # Owner -> references to drop there. A destructor may append at any moment.
        self._drops: dict[int, collections.deque[Reference]] = {}
        self._is_gathering = False  # whether the drop thread will send the drops
        # Functions to run after the drops were sent; None ends the drop thread.
        self._functions: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._send_drops, name="onecopy-rpc-drops", daemon=True)
        self._thread.start()
        self._lock = threading.Lock()
        self._all: weakref.WeakSet[Any] = weakref.WeakSet()  # references to values of others
        # Is held while a reference takes the outcome of the call that makes its value.
        self.outcomes: contextlib.AbstractContextManager[bool] = threading.RLock()

    def new_id(self) -> Reference:
        """Returns an id that no other reference or fork of the group has."""
        return (self._agent.info.id, next(self._numbers))

    def add(self, rref: Any) -> None:
        """Adds a reference of this process to a value of another member."""
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
            "num_pending_futures": str(self._agent.endpoint.calls_under_way),
        }

    # --- crossing

    def give(self, owner: int, reference: Reference, cell: Cell | None, receiver: int) -> Reference:
        """Counts `receiver`, and returns the fork from which the receiver makes its own reference. REQUIRES: the caller
        puts the fork into the receiver's lane next."""
        fork = self.new_id()
        if cell is not None:
            self.owned.enter(reference, cell)
            self.owned.count(reference, receiver)  # counts this process, too, until the message has arrived
        elif receiver != owner:
            self._agent.note(owner, "announce", (reference, fork, receiver))
        return fork

    def take_back(self, given: Iterable[tuple[Any, Reference]], receiver: int) -> None:
        """Undoes give() for each (RRef, fork) of a message that was not sent."""
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
        """Makes the references raise that were counted in an ended session with `owner`."""
        for rref in self._held():
            if rref._owner == owner and 0 < rref._session <= session:
                rref._lose()

    def delete_all(self, seconds: float) -> None:
        """Drops all references of this process, and waits until no member holds a value of this process, or for
        `seconds`."""
        for rref in self._held():
            rref._delete()
        sent, never = threading.Event(), threading.Event()
        self.later(sent.set)
        end = time.monotonic() + seconds
        sent.wait(seconds)
        while self.owned.held() and time.monotonic() < end:
            never.wait(0.005)
        self.owned.forget_unheld()

    def drop(self, owner: int, reference: Reference) -> None:
        """Drops a count at an owner soon. A destructor may call drop() at any moment."""
        try:
            self._drops[owner].append(reference)
        except KeyError:
            self._drops.setdefault(owner, collections.deque()).append(reference)
        if not self._is_gathering:
            self._is_gathering = True
            self._functions.put(_only_send)

    def send_many(self, owner: int) -> None:
        """Sends the drops for an owner if there are many. Called before a call to the owner, so that a program that
        makes and deletes references rarely wakes the drop thread."""
        if len(self._drops.get(owner, ())) >= _MANY_DROPS:
            self._send(owner)

    def later(self, function: Callable[[], Any]) -> None:
        """Runs a function in the drop thread, after the queued drops. A destructor may call later() at any moment."""
        self._functions.put(function)

    def stop(self) -> None:
        """Ends the drop thread."""
        self._functions.put(None)
        self._thread.join()

    def _send_drops(self) -> None:
        while function := self._functions.get():
            time.sleep(_GATHERING)  # more drops may follow, and no thread waits for drops
            self._is_gathering = False  # before the drops are read, so that a later drop() asks again
            for owner in list(self._drops):
                self._send(owner)
            telemetry.attempt(function)

    def _send(self, owner: int) -> None:
        drops = self._drops[owner]
        while drops:
            some: list[Reference] = []
            with contextlib.suppress(IndexError):  # another thread may send drops, too
                while len(some) < _MAX_DROPS:
                    some.append(drops.popleft())
            telemetry.attempt(self._agent.note, owner, "drop", some)


def _only_send() -> None:
    """Is put into the queue of functions when there are drops to send."""


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
