# SPDX-License-Identifier: Apache-2.0
"""Results that come one by one: a generator function of the callee is an iterator of the caller.

The callee sends each item as a call, which the caller answers when it has taken the item: that answer is the credit for
another one. So at most `credit` items are made and not taken, and a caller that is slow slows the callee.
"""

import asyncio
import inspect
import threading
import weakref

import torch

from ..errors import Timeout
from . import _native, _running, _values, functions, registry
from ._awaiting import future_in_loop
from .errors import Cancelled, RemoteFailure
from .registry import Deferred, handler, handlers

_lock = threading.Lock()
_open = weakref.WeakValueDictionary()  # number of the call -> Stream: one that is dropped wants no more items


class Stream:
    """The items of a call to a generator function, in their order; an iterator, and an asynchronous one.

    Thread safety: all members may be called concurrently; each item goes to one taker."""

    def __init__(self, credit):
        self.credit = credit
        self._changed, self._items, self._next = threading.Condition(), {}, 0
        self._total, self._error, self._is_closed = None, None, False
        self._waiting = []  # callbacks of tasks
        self._call = None

    @property
    def call(self):
        """The Call behind it."""
        return self._call

    def _begin(self, call):
        self._call = call
        with _lock:
            _open[call.number] = self

    def close(self):
        """No more items are wanted: the generator ends at its next yield. Nothing happens when it has ended."""
        with self._changed:
            self._is_closed = True
            items, self._items = self._items, {}
        with _lock:
            _open.pop(self._call.number, None)
        for _, taken in items.values():
            taken.set_result(False)
        self._call.cancel()
        self._wake()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        self.close()

    def __iter__(self):
        return self

    def __next__(self):
        """The next item. Throws StopIteration behind the last, and the generator's exception behind the items it
        made."""
        with self._changed:
            self._changed.wait_for(self._is_ready)
            return self._take()

    def __aiter__(self):
        return self

    async def __anext__(self):
        while True:
            with self._changed:
                if self._is_ready():
                    try:
                        return self._take()
                    except StopIteration:
                        raise StopAsyncIteration from None
            await future_in_loop(self._subscribe, lambda: None)

    def __del__(self):
        """Answers the items that are not taken, in another thread: a destructor may run under any lock."""
        rest = [taken for _, taken in self._items.values()]
        if rest:
            self._call._agent.references.later(lambda: [taken.set_result(False) for taken in rest])

    # --- items that come

    def _is_ready(self):
        return self._is_closed or self._next in self._items or self._is_over()

    def _is_over(self):
        """Whether no item comes any more: how many there are is known, but not after the call itself has failed."""
        return self._next >= self._total if self._total is not None else self._error is not None

    def _take(self):
        if self._next in self._items:
            value, taken = self._items.pop(self._next)
            self._next += 1
            taken.set_result(True)
            return value
        if self._error is not None and not self._is_closed:
            error, self._error, self._total = self._error, None, self._next
            raise error
        raise StopIteration

    def _add(self, index, value):
        """A Future that is done when the item was taken: whether more are wanted."""
        taken = torch.futures.Future()
        with self._changed:
            if self._is_closed:
                taken.set_result(False)
                return taken
            self._items[index] = (value, taken)
        self._wake()
        return taken

    def _end(self, call):
        total, error = None, None
        try:
            total, kind, text = call.wait()
            error = RemoteFailure(kind, text).exception() if kind is not None else None
        except Exception as failure:
            error = failure
        with self._changed:
            self._total, self._error = total, error
        self._wake()

    def _wake(self):
        with self._changed:
            self._changed.notify_all()
            waiting, self._waiting = self._waiting, []
        for call_back in waiting:
            call_back()

    def _subscribe(self, call_back):
        with self._changed:
            if not self._is_ready():
                self._waiting.append(call_back)
                return
        call_back()


def stream(to, function, args=(), kwargs=None, *, timeout=None, credit=8):
    """The items that a generator function yields in the member `to`, as a Stream: an iterator and a context manager.

    The generator is at most `credit` items ahead of the loop over them. `timeout` is for all of it. Else as call()."""
    if credit < 1:
        raise ValueError(f"credit is how many items may be made and not taken: 1 or more, not {credit}")
    made = Stream(credit)
    call, weak = _native.begin(to, "stream", function, args, kwargs, timeout, (credit,), made._begin), weakref.ref(made)

    def end(call):
        stream = weak()
        if stream is not None:
            stream._end(call)

    call.add_done_callback(end)
    return made


@handler(handlers, "item")
def _take_item(agent, caller, value):
    number, index, item = value
    with _lock:
        found = _open.get(number)
    if found is None:
        return False
    return Deferred(found._add(index, item), lambda is_wanted: is_wanted)


# --- in the member that makes them


class _Window:
    """Credit for items. Thread safety: all members may be called concurrently."""

    def __init__(self, credit, running):
        self._changed, self._credit, self._running = threading.Condition(), credit, running
        self._is_closed, self.failure = False, None
        running.on_cancel(self.close)

    def close(self):
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def enter(self):
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

    def answered(self, future):
        try:
            is_wanted, failure = future.value(), None
        except Exception as error:
            is_wanted, failure = False, error
        with self._changed:
            self._credit += 1
            self._is_closed = self._is_closed or not is_wanted
            self.failure = self.failure or failure
            self._changed.notify()


@handler(handlers, "stream")
def _run_stream(agent, caller, value):
    credit = value[6]

    def run(function, args, kwargs, running):
        items = function(*args, **kwargs)
        if inspect.isasyncgen(items):
            items = _driven(items)
        if not inspect.isgenerator(items):
            raise TypeError(f"{running.function} is no generator function: call it with onecopy.rpc.call()")
        try:
            return _send_all(agent, caller, items, running, _Window(credit, running))
        finally:
            items.close()

    return _native.serve(agent, caller, value, run)


def _driven(items):
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


async def _next(items):
    return await anext(items)


def _send_all(agent, caller, items, running, window):
    """(how many there were, class and text of the generator's exception). Throws Cancelled if the caller wants no
    more."""
    total = 0
    while window.enter():
        try:
            future = _send(agent, caller, running, total, next(items))
        except StopIteration:
            return total, None, None
        except Exception as error:
            failure = RemoteFailure.of(error, agent.info)
            return total, _portable(failure.kind), failure.text
        future.add_done_callback(window.answered)
        total += 1
    raise Cancelled(f"{running.function}: {running.caller} wants no more items")


def _portable(kind):
    try:
        functions.name_of(kind)
        return kind
    except (functions.NoName, AttributeError, PermissionError):
        return RuntimeError


def _send(agent, caller, running, index, item):
    if caller == agent.info.id:
        with _lock:
            found = _open.get(running.number)
        return found._add(index, item) if found is not None else _unwanted()
    try:
        return agent.call(
            caller,
            "item",
            (running.number, index, item),
            timeout=_running.seconds_until(running.deadline),
            context=registry.context(),
            is_result=True,
        )
    except _values.RefusedValue as refused:
        raise refused.named({"[2]": f"item {index}"}) from None


def _unwanted():
    future = torch.futures.Future()
    future.set_result(False)
    return future
