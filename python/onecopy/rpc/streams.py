# SPDX-License-Identifier: Apache-2.0
"""Results that come one by one: a generator function of the callee is an iterator of the caller.

The callee sends each item as a call, which the caller answers when it has taken the item: that answer is the credit for
another one. So at most `credit` items are made and not taken, and a caller that is slow slows the callee.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import asyncio
import inspect
import itertools
import threading
import weakref

import torch

from ..errors import Timeout
from .. import _core
from . import api, devices, functions, registry
from .errors import Cancelled, RemoteFailure
from .futures import future_in_loop
from .registry import Deferred, verb
from .values import RefusedValue

_lock = threading.Lock()
_open: weakref.WeakValueDictionary[int, Stream] = (
    weakref.WeakValueDictionary()
)  # number -> Stream: one that is dropped wants no more items
_numbers = itertools.count(1)


class Stream:
    """The items of a call to a generator function, in their order; an iterator, and an asynchronous one.

    Thread safety: all members may be called concurrently; each item goes to one taker."""

    def __init__(self, credit: int) -> None:
        self.credit = credit
        self._changed, self._next = threading.Condition(), 0
        self._items: dict[int, tuple[Any, Any]] = {}
        self._total: int | None = None
        self._error: Exception | None = None
        self._is_closed = False
        self._waiting: list[Any] = []  # callbacks of tasks
        self._call: Any = None

    @property
    def call(self) -> Any:
        """The Call behind it."""
        return self._call

    def _begin(self, call: Any) -> None:
        self._call, self.number = call, next(_numbers)
        with _lock:
            _open[self.number] = self

    def close(self) -> None:
        """No more items are wanted: the generator ends at its next yield. Nothing happens when it has ended."""
        with self._changed:
            self._is_closed = True
            items, self._items = self._items, {}
        with _lock:
            _open.pop(self.number, None)
        for _, taken in items.values():
            taken.set_result(False)
        self._call.cancel()
        self._wake()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *_: Any) -> None:
        self.close()

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        """The next item. Throws StopIteration behind the last, and the generator's exception behind the items it
        made."""
        with self._changed:
            self._changed.wait_for(self._is_ready)
            return self._take()

    def __aiter__(self) -> Any:
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
        """Answers the items that are not taken, in another thread: a destructor may run under any lock."""
        rest = [taken for _, taken in self._items.values()]
        if rest:
            self._call._agent.references.later(lambda: [taken.set_result(False) for taken in rest])

    # --- items that come

    def _is_ready(self) -> Any:
        return self._is_closed or self._next in self._items or self._is_over()

    def _is_over(self) -> Any:
        """Whether no item comes any more: how many there are is known, but not after the call itself has failed."""
        return self._next >= self._total if self._total is not None else self._error is not None

    def _take(self) -> Any:
        if self._next in self._items:
            value, taken = self._items.pop(self._next)
            self._next += 1
            taken.set_result(True)
            return value
        if self._error is not None and not self._is_closed:
            error, self._error, self._total = self._error, None, self._next
            raise error
        raise StopIteration

    def _add(self, index: int, value: Any) -> Any:
        """A Future that is done when the item was taken: whether more are wanted."""
        taken = torch.futures.Future()
        with self._changed:
            if self._is_closed:
                taken.set_result(False)
                return taken
            self._items[index] = (value, taken)
        self._wake()
        return taken

    def _end(self, call: Any) -> None:
        total: int | None = None
        error: Exception | None = None
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

    def _subscribe(self, call_back: Any) -> None:
        with self._changed:
            if not self._is_ready():
                self._waiting.append(call_back)
                return
        call_back()


def stream(
    to: Any, function: Any, args: Any = (), kwargs: Any = None, *, timeout: float | None = None, credit: int = 8
) -> Stream:
    """The items that a generator function yields in the member `to`, as a Stream: an iterator and a context manager.

    The generator is at most `credit` items ahead of the loop over them. `timeout` is for all of it. Else as call()."""
    if credit < 1:
        raise ValueError(f"credit is how many items may be made and not taken: 1 or more, not {credit}")
    agent = registry.current()
    member = agent.member(to)
    if member.is_program:
        raise TypeError(f"{member.info} is a program in C++: it can be called with call() and call_async() alone")
    call, made = api.Call(agent, member, api._name_at(member, function), timeout), Stream(credit)
    args, kwargs = list(api._checked(args)), dict(kwargs or {})
    made._begin(call)
    number, weak = made.number, weakref.ref(made)

    def start() -> None:
        if member.info.id == agent.info.id:
            api.begin_here(call)
            given = devices.unmarked(args), devices.unmarked(kwargs)
            agent.run_soon(
                api.serve_here, call, registry.context(), lambda running: _run(agent, running, number, credit, *given)
            )
            return
        value = (number, credit, call._parents_trace, call.function, call.seconds, args, kwargs)
        agent.endpoint.begin_verb(member.info.id, ".stream", value, call.seconds, False, None, call._future)

    try:
        call.send(start)
    except RefusedValue as refused:
        raise refused.located(args=args, kwargs=kwargs) from None

    def end(call: Any) -> None:
        stream = weak()
        if stream is not None:
            stream._end(call)

    call.add_done_callback(end)
    return made


@verb(".item")
def _take_item(agent: Any, caller: int, number: int, index: int, item: Any) -> Any:
    with _lock:
        found = _open.get(number)
    if found is None:
        return False
    return Deferred(found._add(index, item), lambda is_wanted: is_wanted)


# --- in the member that makes them


class _Window:
    """Credit for items. Thread safety: all members may be called concurrently."""

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

    def answered(self, future: Any) -> None:
        try:
            is_wanted, failure = future.value(), None
        except Exception as error:
            is_wanted, failure = False, error
        with self._changed:
            self._credit += 1
            self._is_closed = self._is_closed or not is_wanted
            self.failure = self.failure or failure
            self._changed.notify()


@verb(".stream")
def _run_stream(
    agent: Any, caller: int, number: int, credit: int, trace: Any, name: str, seconds: float, args: Any, kwargs: Any
) -> Any:
    def run(running: Any) -> Any:
        return _run(agent, running, number, credit, args, kwargs)

    return api.serve(agent, caller, number, name, seconds, trace, run)


def _run(agent: Any, running: Any, number: int, credit: int, args: Any, kwargs: Any) -> Any:
    running.check()
    items = functions.find(running.function)(*args, **kwargs)
    if inspect.isasyncgen(items):
        items = _driven(items)
    if not inspect.isgenerator(items):
        raise TypeError(f"{running.function} is no generator function: call it with onecopy.rpc.call()")
    try:
        return _send_all(agent, running.caller_id, items, running, number, _Window(credit, running))
    finally:
        items.close()


def _driven(items: Any) -> Iterator[Any]:
    """An asynchronous generator as one of the plain kind, in a loop of its own."""
    loop = asyncio.new_event_loop()
    try:
        while True:
            try:
                item = loop.run_until_complete(_next(items))
            except StopAsyncIteration:
                return
            yield item
    finally:
        loop.run_until_complete(items.aclose())
        loop.close()


async def _next(items: Any) -> Any:
    return await anext(items)


def _send_all(agent: Any, caller: int, items: Any, running: Any, number: int, window: Any) -> Any:
    """(how many there were, class and text of the generator's exception). Throws Cancelled if the caller wants no
    more."""
    total = 0
    while window.enter():
        try:
            future = _send(agent, caller, running, number, total, next(items))
        except StopIteration:
            return total, None, None
        except Exception as error:
            failure = RemoteFailure.of(error, agent.info)
            return total, _portable(failure.kind), failure.text
        future.add_done_callback(window.answered)
        total += 1
    raise Cancelled(f"{running.function}: {running.caller} wants no more items")


def _portable(kind: Any) -> Any:
    try:
        functions.name_of(kind)
        return kind
    except (functions.NoName, AttributeError, PermissionError):
        return RuntimeError


def _send(agent: Any, caller: int, running: Any, number: int, index: int, item: Any) -> Any:
    if caller == agent.info.id:
        with _lock:
            found = _open.get(number)
        return found._add(index, item) if found is not None else _unwanted()
    left = running.remaining()
    seconds = 0.0 if left is None else max(left, 1e-6)
    try:
        return agent.begin_verb(caller, ".item", (number, index, item), seconds, is_result=True)
    except RefusedValue as refused:
        raise refused.located(**{f"item {index}": item}) from None


def _unwanted() -> Any:
    future = torch.futures.Future()
    future.set_result(False)
    return future
