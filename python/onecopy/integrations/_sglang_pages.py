# SPDX-License-Identifier: Apache-2.0
"""Pages of SGLang in a KV pool, by SGLang's keys. The storage backend and the linker are built on it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence

from .. import store
from ._sglang_weights import check_watched, names_of, of_all_ranks

_HELD_SECONDS = 30.0  # between a lookup and its read; SGLang may drop the read without a word


class Pages:
    """A namespace of a KV pool. ``look_up()`` leases what it finds until the page is taken, or for 30 seconds.

    All ranks of an engine must make their objects at the same time. Thread safety: all methods may be called
    concurrently.

    Raises:
        Error: SGLang has not applied the hooks that count the engine's weight updates.
    """

    def __init__(self, pool: store.KvPool) -> None:
        check_watched()
        self.pool = pool
        self._engine: bytes = of_all_ranks(os.urandom(16))[0]
        self._group = int.from_bytes(os.urandom(4), "little")
        self._lock = threading.Lock()
        # A lease of each request's page that was looked up, and the lease's end. The first lease ends first.
        self._held: dict[tuple[str, bytes], tuple[int, float]] = {}

    def _end_leases(self) -> None:
        now = time.monotonic()
        while self._held:
            page, (number, end) = next(iter(self._held.items()))
            if end > now:
                break
            del self._held[page]
            self.pool.release([number])

    def look_up(self, keys: Sequence[str], request: str = "") -> int:
        """Returns how many keys have pages, up to the first that has none."""
        with self._lock:
            self._end_leases()
            names = names_of(keys, self._engine)
            numbers = self.pool.find(names)
            end = time.monotonic() + _HELD_SECONDS
            for name, number in zip(names, numbers):
                page = (request, name)
                if page in self._held:
                    self.pool.release([self._held.pop(page)[0]])
                self._held[page] = number, end
        return len(numbers)

    def take(self, keys: Sequence[str], request: str = "") -> list[int]:
        """Returns the block of each key, with a lease, up to the first that has none."""
        numbers: list[int] = []
        with self._lock:
            for name in names_of(keys, self._engine):
                held = self._held.pop((request, name), None)
                found = [held[0]] if held else self.pool.find([name])
                if not found:
                    break
                numbers += found
        return numbers

    def store(self, keys: Sequence[str], copy: Callable[[int, int], None]) -> list[bool]:
        """Stores pages that are not there. Returns whether each page is there, or is written by another engine.

        Args:
            copy: copies into a block, which is the first argument, the page with the index that is the second one.
        """
        names = names_of(keys, self._engine)
        numbers = self.pool.write(names, self._group)
        done = [number for number in numbers if number is not None]
        try:
            for index, number in enumerate(numbers):
                if number is not None:
                    copy(number, index)
            self.pool.complete(done)
        finally:
            self.pool.release(done)
        return [present is not False for present in self.pool.contains(names)]

    def end(self) -> None:
        """Ends the leases of lookups."""
        with self._lock:
            self.pool.release([number for number, _ in self._held.values()])
            self._held.clear()
