# SPDX-License-Identifier: Apache-2.0
"""Functions that members of the groups of test_rpc_native.py export, or do not."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import time

import torch

from onecopy import rpc

seen = []  # what functions leave for tests to look at


@dataclasses.dataclass
class Batch:
    images: torch.Tensor
    labels: torch.Tensor


@rpc.export
def add(a, b=1):
    return a + b


@rpc.export
def pid():
    return os.getpid()


@rpc.export
def fail(text):
    raise KeyError(text)


@rpc.export
def until_cancelled():
    call = rpc.current_call()
    seen.append("begun")
    while not call.cancelled:
        time.sleep(0.001)
    seen.append("cancelled")


@rpc.export
def what_was_seen():
    found, seen[:] = list(seen), []
    return found


@rpc.export
def seconds_left():
    return rpc.current_call().remaining()


@rpc.export
def seconds_left_at(to):
    return rpc.call(to, seconds_left)


@rpc.export
def nested_sleep(to, seconds):
    try:
        rpc.call(to, sleep, args=(seconds,), timeout=0)
    except rpc.Timeout:
        seen.append("nested call timed out")
        raise


@rpc.export
def descend(here, there, left):
    """The members `here` and `there` call each other in turn: how often they did."""
    return 0 if left == 0 else 1 + rpc.call(there, descend, (there, here, left - 1))


@rpc.export
def sleep(seconds):
    time.sleep(seconds)


@rpc.export
def trace():
    return rpc.current_call().trace


@rpc.export
def trace_at(to):
    return rpc.current_call().trace, rpc.call(to, trace)


@rpc.export
def trace_and_seconds():
    return rpc.current_call().trace, rpc.current_call().remaining()


class _Refusing(dict):
    def get(self, kind, default=None):
        raise AssertionError(f"a {kind.__name__} was encoded in Python")


@contextlib.contextmanager
def no_reduction():
    """A block in which no value is encoded in Python."""
    from onecopy.rpc import values

    before, values._FORMS = values._FORMS, _Refusing()
    try:
        yield
    finally:
        values._FORMS = before


@rpc.export
def nested_without_encoding_in_python(to):
    """The trace and the seconds of this call, and of two that it makes behind the first contact."""
    rpc.call(to, trace)
    with no_reduction():
        return trace_and_seconds(), rpc.call(to, trace_and_seconds), rpc.call_async(to, trace_and_seconds).wait()


@rpc.export
def numbers(count, fail_at=None):
    try:
        for i in range(count):
            if i == fail_at:
                raise ValueError(f"no number {i}")
            seen.append(i)
            yield i
    finally:
        seen.append("closed")


@rpc.export
async def numbers_later(count):
    try:
        for i in range(count):
            await asyncio.sleep(0)
            yield i
    finally:
        seen.append("closed")


@rpc.export
def add_to(counter, number):
    return counter.rpc_sync().add_slowly(number)


@rpc.export
def tensors(count):
    for i in range(count):
        yield {"tensor": torch.full((2000,), float(i))}


@rpc.export
def odd_items():
    yield 1
    yield object()


@rpc.export
async def double_later(value):
    await asyncio.sleep(0.001)
    return 2 * value


@rpc.export
def add_one_in_place(tensor):
    tensor += 1
    return float(tensor.sum())


@rpc.export
def data_ptr(tensor):
    return tensor.data_ptr()


@rpc.export
def once(file, number):
    """Leaves a line: a call that ran twice is seen."""
    with open(file, "a") as out:
        out.write(f"{number}\n")


@rpc.export
def once_at(to, file, number):
    rpc.call(to, once, (file, number))


kept = []


@rpc.export
def keep(tensor):
    kept.append(tensor)


@rpc.export
def ignore(value):
    """Takes a value, and lets go of it."""


@rpc.export
def lend_kept():
    return rpc.borrow(kept[0])


@rpc.export
def kept_sum():
    return float(kept[0].sum())


@rpc.export
class Counter:
    def __init__(self, start):
        self.value = start

    def add(self, number):
        self.value += number
        return self.value

    def add_slowly(self, number):
        time.sleep(0.5)
        return self.add(number)

    def _secret(self):
        return "secret"


def not_exported():
    return "it ran"


class Unusual(Exception):
    def __init__(self, a, b):
        super().__init__(a, b)


@rpc.export
def raise_unusual():
    raise Unusual(1, 2)


@rpc.export
def raise_local():
    class Local(Exception):
        pass

    raise Local("of a local class")


@rpc.export
def give_object():
    return object()
