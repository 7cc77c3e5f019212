# SPDX-License-Identifier: Apache-2.0
"""One thread that looks at deadlines when the first of them has passed."""
from __future__ import annotations

import threading
import time
import traceback
from typing import Callable


class Deadlines:
    """`expire(now)` ends what is late, and returns the next deadline or None. It must be short, and must not wait.
    Thread safety: all members may be called concurrently."""

    def __init__(self, expire: Callable[[float], float | None]) -> None:
        self._expire, self._changed = expire, threading.Condition()
        self._thread: threading.Thread | None = None
        self._next: float | None = None
        self._is_stopped = False

    def at(self, when: float) -> None:
        """expire() is called at `when`, as time.monotonic() has it, or before. Most calls end before the first deadline
        of all, so this wakes nothing for them."""
        with self._changed:
            if self._is_stopped or (self._next is not None and self._next <= when):
                return
            self._next = when
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="onecopy-rpc-deadlines", daemon=True)
                self._thread.start()
            self._changed.notify()

    def stop(self) -> None:
        with self._changed:
            self._is_stopped = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while self._wait():
            try:
                following = self._expire(time.monotonic())
            except Exception:
                traceback.print_exc()
                continue
            if following is not None:
                self.at(following)

    def _wait(self) -> bool:
        """Until the next deadline; False at the end."""
        with self._changed:
            while not self._is_stopped and (self._next is None or self._next > time.monotonic()):
                self._changed.wait(None if self._next is None else self._next - time.monotonic())
            self._next = None  # what comes while expire() looks is seen by it, or asks again
            return not self._is_stopped
