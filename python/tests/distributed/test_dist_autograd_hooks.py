# SPDX-License-Identifier: Apache-2.0
"""Hooks of the nodes that accumulate gradients of leaves run in a backward pass through several processes, as in torch.

DistributedDataParallel averages gradients in such hooks."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import onecopy.distributed.autograd as dist_autograd
from onecopy.distributed import rpc
from support.rpc_group import Group, together

TRAINERS = 2
kept = {}


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """Two trainers, which have a process group, and a server."""
    folder = tmp_path_factory.mktemp("hooks")
    with Group(folder, 3) as group:
        together(group.members[:TRAINERS], meet, f"{folder}/process-group")
        yield group


def meet(file):
    rank = rpc.get_worker_info().id
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=TRAINERS)


def twice(x):
    return x * 2


def weights_of(module):
    return {name: torch.full_like(p, 0.5) for name, p in module.state_dict().items()}


def linear(inputs=2, outputs=1):
    module = torch.nn.Linear(inputs, outputs)
    module.load_state_dict(weights_of(module))
    return module


def replicated(**options):
    """A new replica each time: the trainers make them at once."""
    return DistributedDataParallel(linear(), **options)


def gradients_of(module, context_id):
    found = dist_autograd.get_gradients(context_id)
    return [found[p].tolist() for p in module.parameters()]


def inputs():
    return torch.full((1, 2), float(rpc.get_worker_info().id + 1))  # ones in one trainer, twos in the other


# --- DistributedDataParallel


def train_through_the_server(options):
    net = replicated(**options)
    results = []
    for _ in range(3):
        with dist_autograd.context() as context_id:
            loss = rpc.rpc_sync("worker2", twice, args=(net(inputs()),)).sum()
            dist_autograd.backward(context_id, [loss])
            results.append(gradients_of(net, context_id))
    return results, [p.grad for p in net.parameters()]


@pytest.mark.parametrize("options", [{}, {"gradient_as_bucket_view": True}, {"static_graph": True}])
def test_replicas_average_their_gradients(three, options):
    average = [[[3.0, 3.0]], [2.0]]  # the inputs are 1 and 2 in the mean 1.5, and the server doubles
    assert together(three.members[:TRAINERS], train_through_the_server, options) == [([average] * 3, [None, None])] * 2


def train_behind_the_server():
    """The input of the replica comes from the server, so that its gradient goes there."""
    net = replicated()
    x = inputs().requires_grad_()
    with dist_autograd.context() as context_id:
        dist_autograd.backward(context_id, [net(rpc.rpc_sync("worker2", twice, args=(x,))).sum()])
        return gradients_of(net, context_id), dist_autograd.get_gradients(context_id)[x].tolist()


def test_replicas_pass_gradients_on_that_are_not_averaged(three):
    assert together(three.members[:TRAINERS], train_behind_the_server) == [([[[3.0, 3.0]], [1.0]], [[1.0, 1.0]])] * 2


def train_twice_in_one_context():
    net = replicated()
    with dist_autograd.context() as context_id:
        for _ in range(2):
            dist_autograd.backward(context_id, [net(inputs()).sum()])
        return gradients_of(net, context_id)


def test_passes_of_one_context_add_averages(three):
    assert together(three.members[:TRAINERS], train_twice_in_one_context) == [[[[3.0, 3.0]], [2.0]]] * 2


def train_in_two_parts():
    """Parameters of the replica get gradients from two messages, which arrive one after the other."""
    net = DistributedDataParallel(torch.nn.ModuleList([linear(), linear()]), find_unused_parameters=False)
    net.module.forward = lambda x: [part(x) for part in net.module]
    first, second = net(inputs())
    with dist_autograd.context() as context_id:
        first, second = net(inputs())
        a = rpc.rpc_sync("worker2", twice, args=(first,))
        b = rpc.rpc_sync("worker2", twice, args=(second + a,))
        dist_autograd.backward(context_id, [b.sum()])
        return gradients_of(net, context_id)


def test_a_replica_waits_for_gradients_from_several_messages(three):
    expected = [[[6.0, 6.0]], [4.0], [[3.0, 3.0]], [2.0]]
    assert together(three.members[:TRAINERS], train_in_two_parts) == [expected] * 2


def make_replica():
    kept["net"] = replicated()


def forward_of_replica(x):
    return kept["net"](x)


def gradients_of_replica(context_id):
    return gradients_of(kept["net"], context_id)


def chain_of_replicas():
    """Both replicas are on the way of one gradient: the second must send its gradient before it waits for the first."""
    with dist_autograd.context() as context_id:
        a = rpc.rpc_sync("worker0", forward_of_replica, args=(torch.ones(1, 2),))
        b = rpc.rpc_sync("worker1", forward_of_replica, args=(torch.cat([a, a], 1),))
        dist_autograd.backward(context_id, [b.sum()])
        return [rpc.rpc_sync(f"worker{i}", gradients_of_replica, args=(context_id,)) for i in range(TRAINERS)]


def test_replicas_on_the_way_of_one_gradient_do_not_wait_for_each_other(three):
    together(three.members[:TRAINERS], make_replica)
    # 1.5 is the output of the first; its gradient is the sum of the weights of the second
    assert three[2](chain_of_replicas) == [[[[1.25, 1.25]], [1.0]]] * 2


# --- hooks of Python


def hooked(what):
    """The calls of a leaf's hooks in one pass, and the gradient."""
    leaf, calls = torch.ones(2, requires_grad=True), []
    y = leaf * 3
    node = y.grad_fn.next_functions[0][0]
    if "pre" in what:
        node.register_prehook(lambda grads: calls.append(("pre", grads[0].tolist())) or (grads[0] + 1,))
    if "post" in what:
        node.register_hook(lambda ins, outs: calls.append(("post", list(ins), outs[0].tolist())))
    if "tensor" in what:
        leaf.register_hook(lambda grad: calls.append(("tensor", grad.tolist())) or grad * 10)
    if "removed" in what:
        node.register_hook(lambda *_: calls.append("removed")).remove()
    with dist_autograd.context() as context_id:
        dist_autograd.backward(context_id, [rpc.rpc_sync("worker1", twice, args=(y,)).sum()])
        gradient = dist_autograd.get_gradients(context_id)[leaf]
    kept["again"] = list((leaf._backward_hooks or {}).values())
    return calls, gradient.tolist(), leaf.grad


def test_hooks_of_the_node_run_once_and_in_torchs_order(three):
    assert three[0](hooked, "post") == ([("post", [], [6.0, 6.0])], [6.0, 6.0], None)
    assert three[0](hooked, "pre") == ([("pre", [6.0, 6.0])], [7.0, 7.0], None)
    assert three[0](hooked, "removed") == ([], [6.0, 6.0], None)


def test_hooks_of_the_tensor_run_once_before_those_of_its_node(three):
    calls = [("tensor", [6.0, 6.0]), ("pre", [60.0, 60.0]), ("post", [], [61.0, 61.0])]
    assert three[0](hooked, "pre post tensor") == (calls, [61.0, 61.0], None)
    assert three[0](hook_is_back)


def hook_is_back():
    (hook,) = kept["again"]
    return hook(torch.ones(1)).tolist() == [10.0]


def failing_hook():
    leaf = torch.ones(2, requires_grad=True)
    y = leaf * 3

    def fail(*_):
        raise ValueError("the hook fails")

    y.grad_fn.next_functions[0][0].register_hook(fail)
    with dist_autograd.context() as context_id:
        dist_autograd.backward(context_id, [y.sum()])


def test_an_exception_of_a_hook_is_raised_and_names_the_worker(three):
    with pytest.raises(RuntimeError, match="Error on Node 0: a hook of an AccumulateGrad node failed"):
        three[0](failing_hook)
    assert three[0](hooked, "post")[1] == [6.0, 6.0]
