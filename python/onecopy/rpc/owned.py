# SPDX-License-Identifier: Apache-2.0
"""The values of this process that other members refer to, and who refers to them: see references.py."""

from __future__ import annotations

import collections
import threading
from typing import Any

import torch

from .errors import RemoteFailure

Reference = tuple[int, int]  # (id of the member that made it, number there)


class Cell:
    """A value on its owner, or the failure to make it; there, or still to come."""

    def __init__(self) -> None:
        self.future: torch.futures.Future[Any] = torch.futures.Future()
        self._lock, self._is_set = threading.Lock(), False

    def set(self, value: Any) -> None:
        """Sets the value; the first one counts. Callbacks of the future run in this thread, without the lock."""
        with self._lock:
            if self._is_set:
                return
            self._is_set = True
        self.future.set_result(value)

    def value(self) -> Any:
        """Returns the value, and waits for it. Throws what making the value threw."""
        return self.unwrap(self.future.wait())

    @staticmethod
    def unwrap(value: Any) -> Any:
        """Returns a result of the future, and raises one that is a failure."""
        if isinstance(value, RemoteFailure):
            raise value.exception()
        return value


class _Entry:
    def __init__(self) -> None:
        self.cell = Cell()
        self.holders: collections.Counter[int] = collections.Counter()
        self.announced: dict[Reference, int] = {}

    def is_free(self) -> bool:
        return not self.holders and not self.announced


class OwnedValues:
    """The owner's table. Thread safety: all members may be called concurrently."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: collections.defaultdict[Reference, _Entry] = collections.defaultdict(_Entry)
        self._early: dict[Reference, int] = {}  # forks that were accepted, and not announced yet -> receiver

    def cell(self, reference: Reference) -> Cell:
        """Makes the entry where there is none: a reference may be used before its value is made."""
        with self._lock:
            return self._entries[reference].cell

    def enter(self, reference: Reference, cell: Cell) -> None:
        """Enters a value of this process."""
        with self._lock:
            self._entries[reference].cell = cell

    def count(self, reference: Reference, holder: int, number: int = 1) -> None:
        """Adds to a holder's references; `number` may be negative. The entry goes with its last holder."""
        with self._lock:
            holders = self._entries[reference].holders
            holders[holder] += number
            if holders[holder] <= 0:
                del holders[holder]
            gone = self._remove_free(reference)
        del gone  # without the lock: it may be anything

    def made_by(self, reference: Reference, holder: int, own: int) -> Cell:
        """Returns the cell of a reference that its maker counts on: it outlives the entry, which a quick drop may
        end."""
        if holder != own:
            self.count(reference, holder)
        return self.cell(reference)

    def announce(self, reference: Reference, fork: Reference, receiver: int) -> None:
        """Counts a fork that another member gives to `receiver`."""
        with self._lock:
            if self._early.pop(fork, None) is None:
                self._entries[reference].announced[fork] = receiver

    def accept(self, reference: Reference, fork: Reference, receiver: int) -> None:
        """Counts a receiver that has its fork. This may come before the announcement, which another member sent: the
        count of that member keeps the value until then."""
        with self._lock:
            entry = self._entries[reference]
            if entry.announced.pop(fork, None) is None:
                self._early[fork] = receiver
            entry.holders[receiver] += 1

    def forget_member(self, member: int) -> None:
        """Drops what a member holds. No message of a member that has ended comes after this: neither its acceptances
        nor its announcements."""
        with self._lock:
            self._early = {fork: to for fork, to in self._early.items() if member not in (fork[0], to)}
            for entry in self._entries.values():
                entry.holders.pop(member, None)
                entry.announced = {f: to for f, to in entry.announced.items() if to != member}
        self.forget_unheld()

    def forget_unheld(self) -> None:
        """Drops the values that nobody holds."""
        with self._lock:
            gone = [self._remove_free(reference) for reference in list(self._entries)]
        del gone

    def counts(self) -> tuple[int, int]:
        """Returns (values, references to them)."""
        with self._lock:
            return len(self._entries), sum(e.holders.total() + len(e.announced) for e in self._entries.values())

    def held(self) -> dict[Reference, dict[int, int]]:
        """Returns the references that others hold, for a report of leaks."""
        with self._lock:
            return {r: dict(e.holders) for r, e in self._entries.items() if not e.is_free()}

    def _remove_free(self, reference: Reference) -> _Entry | None:
        return self._entries.pop(reference) if self._entries[reference].is_free() else None
