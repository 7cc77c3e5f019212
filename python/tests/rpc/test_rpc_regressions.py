# SPDX-License-Identifier: Apache-2.0
"""Faults of rpc that were found by attacks, each by the promise that it broke."""

from __future__ import annotations

import dataclasses
import gc
import math
import sys
import threading
import weakref

import pytest

torch = pytest.importorskip("torch")

import contextlib

import onecopy
import onecopy.distributed.autograd as dist_autograd
import onecopy.rpc as native
from onecopy.distributed import rpc
from onecopy.errors import PeerDied
from onecopy.rpc.cells import Cell
from onecopy.rpc.futures import CallFuture
from onecopy.rpc.group import Agent
from onecopy.rpc.rref_table import OwnedValues
from support.processes import beside
from support.rpc_group import Group, init, results, shared_group, shutdown, together, until

pair = shared_group(2)


@dataclasses.dataclass
class Options:
    k: int = 1


@native.export
def seven(options=None):
    return 7


def calls_with_timeout(timeout):
    found = []
    for args in ((), (), (Options(),), (Options(),)):
        found.append(rpc.rpc_sync("worker1", seven, args=args, timeout=timeout))
    found.append(rpc.rpc_async("worker1", seven, timeout=timeout).wait())
    found.append(rpc.remote("worker1", seven, timeout=timeout).to_here())
    found.append(native.call("worker1", seven, timeout=timeout))
    return found


@pytest.mark.parametrize("timeout", [math.inf, 1e12], ids=str)
def test_an_endless_timeout_is_no_limit(pair, timeout):
    assert pair[0](calls_with_timeout, timeout) == [7] * 7


def call_with_nan():
    for _ in range(2):
        with pytest.raises(ValueError, match="not a number|NaN"):
            rpc.rpc_sync("worker1", seven, timeout=math.nan)


def test_a_timeout_that_is_no_number_is_refused(pair):
    pair[0](call_with_nan)


def call_with_a_number_as_arguments(call):
    with pytest.raises(TypeError, match="'int' object is not iterable|args is a tuple"):
        call("worker1", seven, args=5)


@pytest.mark.parametrize("call", [rpc.rpc_sync, rpc.rpc_async, rpc.remote, native.call], ids=lambda call: call.__name__)
def test_arguments_that_are_no_sequence_are_refused(pair, call):
    pair[0](call_with_a_number_as_arguments, call)


TEXTS = ["größe 模型", r"C:\users\x1", r"a\nb", "tab\there", "\udc80 alone"]


@native.export
def fail(i):
    raise ValueError(TEXTS[i])


def texts_of_failures(call):
    found = []
    for i in range(len(TEXTS)):
        try:
            call("worker1", fail, args=(i,))
        except ValueError as error:
            found.append(str(error))
    return found


@pytest.mark.parametrize("call", [rpc.rpc_sync, native.call], ids=["torch's names", "native"])
def test_the_text_of_an_exception_arrives_as_it_was_thrown(pair, call):
    found = pair[0](texts_of_failures, call)
    assert len(found) == len(TEXTS)
    for thrown, text in zip(TEXTS, found):
        assert thrown in text or repr(thrown)[1:-1] in text


@native.export
def kinds(value):
    while isinstance(value, list):
        value = value[0]
    return type(value).__name__


def move_deep(to, depth):
    tensor = torch.ones(5000)
    value = native.move(tensor)
    for _ in range(depth):
        value = [value]
    return native.call(to, kinds, args=(value,)), tensor.numel()


@pytest.mark.parametrize("depth", [1, 4, 5, 10])
def test_a_tensor_is_given_away_at_any_depth(pair, depth):
    assert pair[0](move_deep, "worker1", depth) == ("Tensor", 0)
    assert pair[0](move_deep, "worker0", depth) == ("Tensor", 5000)  # a call to itself moves nothing


def test_a_fork_whose_announcement_never_comes_leaves_nothing_behind():
    owned = OwnedValues()
    for i in range(100):
        reference = (0, i)
        owned.enter(reference, Cell())
        owned.count(reference, 1)  # held by member 1, which announces
        owned.accept(reference, (1, i), 2)  # member 2 was quicker than the announcement
        for member in (2, 1) if i % 2 else (1, 2):
            owned.forget_member(member)
    assert owned.counts() == (0, 0) and owned._early == {}


def test_callbacks_of_a_reference_run_without_its_lock():
    cell, seen = Cell(), []
    cell.future.then(lambda _: (seen.append(cell._lock.locked()), cell.set(2)))
    cell.set(1)
    assert seen == [False] and cell.value() == 1


class _Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        assert _may_go_on.wait(60)
        return gradient


_may_go_on = threading.Event()


def doubled(x):
    return x * 2


def slowed(x):
    return _Slow.apply(x)


def let_go():
    _may_go_on.set()


def backward_passes(count):
    """Each pass gives worker1 two gradients of one value, one of them late, by way of worker2."""
    x, errors = torch.ones(3, requires_grad=True), []
    with dist_autograd.context() as context:
        losses = []
        for i in range(count):
            made = rpc.remote("worker1", doubled, args=(x,))
            direct, late = made.to_here(), rpc.rpc_sync("worker2", slowed, args=(made.to_here(),))
            losses.append(((late + direct) * (i + 1)).sum())

        def run(loss):
            try:
                dist_autograd.backward(context, [loss])
            except Exception as error:
                errors.append(error)

        with beside(run, *[(loss,) for loss in losses]):
            engine = dist_autograd._engine_of_this_process
            until(lambda: engine.passes >= count, "the passes have not begun")
            rpc.rpc_sync("worker2", let_go)
        return errors, dist_autograd.get_gradients(context)[x].tolist()


def test_ten_backward_passes_at_once_in_one_context(tmp_path):
    with Group(tmp_path, 3) as group:
        assert group[0](backward_passes, 10) == ([], [4.0 * 55] * 3)


def test_a_short_timeout_of_calls_does_not_limit_joining(tmp_path, lonely):
    first, second = lonely
    first.begin(init, f"{tmp_path}/file", 0, 2, "worker0", {"rpc_timeout": 0.2})
    assert not first._pipe.poll(1)  # five times the timeout of a call
    second.begin(init, f"{tmp_path}/file", 1, 2, "worker1", {"rpc_timeout": 0.2})
    results(lonely)
    together(lonely, shutdown)


def agents_left(folder):
    """Joins a group and leaves it. Returns whether its agent, and so its lanes and descriptors, is still there."""
    import weakref

    from onecopy.rpc import registry

    native.init("alone", rank=0, world_size=1, rendezvous=f"file://{folder}/alone", allow=["*.doubled"])
    agent = weakref.ref(registry.current())
    with dist_autograd.context() as context:
        tensor = torch.ones(2, requires_grad=True)
        dist_autograd.backward(context, [rpc.rpc_sync("alone", doubled, args=(tensor,)).sum()])
        native.shutdown()
    gc.collect()
    return agent() is not None


def test_a_group_that_was_left_leaves_no_agent_behind(tmp_path, lonely):
    assert not lonely[0](agents_left, str(tmp_path))


def dead_calls(how, count):
    for _ in range(count):
        with contextlib.suppress(RuntimeError):
            how("worker1", seven)


def waited(to, function):
    rpc.rpc_async(to, function).wait()


def waited_native(to, function):
    native.call_async(to, function).wait()


def waited_for_all(to, function):
    native.wait_all([native.call_async(to, function)])


class OwnText(Exception):
    """Its text is not that of its arguments."""

    def __init__(self, number, text="number"):
        super().__init__(number)
        self.text = f"{text} {number}"

    def __str__(self):
        return self.text


ERRORS = [
    KeyError(7),
    OSError(2, "it is not there", "a file"),
    ImportError("no module", name="a"),
    UnicodeDecodeError("utf-8", b"a", 0, 1, "why"),
    PeerDied("the callee has ended"),
    OwnText(7),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_each_wait_raises_an_error_that_tells_what_the_call_failed_with(error):
    future = CallFuture(None, 1.0)
    future.complete(None, error)
    for _ in range(2):
        with pytest.raises(type(error)) as raised:
            future.wait()
        assert raised.value is not error
        assert (str(raised.value), raised.value.args, vars(raised.value)) == (str(error), error.args, vars(error))


def test_an_error_of_the_endpoint_has_the_class_of_its_code():
    """What the machine or the build does not support was a MissingPackage, which asks for an installation."""
    for code, kind in [("unsupported", onecopy.Unsupported), ("busy", native.Busy), ("system", onecopy.errors.System)]:
        assert type(Agent.error_named(None, code, "text")) is kind
    assert type(Agent.error_named(None, "of a later version", "text")) is onecopy.Error


def raise_error(kind):
    raise kind(7)


def in_a_frame_that_holds_the_future(begin, kind):
    """Returns a weak reference to the Future of a failed call that this frame, of the traceback, has in a variable."""
    future = begin("worker1", raise_error, args=(kind,))
    for wait in (future.wait, future.value, future.wait):
        with contextlib.suppress(kind):
            wait()
            raise AssertionError("the call did not fail")
    return weakref.ref(future)


def futures_that_stay(begin):
    kept = {kind.__name__: in_a_frame_that_holds_the_future(begin, kind) for kind in (KeyError, ValueError, OSError)}
    gc.collect()
    return [name for name, future in kept.items() if future() is not None]


def test_a_failed_call_goes_although_a_frame_of_its_traceback_holds_its_future(tmp_path):
    with Group(tmp_path, 2) as group:
        for begin in (rpc.rpc_async, native.call_async):
            assert group[0](futures_that_stay, begin) == []


def failed_calls_leave(how):
    dead_calls(how, 10)
    gc.collect()
    before = sys.getallocatedblocks()
    dead_calls(how, 500)
    gc.collect()
    futures = sum(issubclass(type(o), CallFuture) for o in gc.get_objects())
    return futures, sys.getallocatedblocks() - before


def test_calls_of_a_dead_member_leave_nothing_behind(tmp_path):
    with Group(tmp_path, 2) as group:
        group[0](waited, "worker1", seven)
        group[1].kill()
        for how in (rpc.rpc_sync, rpc.rpc_async, waited, native.call, waited_native, waited_for_all):
            futures, blocks = group[0](failed_calls_leave, how)
            assert futures <= 2 and blocks < 500, how  # a leak has some twenty blocks a call
