# SPDX-License-Identifier: Apache-2.0
"""``Queue.aget()`` and ``async for obj in queue``, for asyncio."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from ._core import Queue
from .errors import Closed

_NOTHING = object()


async def get(queue: Queue[Any]) -> Any:
    """Returns the next object of a queue.

    An object is taken in the step that returns it, and there is no ``await`` between. So an object is never taken for
    a task that is cancelled meanwhile. The step through the loop comes first: other tasks run, and a cancellation
    arrives, also while another process fills the queue as fast as this one empties it.
    """
    await asyncio.sleep(0)
    while (value := queue.try_get(default=_NOTHING)) is _NOTHING:
        await _readable(queue.fileno())
    return value


async def get_next(queue: Queue[Any]) -> Any:
    """Returns the next object for ``__anext__()``: the end of the queue ends the loop."""
    try:
        return await get(queue)
    except Closed:
        raise StopAsyncIteration from None


async def _readable(descriptor: int) -> None:
    """Waits until a descriptor is readable. Each waiter watches a duplicate: a loop takes one callback a descriptor."""
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
    """Ends the wait of a task, unless that was cancelled: a loop may call a reader once more."""
    if not ready.done():
        ready.set_result(None)
