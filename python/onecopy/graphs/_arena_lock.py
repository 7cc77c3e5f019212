# SPDX-License-Identifier: Apache-2.0
"""The lock of an arena."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from .. import _core


class ArenaLock:
    """Replays and captures of one arena never overlap, neither on threads nor on the device (I2).

    As a context manager it is the arena's lock, which its thread may take again. On a device each stream waits for the
    last one that was there, too.

    Thread safety: as a lock by any thread; the rest with the lock held.
    """

    def __init__(self) -> None:
        self.core = _core._ArenaLock()

    def acquire(self, blocking: bool = True) -> bool:
        """Acquires the lock. Returns whether this thread has it."""
        return bool(self.core.acquire(blocking))

    def release(self) -> None:
        """The end of acquire()."""
        self.core.release()

    def __enter__(self) -> ArenaLock:
        self.core.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.core.release()

    @contextlib.contextmanager
    def of(self, stream: Any) -> Iterator[None]:
        """The arena is this ``torch.cuda.Stream``'s until the end of the block."""
        self.core.enter_stream(stream.cuda_stream)
        try:
            yield
        finally:
            self.core.leave_stream(stream.cuda_stream)

    def wait(self) -> None:
        """Waits, on the host, for the last holder's work."""
        self.core.wait()
