# SPDX-License-Identifier: Apache-2.0
"""Backward passes through three processes give what one process gives."""

from __future__ import annotations

import concurrent.futures
import gc
import os

import pytest

torch = pytest.importorskip("torch")

import onecopy.distributed.autograd as dist_autograd
from onecopy.distributed import rpc
from onecopy.distributed.autograd import _engine
from support.rpc_group import PATIENCE, Group, shared_group, until

three = shared_group(3)


def parameter(seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(3, 3, generator=generator, dtype=torch.float64).requires_grad_()


WEIGHTS = [parameter(seed) for seed in range(4)]  # the same in all processes; each uses its own
SPARSE = parameter(8).detach().to_sparse().requires_grad_()
EMBEDDING = torch.nn.Embedding(
    4, 3, sparse=True, dtype=torch.float64, _weight=parameter(9).detach()[[0, 1, 2, 0]].clone()
)


def remotely(to, function, *args):
    return rpc.rpc_sync(f"worker{to}", function, args=args)


def here(to, function, *args):
    """The program in one process: the same function, called."""
    return function(*args)


# The functions of workers; `call` is remotely() or here().


def layer(i, x):
    return torch.tanh(x @ WEIGHTS[i])


def two_layers(i, j, x, call_name):
    return layer(i, CALLS[call_name](j, layer, j, x))


def twins(i, x):
    y = layer(i, x)
    return y, y * 2


def hooked(i, x):
    y = x @ WEIGHTS[i]
    y.register_hook(lambda g: torch.tanh(g * 1.3))
    return y


def lookup(indices):
    return EMBEDDING(indices)


CALLS = {"remotely": remotely, "here": here}


def chain(name):
    return CALLS[name](1, two_layers, 1, 2, WEIGHTS[0] * 2, name).sum()


def diamond(name):
    call = CALLS[name]
    x = WEIGHTS[0] * 0.5
    return (call(1, layer, 1, x) * call(2, layer, 2, x)).sum()


def unused(name):
    first, _ = CALLS[name](1, twins, 1, WEIGHTS[0])
    CALLS[name](2, layer, 2, first)  # its result reaches no loss
    return first.sum()


def residual(name):
    x = WEIGHTS[0]
    for _ in range(3):
        x = x + CALLS[name](1, layer, 1, x)
    return (x * x).sum()


def hooks(name):
    x = WEIGHTS[0] * 1.5
    return (CALLS[name](1, hooked, 1, x) + CALLS[name](1, hooked, 1, x * x)).pow(2).sum()


def sparse(name):
    return (CALLS[name](1, lookup, torch.tensor([0, 2, 2])) @ WEIGHTS[0]).sum()


def both(i, x, y):
    return [x @ WEIGHTS[i], {"y": y * 0.5}]


def twice(name):
    """Uses a tensor in two places, with results in containers. The first call of a function goes another way than the
    others."""
    total = 0
    for _ in range(2):
        x = WEIGHTS[0] * 2
        product, other = CALLS[name](1, both, 1, x, x)
        total = total + (product * other["y"]).sum()
    return total


def transposed(name):
    return sum(CALLS[name](1, layer, 1, (WEIGHTS[0] * 2).t()).sum() for _ in range(2))


def total(x):
    return torch.sparse.sum(x) if x.is_sparse else x.sum()


def through_a_sparse_leaf(name):
    """Both the tensor and its gradient are sparse: they do not go as plain values."""
    return CALLS[name](1, total, SPARSE * 3)


class Layer:
    def forward(self, i, x):
        return layer(i, x)


def methods(name):
    if name == "here":
        return (Layer().forward(2, WEIGHTS[0]) * Layer().forward(2, WEIGHTS[0] * 2)).sum()
    there = rpc.remote("worker2", Layer)
    return (there.rpc_sync().forward(2, WEIGHTS[0]) * there.rpc_async().forward(2, WEIGHTS[0] * 2).wait()).sum()


LEAVES = [*WEIGHTS, EMBEDDING.weight, SPARSE]


def as_lists(gradients):
    """Returns the gradients as lists, by the number of the leaf."""
    found = {}
    for number, leaf in enumerate(LEAVES):
        gradient = gradients.get(leaf)
        if gradient is not None:
            found[number] = gradient.to_dense().tolist()
    return found


def gradients_there(context_id):
    return as_lists(dist_autograd.get_gradients(context_id))


def in_three_processes(program, times=1):
    with dist_autograd.context() as context_id:
        loss = program("remotely")
        for i in range(times):
            dist_autograd.backward(context_id, [loss], retain_graph=i + 1 < times)
        found = gradients_there(context_id)
        for to in (1, 2):
            found.update(remotely(to, gradients_there, context_id))
    assert all(leaf.grad is None for leaf in LEAVES)
    return found


def in_one_process(program, times=1):
    loss = program("here")
    for i in range(times):
        loss.backward(retain_graph=i + 1 < times)
    found = as_lists({leaf: leaf.grad for leaf in LEAVES if leaf.grad is not None})
    for leaf in LEAVES:
        leaf.grad = None
    return found


def compare(found, wanted):
    assert found.keys() == wanted.keys()
    for number, gradient in wanted.items():
        assert torch.allclose(torch.tensor(found[number]), torch.tensor(gradient), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "program",
    [chain, diamond, unused, residual, hooks, sparse, twice, transposed, methods, through_a_sparse_leaf],
    ids=lambda p: p.__name__,
)
def test_gradients_are_those_of_one_process(three, program):
    compare(three[0](in_three_processes, program), in_one_process(program))


@pytest.mark.parametrize("program", [chain, residual, unused], ids=lambda p: p.__name__)
def test_a_retained_graph_gives_its_gradients_twice(three, program):
    compare(three[0](in_three_processes, program, 2), in_one_process(program, 2))


def in_threads(programs):
    with concurrent.futures.ThreadPoolExecutor(len(programs)) as pool:
        return list(pool.map(in_three_processes, programs))


def test_passes_of_many_threads_do_not_meet(three):
    programs = [chain, diamond, residual, hooks] * 3
    for found, program in zip(three[0](in_threads, programs), programs):
        compare(found, in_one_process(program))


# --- contexts and errors


def contexts():
    return int(dist_autograd._get_debug_info()["num_autograd_contexts"])


def error_in_backward():
    with dist_autograd.context() as context_id:
        loss = remotely(1, breaks, WEIGHTS[0]).sum()
        dist_autograd.backward(context_id, [loss])


class Breaks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        raise ValueError("broken on purpose")


def breaks(x):
    return Breaks.apply(x)


def backward_of(context_id, roots):
    dist_autograd.backward(context_id, roots)


def plain_backward():
    with dist_autograd.context():
        remotely(1, layer, 1, WEIGHTS[0]).sum().backward()


def bad_roots(what):
    with dist_autograd.context() as context_id:
        roots = {"none": [], "no scalar": [WEIGHTS[0] * 1], "no gradient": [torch.ones(())], "no tensor": [1.0]}[what]
        dist_autograd.backward(context_id, roots)


def test_an_error_in_a_worker_is_raised_at_the_root(three):
    with pytest.raises(RuntimeError, match="Error on Node 1: broken on purpose"):
        three[0](error_in_backward)


@pytest.mark.parametrize(
    "what, error, text",
    [
        ("none", RuntimeError, "No tensors provided"),
        ("no scalar", RuntimeError, "is not a scalar"),
        ("no gradient", RuntimeError, "requires_grad not set on"),
        ("no tensor", TypeError, "incompatible function arguments"),
    ],
)
def test_roots_that_have_no_gradient_are_refused(three, what, error, text):
    with pytest.raises(error, match=text):
        three[0](bad_roots, what)


def error_in_two_workers(to_fail):
    """Both get their gradients at once."""
    with dist_autograd.context() as context_id:
        x = WEIGHTS[0] * 2
        loss = sum(remotely(to, breaks if to in to_fail else total, x).sum() for to in (1, 2))
        dist_autograd.backward(context_id, [loss])


@pytest.mark.parametrize("to_fail", [(1,), (2,), (1, 2)])
def test_an_error_of_one_of_two_workers_is_raised_at_the_root(three, to_fail):
    with pytest.raises(RuntimeError, match=f"Error on Node {list(to_fail)}: broken on purpose"):
        three[0](error_in_two_workers, to_fail)
    compare(three[0](in_three_processes, diamond), in_one_process(diamond))  # the group is as it was


class Dies(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        os._exit(3)


def dies(x):
    return Dies.apply(x)


def backward_through_the_dead(others):
    with dist_autograd.context() as context_id:
        x = WEIGHTS[0] * 2
        loss = remotely(1, dies, x).sum() + sum(remotely(to, layer, to, x).sum() for to in others)
        try:
            dist_autograd.backward(context_id, [loss])
        except Exception as error:
            return type(error).__name__, str(error)


@pytest.mark.parametrize("others", [(), (2,)])
def test_a_worker_that_dies_in_its_part_is_named_at_the_root(tmp_path, others):
    with Group(tmp_path, 3) as group:
        name, text = group[0](backward_through_the_dead, others)
        assert name == "PeerDied" and "worker1" in text
        group[1].process.join(PATIENCE)  # between hosts, its end is noticed before the system calls it dead


@pytest.mark.parametrize("context_id, roots", [("none", []), (1, WEIGHTS[0].detach()), (None, [1])])
def test_arguments_that_are_none_of_backward_are_refused(three, context_id, roots):
    with pytest.raises(TypeError, match="incompatible function arguments"):
        three[0](backward_of, context_id, roots)


def test_an_unknown_context_is_refused(three):
    with pytest.raises(RuntimeError, match="Could not find autograd context with id: 77"):
        three[0](backward_of, 77, [])


def test_a_plain_backward_through_a_call_says_what_to_use(three):
    with pytest.raises(RuntimeError, match="dist_autograd.backward"):
        three[0](plain_backward)


def counted(transport, send):
    def count(*arguments):
        transport.sent += 1
        return send(*arguments)

    return count


def count_gradient_calls():
    """Those that this process has sent since it was first asked."""
    transport = dist_autograd._engine_of_this_process.transport
    if not hasattr(transport, "sent"):
        transport.sent = 0
        for name in ("send_gradients", "call_gradients"):
            setattr(transport, name, counted(transport, getattr(transport, name)))
    return transport.sent


def test_gradients_come_back_with_the_answer(three):
    before = [member(count_gradient_calls) for member in three.members]
    three[0](in_three_processes, chain)
    sent = [member(count_gradient_calls) - count for member, count in zip(three.members, before)]
    assert sent == [1, 1, 0]


def collect_no_garbage():
    """The contexts in memory from here on: tracebacks of failures keep some."""
    gc.collect()
    gc.disable()
    return contexts_in_memory()


def contexts_in_memory():
    return sum(type(found) is _engine.Context for found in gc.get_objects())


def test_a_context_goes_without_a_collection(three):
    before = [member(collect_no_garbage) for member in three.members]
    three[0](in_three_processes, chain)
    until(lambda: [member(contexts_in_memory) for member in three.members] == before, "a context refers to itself")
    for member in three.members:
        member(gc.enable)


def contexts_behind_a_collection():
    gc.collect()
    return contexts_in_memory()


def test_the_context_of_a_backward_that_failed_goes(three):
    before = [member(contexts_behind_a_collection) for member in three.members]
    for _ in range(2):
        with pytest.raises(RuntimeError, match="broken on purpose"):
            three[0](error_in_backward)
    until(
        lambda: [member(contexts_behind_a_collection) for member in three.members] == before,
        "the failure of a backward pass keeps its context",
    )


def test_contexts_end_in_all_workers(three):
    three[0](in_three_processes, chain)
    until(lambda: all(member(contexts) == 0 for member in three.members), "a context was left in a worker")
