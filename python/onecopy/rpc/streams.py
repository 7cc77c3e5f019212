# SPDX-License-Identifier: Apache-2.0
"""Streams of results: the caller iterates over the items of a generator function that runs in the callee.

The callee sends each item as a call, which the caller answers when it takes the item. The callee waits while `credit`
items have no answer, so a slow caller slows the callee down.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import threading
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any

import torch

from .. import _core
from ..errors import Timeout
from . import functions, registry
from .calling import Call
from .errors import Cancelled, RefusedValue, RemoteFailure
from .futures import done, future_in_loop
from .registry import Deferred, verb

_lock = threading.Lock()
_open: weakref.WeakValueDictionary[int, Stream] = weakref.WeakValueDictionary()  # a dropped stream gets no items
_numbers = itertools.count(1)


class Stream:
    """An iterator and asynchronous iterator over the items of a call to a generator function, in order.

    Attributes:
        call: the Call that runs the generator function.
    Thread safety: all members may be called concurrently; each item goes to one thread."""

    def __init__(self, call: Call) -> None:
        self.call, self.number = call, next(_numbers)
        self._changed = threading.Condition()
        self._items: deque[tuple[Any, torch.futures.Future[bool]]] = deque()  # items, and the answers to their calls
        self._taken, self._total = 0, -1  # _total is the number of items, or -1 if unknown
        self._error: Exception | None = None
        self._is_closed = False
        self._waiting: list[Callable[[], None]] = []  # callbacks of tasks
        with _lock:
            _open[self.number] = self

    def close(self) -> None:
        """Ends the generator at its next yield. Has no effect if the generator has ended."""
        with self._changed:
            self._is_closed = True
            items, self._items = self._items, deque()
        with _lock:
            _open.pop(self.number, None)
        for _, taken in items:
            taken.set_result(False)
        self.call.cancel()
        self._wake()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Any:
        """Returns the next item. Raises StopIteration after the last item, or the exception of the generator after the
        items before the exception."""
        with self._changed:
            self._changed.wait_for(self._is_ready)
            return self._take()

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Any:
        while True:
            with self._changed:
                if self._is_ready():
                    try:
                        return self._take()
                    except StopIteration:
                        raise StopAsyncIteration from None
            await future_in_loop(self._subscribe, lambda: None)

    def __del__(self) -> None:
        """Answers the items that are not taken, in another thread, since a destructor may run under any lock."""
        rest = [taken for _, taken in self._items]
        if rest:
            self.call.agent.references.later(lambda: [taken.set_result(False) for taken in rest])

    def _is_ready(self) -> bool:
        """Returns whether an item has arrived or no more items come, since all were taken, the call has failed or the
        stream is closed."""
        is_over = self._taken >= self._total if self._total >= 0 else self._error is not None
        return self._is_closed or bool(self._items) or is_over

    def _take(self) -> Any:
        if self._items:
            value, taken = self._items.popleft()
            self._taken += 1
            taken.set_result(True)
            return value
        if self._error is not None and not self._is_closed:
            error, self._error, self._total = self._error, None, self._taken
            raise error
        raise StopIteration

    def add(self, value: Any) -> torch.futures.Future[bool]:
        """Adds an item. Returns a Future that completes when the item is taken, with whether the stream wants more
        items."""
        with self._changed:
            if self._is_closed:
                return done(False)
            taken: torch.futures.Future[bool] = torch.futures.Future()
            self._items.append((value, taken))
        self._wake()
        return taken

    def end(self, call: Call) -> None:
        """Handles the end of the call."""
        total, error = -1, None
        try:
            total, kind, text = call.wait()
            error = RemoteFailure(kind, text).exception() if kind is not None else None
        except Exception as failure:
            error = failure
        with self._changed:
            self._total, self._error = total, error
        self._wake()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
            waiting, self._waiting = self._waiting, []
        for call_back in waiting:
            call_back()

    def _subscribe(self, call_back: Callable[[], None]) -> None:
        with self._changed:
            if not self._is_ready():
                self._waiting.append(call_back)
                return
        call_back()


def stream(
    to: Any, function: Any, args: Any = (), kwargs: Any = None, *, timeout: float | None = None, credit: int = 8
) -> Stream:
    """Calls a generator function in the member `to`. Returns a Stream of the items, which is an iterator and a context
    manager.

    The generator is at most `credit` items ahead of the caller. `timeout` limits the whole stream. call() describes the
    other arguments."""
    if credit < 1:
        raise ValueError(f"credit is how many items may be made and not taken: 1 or more, not {credit}")
    agent = registry.current()
    member = agent.member(to)
    member.refuse_program()
    agent.check_arguments(args)
    call = Call(agent, member.info, agent.name_at(member, function))
    made = Stream(call)
    weak = weakref.ref(made)
    call.send((made.number, credit, *args), kwargs, timeout, is_stream=True)

    def end(call: Call) -> None:
        stream = weak()
        if stream is not None:
            stream.end(call)

    call.add_done_callback(end)
    return made


def _add_item(agent: Any, caller: int, args: tuple[int, Any]) -> tuple[torch.futures.Future[bool]]:
    """Adds a received item, in the order of the lane."""
    number, item = args
    with _lock:
        found = _open.get(number)
    return (found.add(item) if found is not None else done(False),)


@verb(".item", _add_item)
def _item(agent: Any, caller: int, taken: torch.futures.Future[bool]) -> Deferred:
    return Deferred(taken, lambda is_wanted: is_wanted)


# --- in the member that makes the items

Outcome = tuple[int, "type | None", "str | None"]  # number of items, class and text of the generator's exception


def run(agent: Any, name: str, number: int, credit: int, *args: Any, **kwargs: Any) -> Outcome:
    """Runs a generator function for another member. Raises Cancelled if the caller wants no more items."""
    running: Any = _core._current_call()
    items = functions.find(name)(*args, **kwargs)
    if inspect.isasyncgen(items):
        items = _driven(items)
    if not inspect.isgenerator(items):
        raise TypeError(f"{name} is not a generator function: call it with onecopy.rpc.call()")
    try:
        return _send_all(agent, items, running, number, _Window(credit, running))
    finally:
        items.close()


def _send_all(agent: Any, items: Iterator[Any], running: Any, number: int, window: _Window) -> Outcome:
    total = 0
    while window.enter():
        try:
            future = _send(agent, running, number, total, next(items))
        except StopIteration:
            return total, None, None
        except Exception as error:
            failure = RemoteFailure.of(error, agent.info)
            return total, failure.kind if functions.has_name(failure.kind) else RuntimeError, failure.text
        future.add_done_callback(window.answered)
        total += 1
    raise Cancelled(f"{running.function}: {running.caller} wants no more items")


def _send(agent: Any, running: Any, number: int, index: int, item: Any) -> torch.futures.Future[bool]:
    if running.caller_id == agent.info.id:
        return _add_item(agent, running.caller_id, (number, item))[0]
    left = running.remaining()
    try:
        seconds = 0.0 if left is None else max(left, 1e-6)
        return agent.begin_verb(running.caller_id, ".item", (number, item), seconds, is_result=True)
    except RefusedValue as refused:
        raise refused.located(**{f"item {index}": item}) from None


class _Window:
    """A bound on the items that were sent and not taken. Thread safety: all members may be called concurrently."""

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
        """Waits until an item may be made. Returns False if the caller wants no more items. Raises Timeout at the
        call's deadline, and the exception of a failed send."""
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
        """Adds a credit for an item whose Future is done."""
        try:
            is_wanted, failure = future.value(), None
        except Exception as error:
            is_wanted, failure = False, error
        with self._changed:
            self._credit += 1
            self._is_closed = self._is_closed or not is_wanted
            self.failure = self.failure or failure
            self._changed.notify()


def _driven(items: AsyncGenerator[Any, Any]) -> Iterator[Any]:
    """Yields the items of an asynchronous generator, which runs in an event loop of its own."""
    loop = asyncio.new_event_loop()
    try:
        with contextlib.suppress(StopAsyncIteration):
            while True:
                yield loop.run_until_complete(items.__anext__())
    finally:
        loop.run_until_complete(items.aclose())
        loop.close()
