# SPDX-License-Identifier: Apache-2.0
"""Results that come one by one: a generator function of the callee is an iterator of the caller.

The callee sends each item as a call, which the caller answers when it has taken the item: that answer is the credit for
another one. So at most `credit` items are made and not taken, and a caller that is slow slows the callee.
"""

from __future__ import annotations

import inspect
import itertools
import threading
import weakref
from collections.abc import Callable, Generator
from typing import Any

import torch

from . import calling, devices, functions, registry
from .calling import Call
from .errors import Cancelled, RemoteFailure
from .futures import CallFuture, done, future_in_loop
from .generators import Window, driven
from .refused import RefusedValue
from .registry import Deferred, verb

_lock = threading.Lock()
_open: weakref.WeakValueDictionary[int, Stream] = (
    weakref.WeakValueDictionary()
)  # one that is dropped wants no more items
_numbers = itertools.count(1)


class Stream:
    """The items of a call to a generator function, in their order; an iterator, and an asynchronous one.

    Attributes:
        call: the Call behind it.
    Thread safety: all members may be called concurrently; each item goes to one taker."""

    def __init__(self, call: Call, credit: int) -> None:
        self.call, self.credit, self.number = call, credit, next(_numbers)
        self._changed, self._next = threading.Condition(), 0
        self._items: dict[int, tuple[Any, torch.futures.Future[bool]]] = {}
        self._total: int | None = None
        self._error: Exception | None = None
        self._is_closed = False
        self._waiting: list[Callable[[], None]] = []  # callbacks of tasks
        with _lock:
            _open[self.number] = self

    def close(self) -> None:
        """Ends the generator at its next yield: no more items are wanted. Nothing happens when it has ended."""
        with self._changed:
            self._is_closed = True
            items, self._items = self._items, {}
        with _lock:
            _open.pop(self.number, None)
        for _, taken in items.values():
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
        """Returns the next item. Throws StopIteration behind the last, and the generator's exception behind the items
        it made."""
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
        """Answers the items that are not taken, in another thread: a destructor may run under any lock."""
        rest = [taken for _, taken in self._items.values()]
        if rest:
            self.call.agent.references.later(lambda: [taken.set_result(False) for taken in rest])

    # --- items that come

    def _is_ready(self) -> bool:
        return self._is_closed or self._next in self._items or self._is_over()

    def _is_over(self) -> bool:
        """Returns whether no further item comes: all were taken, or their number is unknown and the call has failed."""
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

    def add(self, index: int, value: Any) -> torch.futures.Future[bool]:
        """Adds an item. Returns a Future that is done when the item was taken: whether more are wanted."""
        with self._changed:
            if self._is_closed:
                return done(False)
            taken: torch.futures.Future[bool] = torch.futures.Future()
            self._items[index] = (value, taken)
        self._wake()
        return taken

    def end(self, call: Call) -> None:
        """Called when the call has ended."""
        total, error = None, None
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
    """Returns the items that a generator function yields in the member `to`, as a Stream: an iterator and a context
    manager.

    The generator is at most `credit` items ahead of the loop over them. `timeout` is for all of it. Else as call()."""
    if credit < 1:
        raise ValueError(f"credit is how many items may be made and not taken: 1 or more, not {credit}")
    agent = registry.current()
    member = agent.member(to)
    if member.is_program:
        raise TypeError(f"{member.info} is a program in C++: it can be called with call() and call_async() alone")
    agent.check_arguments(args)
    args, kwargs = list(args), dict(kwargs or {})
    call = Call(agent, member, agent.name_at(member, function), timeout)
    made = Stream(call, credit)
    number, weak = made.number, weakref.ref(made)

    def start() -> None:
        if member.info.id == agent.info.id:
            given = devices.unmarked(args), devices.unmarked(kwargs)
            call.send_here(lambda running: _run(agent, running, number, credit, *given))
            return
        value = (number, credit, call.root, call.function, call.seconds, args, kwargs)
        agent.endpoint.begin_verb(member.info.id, ".stream", value, call.seconds, False, None, call)

    call.send(start, args, kwargs)

    def end(call: Call) -> None:
        stream = weak()
        if stream is not None:
            stream.end(call)

    call.add_done_callback(end)
    return made


def _add_item(number: int, index: int, item: Any) -> torch.futures.Future[bool]:
    with _lock:
        found = _open.get(number)
    return found.add(index, item) if found is not None else done(False)


@verb(".item")
def _take_item(agent: Any, caller: int, number: int, index: int, item: Any) -> Deferred:
    return Deferred(_add_item(number, index, item), lambda is_wanted: is_wanted)


# --- in the member that makes them


Outcome = tuple[
    int, "type | None", "str | None"
]  # how many items there were, class and text of the generator's exception


@verb(".stream")
def _run_stream(
    agent: Any,
    caller: int,
    number: int,
    credit: int,
    root: tuple[int, int] | None,
    name: str,
    seconds: float,
    args: Any,
    kwargs: Any,
) -> Outcome | RemoteFailure:
    def run(running: Any) -> Outcome:
        return _run(agent, running, number, credit, args, kwargs)

    return calling.serve(agent, caller, number, name, seconds, root, run)


def _run(agent: Any, running: Any, number: int, credit: int, args: Any, kwargs: Any) -> Outcome:
    running.check()
    items = functions.find(running.function)(*args, **kwargs)
    if inspect.isasyncgen(items):
        items = driven(items)
    if not inspect.isgenerator(items):
        raise TypeError(f"{running.function} is no generator function: call it with onecopy.rpc.call()")
    try:
        return _send_all(agent, items, running, number, Window(credit, running))
    finally:
        items.close()


def _send_all(agent: Any, items: Generator[Any, Any, Any], running: Any, number: int, window: Window) -> Outcome:
    """Throws Cancelled if the caller wants no more."""
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


def _send(agent: Any, running: Any, number: int, index: int, item: Any) -> torch.futures.Future[bool] | CallFuture:
    if running.caller_id == agent.info.id:
        return _add_item(number, index, item)
    left = running.remaining()
    seconds = 0.0 if left is None else max(left, 1e-6)
    try:
        return agent.begin_verb(running.caller_id, ".item", (number, index, item), seconds, is_result=True)
    except RefusedValue as refused:
        raise refused.located(**{f"item {index}": item}) from None
