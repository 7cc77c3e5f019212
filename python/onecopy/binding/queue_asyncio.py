# SPDX-License-Identifier: Apache-2.0
"""Implements ``Queue.aget()`` and ``async for obj in queue`` for asyncio."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from .._core import Queue
from ..errors import Closed

_NOTHING = object()


async def get(queue: Queue[Any]) -> Any:
    """Returns the next object of a queue.

    The coroutine returns right after it has taken the object, without an ``await`` between. So a cancelled task never
    loses an object. Each call first yields to the event loop once: other tasks run and a cancellation arrives even
    while another process fills the queue as fast as this process empties it.
    """
    await asyncio.sleep(0)
    while (value := queue.try_get(default=_NOTHING)) is _NOTHING:
        await _readable(queue.fileno())
    return value


async def get_next(queue: Queue[Any]) -> Any:
    """Returns the next object for ``__anext__()``; raises StopAsyncIteration once the queue is closed."""
    try:
        return await get(queue)
    except Closed:
        raise StopAsyncIteration from None


async def _readable(descriptor: int) -> None:
    """Waits until a descriptor is readable.

    Each waiter watches a duplicate, since an event loop accepts only one callback per descriptor.
    """
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    watched = os.dup(descriptor)
    try:
        loop.add_reader(watched, _wake, ready)
        await ready
    finally:
        loop.remove_reader(watched)
        os.close(watched)


def _wake(ready: asyncio.Future[None]) -> None:
    """Ends the wait of a task. Has no effect after a cancellation: the loop may call a reader once more."""
    if not ready.done():
        ready.set_result(None)
