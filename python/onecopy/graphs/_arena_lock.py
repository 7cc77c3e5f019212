# SPDX-License-Identifier: Apache-2.0
"""The lock of an arena, on threads and on the device."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from .. import _core


class ArenaLock:
    """Keeps replays and captures of one arena from overlapping, on threads and on the device (I2).

    The object is a recursive lock and a context manager. ``of()`` also makes a stream wait for the stream that used the
    arena last.

    Thread safety: any thread may acquire the lock; the other methods need the lock held.
    """

    def __init__(self) -> None:
        self.core: _core._ArenaLock = _core._ArenaLock()

    def acquire(self, blocking: bool = True) -> bool:
        """Acquires the lock. Returns whether this thread holds it then."""
        return bool(self.core.acquire(blocking))

    def release(self) -> None:
        """Releases the lock."""
        self.core.release()

    def __enter__(self) -> ArenaLock:
        self.core.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.core.release()

    @contextlib.contextmanager
    def of(self, stream: Any) -> Iterator[None]:
        """Lets this ``torch.cuda.Stream`` use the arena in the block, after the work of the last stream."""
        self.core.enter_stream(stream.cuda_stream)
        try:
            yield
        finally:
            self.core.leave_stream(stream.cuda_stream)

    def wait(self) -> None:
        """Blocks the host until the work of the last stream is done."""
        self.core.wait()
