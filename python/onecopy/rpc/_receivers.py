# SPDX-License-Identifier: Apache-2.0
"""Threads that take a process's messages: one at a time, and in order."""
from __future__ import annotations

import threading
import time
import traceback
from typing import Callable

STOP = object()


class Receivers:
    """`take()` waits for a message and handles it; what it returns is run outside of the order, by the thread that took it,
    or is None, or STOP. So a request needs no second thread, and one that waits keeps no other from being taken.

    Invariant: while requests run, another thread waits for messages, or is about to.
    Thread safety: start() and stop() are called once each."""

    def __init__(self, name: str, take: Callable[[], object]) -> None:
        self._name, self._take = name, take
        self._turn, self._lock = threading.Lock(), threading.Lock()
        self._threads: list[threading.Thread] = []
        self._free, self._is_stopped = 0, False

    def start(self) -> None:
        with self._lock:
            self._add()

    def stop(self, seconds: float) -> None:
        """Waits for what runs, `seconds` at most. REQUIRES: take() returns STOP soon."""
        end = time.monotonic() + seconds
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(end - time.monotonic(), 0))

    @property
    def free(self) -> int:
        """Threads that run nothing."""
        return self._free

    def _add(self) -> None:
        thread = threading.Thread(target=self._run, name=f"onecopy-rpc-{self._name}", daemon=True)
        self._threads.append(thread)
        self._free += 1
        thread.start()

    def _run(self) -> None:
        while (request := self._next()) is not STOP:
            self._leave()
            try:
                request()
            except Exception:
                traceback.print_exc()
            request = None
            with self._lock:
                self._free += 1

    def _next(self):
        with self._turn:
            while not self._is_stopped:
                try:
                    taken = self._take()
                except Exception:
                    traceback.print_exc()
                    continue
                if taken is STOP:
                    self._is_stopped = True
                elif taken is not None:
                    return taken
            return STOP

    def _leave(self) -> None:
        """Before a request: sees to it that another thread waits."""
        with self._lock:
            self._free -= 1
            if self._free == 0 and not self._is_stopped:
                self._add()
