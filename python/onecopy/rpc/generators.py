# SPDX-License-Identifier: Apache-2.0
"""What the callee of a stream needs besides the generator: credit for items, and a loop for an asynchronous one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import torch

from ..errors import Timeout


class Window:
    """A bound on the items that were made and not taken. Thread safety: all members may be called concurrently."""

    def __init__(self, credit: int, running: Any) -> None:
        self._changed, self._credit, self._running = threading.Condition(), credit, running
        self._is_closed = False
        self.failure: Exception | None = None
        running.on_cancel(self.close)

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def enter(self) -> bool:
        """Waits until an item may be made; False if none is wanted. Throws Timeout behind the call's deadline, and
        the exception of sending an item."""
        with self._changed:
            while not self._is_closed and self._credit == 0:
                left = self._running.remaining()
                if left is not None and left <= 0:
                    raise Timeout(
                        f"{self._running.function}: the caller has not taken its items before the call's deadline"
                    )
                self._changed.wait(left)
            if self.failure is not None:
                raise self.failure
            self._credit -= 1
            return not self._is_closed

    def answered(self, future: torch.futures.Future[bool]) -> None:
        """Adds the credit of an item that was taken, whose Future this is."""
        try:
            is_wanted, failure = future.value(), None
        except Exception as error:
            is_wanted, failure = False, error
        with self._changed:
            self._credit += 1
            self._is_closed = self._is_closed or not is_wanted
            self.failure = self.failure or failure
            self._changed.notify()


def driven(items: AsyncGenerator[Any, Any]) -> Iterator[Any]:
    """Returns an asynchronous generator as one of the plain kind, in a loop of its own."""

    async def next_item() -> Any:
        return await anext(items)

    loop = asyncio.new_event_loop()
    try:
        while True:
            try:
                item = loop.run_until_complete(next_item())
            except StopAsyncIteration:
                return
            yield item
    finally:
        loop.run_until_complete(items.aclose())
        loop.close()
