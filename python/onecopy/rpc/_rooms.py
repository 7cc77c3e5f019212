# SPDX-License-Identifier: Apache-2.0
"""A bound on the calls that are under way to one member: a caller that is too quick waits, or gets an error."""

import threading
import time

from ..errors import PeerDied, Timeout
from .errors import Busy

WAIT, REFUSE = "wait", "refuse"


class Room:
    """Room for `most` calls. Thread safety: all members may be called concurrently.
    Invariant: each enter() that returned is followed by one leave()."""

    def __init__(self, most, when_full):
        self._most, self._when_full = most, when_full
        self._changed, self._used, self._waiting = threading.Condition(), 0, 0
        self.waits = 0

    def enter(self, member, deadline):
        """Waits for room until the deadline, as time.monotonic() has it, or for ever. Throws Busy, Timeout, and PeerDied for
        a member that has ended."""
        with self._changed:
            if self._used < self._most:
                self._used += 1
                return
            self._refuse(member)
            self.waits += 1
            while self._used >= self._most:
                self._wait(member, deadline)
            self._used += 1

    def leave(self):
        with self._changed:
            self._used -= 1
            self._changed.notify()

    @property
    def used(self):
        return self._used

    def _refuse(self, member):
        if self._when_full == REFUSE:
            raise Busy(
                f"{self._used} calls to {member.info} are under way, as many as init(max_calls={self._most}) allows: wait "
                "for some of them, or give a larger max_calls, or when_full='wait'"
            )

    def _wait(self, member, deadline):
        if member.has_ended:
            raise PeerDied(member.why_ended)
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise Timeout(
                f"{self._used} calls to {member.info} are under way, as many as init(max_calls={self._most}) allows, "
                "and none of them has ended before this call's deadline"
            )
        self._changed.wait(0.1 if left is None else min(left, 0.1))
