# SPDX-License-Identifier: Apache-2.0
"""Waiting in an event loop of asyncio for another thread's result."""

import asyncio


def future_in_loop(subscribe, result):
    """A future of the running loop, done once `subscribe` has called back, with the result or exception of
    `result()`."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def settle():
        if future.done():  # the task was cancelled meanwhile
            return
        try:
            future.set_result(result())
        except Exception as error:
            future.set_exception(error)

    def call_back(*_):
        try:
            loop.call_soon_threadsafe(settle)
        except RuntimeError:
            pass  # the loop is closed, and no task waits

    subscribe(call_back)
    return future
