# SPDX-License-Identifier: Apache-2.0
"""One worker's part of a backward pass, in graphs that are large, and where many gradients arrive at once."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

torch = pytest.importorskip("torch")

from onecopy import _core
from onecopy.distributed.autograd._edges import ReceivedTensors, SentTensors, torch_engine
from support.processes import in_threads

WORKER = 3


class Context:
    """Keeps the gradients of leaves."""

    def __init__(self):
        self.gradients, self._lock = {}, threading.Lock()

    def accumulate(self, leaf, gradient):
        with self._lock:
            before = self.gradients.get(leaf)
            self.gradients[leaf] = gradient if before is None else before + gradient


def evaluation(sent, retain=False):
    """Of tensors that were sent in one message each, by number."""
    context = Context()
    context.sent = messages = [SentTensors(number, 0, tensors) for number, tensors in enumerate(sent)]
    return context, _core._Evaluation(context, WORKER, messages, [], torch_engine(), retain)


def received(number, tensors):
    found = ReceivedTensors(1, number, 0, tensors)
    return found, tensors


def leaf(value):
    return torch.full((2,), float(value), requires_grad=True)


ONE = torch.ones(2)


@pytest.mark.parametrize("count", [1, 63, 64, 65, 128, 1500])
def test_sources_without_a_node_in_common_fire_alone(count):
    leaves = [leaf(i) for i in range(count)]
    context, found = evaluation([[t * 2] for t in leaves])
    for number in reversed(range(count)):
        assert found.take([(number, [ONE * number])]) == ([], 0, [])
    assert len(context.gradients) == count
    assert all(torch.equal(context.gradients[t], ONE * 2 * i) for i, t in enumerate(leaves))


@pytest.mark.parametrize("count", [2, 64, 65, 1500])
def test_a_node_that_all_sources_reach_waits_for_the_last(count):
    mine, (tensor,) = received(7, [torch.ones(2)])
    shared, other = tensor * 2, leaf(5)
    context, found = evaluation([[shared * 3 + other] for _ in range(count)])
    assert found.take([(0, [ONE])]) == ([], 1, [])
    for number in range(1, count - 1):
        assert found.take([(number, [ONE])]) == ([], 0, [])
    assert found.owed() == [mine]
    fired, change, _ = found.take([(count - 1, [ONE])])
    assert change == -1 and found.owed() == []
    ((who, (gradient,)),) = fired
    assert who is mine and torch.equal(gradient, ONE * 6 * count)
    assert torch.equal(context.gradients[other], ONE * count)


@pytest.mark.parametrize("count", [64, 65, 1500])
def test_a_source_reaches_many_outputs(count):
    arrived = [received(i, [torch.ones(2)]) for i in range(count)]
    _, found = evaluation([[sum(t * 2 for _, (t,) in arrived)]])
    fired, change, _ = found.take([(0, [ONE])])
    assert change == 0 and {r.message_id for r, _ in fired} == set(range(count))
    assert all(torch.equal(g, ONE * 2) for _, (g,) in fired)


def test_outputs_beyond_the_first_word_are_evaluated_in_stages():
    """Of 200 outputs half are reached by both sources: the others fire before."""
    arrived = [received(i, [torch.ones(2)]) for i in range(200)]
    tensors = [t for _, (t,) in arrived]
    both = sum(t * 3 for t in tensors[100:])
    _, found = evaluation([[sum(t * 2 for t in tensors[:100]) + both], [both * 5]])
    fired, change, _ = found.take([(0, [ONE])])
    assert change == 1 and {r.message_id for r, _ in fired} == set(range(100))
    fired, change, _ = found.take([(1, [ONE])])
    assert change == -1 and {r.message_id for r, _ in fired} == set(range(100, 200))
    assert all(torch.equal(g, ONE * 18) for _, (g,) in fired)


def test_marks_and_the_dead_beyond_the_first_word():
    arrived = [received(i, [torch.ones(2)]) for i in range(70)]
    both = sum(t for _, (t,) in arrived)
    sent = [[both * i] for i in range(100)]
    _, found = evaluation(sent)
    assert found.take([(99, [ONE])]) == ([], 1, [])
    assert [r.message_id for r in found.mark(80)] == list(range(70))
    assert found.mark(80) == []
    assert found.resolve() == ([], 0, [])  # 80 is marked, and waited for
    fired, change, _ = found.take([(80, [ONE])])
    assert change == -1 and len(fired) == 70
    assert all(torch.equal(g, ONE * 179) for _, (g,) in fired)


def test_keys_that_nothing_was_sent_under_are_refused():
    _, found = evaluation([[leaf(1) * 2]])
    with pytest.raises(RuntimeError, match="gradients came for message 5, which this worker has not sent"):
        found.take([(5, [ONE])])
    with pytest.raises(KeyError):
        found.mark(5)


def test_a_graph_that_fails_names_the_worker():
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, gradient):
            raise ValueError("broken: \0 % ü")

    _, found = evaluation([[Broken.apply(leaf(1))]])
    with pytest.raises(RuntimeError, match="Error on Node 3: broken: \0 % ü") as failure:
        found.take([(0, [ONE])])
    assert isinstance(failure.value.__cause__, ValueError)


def test_gradients_arrive_from_many_threads():
    """All sources reach one leaf through a hook that lets other threads run, and each reaches one of its own."""
    count, shared = 200, leaf(3)
    leaves = [leaf(i) for i in range(count)]
    middle = shared * 2
    calls = []

    def look(gradient):
        calls.append(gradient)
        for _ in range(100):
            threading.Event().wait(0)

    middle.register_hook(look)
    context, found = evaluation([[middle + t] for t in leaves])
    start, changes = threading.Barrier(8), []

    def arrive(first):
        start.wait()
        for number in range(first, count, 8):
            changes.append(found.take([(number, [ONE * number])])[1])
            found.owed()

    in_threads(arrive, [(i,) for i in range(8)])
    assert len(calls) == 1 and sum(changes) == 0
    assert torch.equal(context.gradients[shared], ONE * 2 * sum(range(count)))
    assert all(torch.equal(context.gradients[t], ONE * i) for i, t in enumerate(leaves))


def test_a_leaf_of_many_components_gets_all_parts():
    count, shared = 100, leaf(3)
    context, found = evaluation([[shared * i] for i in range(count)])
    in_threads(found.take, [([(i, [ONE])],) for i in range(count)])
    assert torch.equal(context.gradients[shared], ONE * sum(range(count)))


def test_it_goes_with_its_last_reference():
    gc.collect()
    gc.disable()
    try:
        mine, (tensor,) = received(7, [torch.ones(2)])
        context, found = evaluation([[tensor * 2], [tensor * 3]])
        found.take([(0, [ONE])])  # waits for the other
        gone = weakref.ref(context), weakref.ref(mine)
        del found, context, tensor
        mine.node = None
        del mine
        assert [g() for g in gone] == [None, None]
    finally:
        gc.enable()


def test_a_cycle_through_it_is_collected():
    context, found = evaluation([[leaf(1) * 2]])
    context.found = found
    gone = weakref.ref(context)
    del found, context
    gc.collect()
    assert gone() is None
