# SPDX-License-Identifier: Apache-2.0
"""A tensor requires gradients in the receiver if it does in the sender, and a Parameter stays a Parameter, as in torch."""

from __future__ import annotations

import contextlib

import pytest

torch = pytest.importorskip("torch")

import onecopy.distributed.autograd as dist_autograd
import onecopy.rpc as native
from onecopy.distributed import rpc
from support.rpc_group import shared_group

three = shared_group(3)

Parameter = torch.nn.Parameter


def made(kind):
    """A tensor of each way in which tensors are sent: within the message, as a copy, and by Python code."""
    return {
        "small": lambda: torch.ones(2, requires_grad=True),
        "small Parameter": lambda: Parameter(torch.ones(2)),
        "frozen Parameter": lambda: Parameter(torch.ones(2), requires_grad=False),
        "large": lambda: torch.ones(4096, requires_grad=True),
        "large Parameter": lambda: Parameter(torch.ones(4096)),
        "computed": lambda: torch.ones(2, requires_grad=True) * 3,
        "transposed": lambda: torch.ones(3, 2, requires_grad=True).t(),
        "transposed Parameter": lambda: Parameter(torch.arange(6.0).reshape(3, 2).t()),
        "columns Parameter": lambda: Parameter(torch.arange(9.0).reshape(3, 3)[:, :2]),
        "sparse": lambda: torch.eye(3).to_sparse().requires_grad_(),
        "empty Parameter": lambda: Parameter(torch.ones(0)),
        "complex": lambda: torch.ones(2, dtype=torch.complex64, requires_grad=True),
        "conjugate": lambda: torch.ones(2, dtype=torch.complex64, requires_grad=True).conj(),
        "plain": lambda: torch.ones(2),
    }[kind]()


def facts(tensor):
    return type(tensor).__name__, tensor.requires_grad, tensor.is_leaf, tensor.detach().to_dense().tolist()


def expected(kind):
    tensor = made(kind)
    return type(tensor).__name__, tensor.requires_grad, True, tensor.detach().to_dense().tolist()


KINDS = [
    *("small", "small Parameter", "frozen Parameter", "large", "large Parameter", "computed", "transposed"),
    *("transposed Parameter", "columns Parameter", "sparse", "empty Parameter", "complex", "conjugate", "plain"),
]


def facts_of_argument(kind, to, grad_mode=True):
    tensor = made(kind)
    with torch.set_grad_enabled(grad_mode):
        return rpc.rpc_sync(to, facts, args=(tensor,))


@pytest.mark.parametrize("grad_mode", [True, False], ids=["", "no_grad"])
@pytest.mark.parametrize("to", ["worker1", "worker0"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_argument_requires_gradients_in_the_callee(three, kind, to, grad_mode):
    assert three[0](facts_of_argument, kind, to, grad_mode) == expected(kind)


def facts_of_result(kind):
    results = [rpc.rpc_sync("worker1", made, args=(kind,)), rpc.rpc_async("worker1", made, args=(kind,)).wait()]
    return [facts(tensor) for tensor in results]


@pytest.mark.parametrize("kind", KINDS)
def test_a_result_requires_gradients_in_the_caller(three, kind):
    assert three[0](facts_of_result, kind) == [expected(kind)] * 2


def facts_by_reference(kind):
    there, here = rpc.remote("worker1", made, args=(kind,)), rpc.RRef(made(kind))
    return (
        facts(there.to_here()),
        rpc.rpc_sync("worker2", facts_there, args=(there,)),
        rpc.rpc_sync("worker2", facts_there, args=(here,)),
    )


def facts_there(reference):
    return facts(reference.to_here())


@pytest.mark.parametrize("kind", KINDS)
def test_to_here_returns_a_tensor_that_requires_gradients(three, kind):
    assert three[0](facts_by_reference, kind) == (expected(kind),) * 3


def same(pair):
    return pair[0] is pair[1], facts(pair[0])


@pytest.mark.parametrize("kind", ["small Parameter", "large Parameter", "transposed Parameter"])
def test_one_parameter_in_two_places_is_one_parameter_there(three, kind):
    assert three[0](call_same, kind) == (True, expected(kind))


def call_same(kind):
    parameter = made(kind)
    return rpc.rpc_sync("worker1", same, args=([parameter, parameter],))


def train(weight):
    """Takes a step of an optimizer, as with a parameter that was made here."""
    optimizer = torch.optim.SGD([weight], lr=0.5)
    (weight * weight).sum().backward()
    optimizer.step()
    return weight.detach()


def train_there(kind):
    return rpc.rpc_sync("worker1", train, args=(made(kind),)).tolist()


@pytest.mark.parametrize("kind", ["small", "small Parameter", "computed"])
def test_a_received_tensor_can_be_trained(three, kind):
    assert three[0](train_there, kind) == [0.0, 0.0]


class Holder(torch.nn.Module):
    pass


def set_in_module(weight):
    module = Holder()
    module.weight = torch.nn.Parameter(torch.zeros(1))
    module.weight = weight  # which refuses a tensor that is not a Parameter
    return [name for name, _ in module.named_parameters()]


def call_in_context(function, kind):
    with dist_autograd.context():
        return rpc.rpc_sync("worker1", function, args=(made(kind),))


def test_a_parameter_stays_one_in_a_context(three):
    assert three[0](call_in_context, set_in_module, "small Parameter") == ["weight"]


def twice_sum(tensor):
    return (tensor * 2).sum()


def gradients_here(context_id):
    return [(type(leaf).__name__, g.tolist()) for leaf, g in dist_autograd.get_gradients(context_id).items()]


def gradients_of(kind, grad_mode):
    """The gradients in the sender and in the receiver after a pass through a call."""
    tensor = made(kind)
    with dist_autograd.context() as context_id:
        with contextlib.nullcontext() if grad_mode else torch.no_grad():
            loss = rpc.rpc_sync("worker1", twice_sum, args=(tensor,))
        dist_autograd.backward(context_id, [loss])
        return gradients_here(context_id), rpc.rpc_sync("worker1", gradients_here, args=(context_id,))


@pytest.mark.parametrize("grad_mode", [True, False])
def test_a_context_sends_gradients_of_a_tensor_to_its_sender_also_under_no_grad(three, grad_mode):
    assert three[0](gradients_of, "small", grad_mode) == ([("Tensor", [2.0, 2.0])], [])


@pytest.mark.parametrize("grad_mode", [True, False])
def test_the_gradient_of_a_parameter_is_in_the_receiver(three, grad_mode):
    assert three[0](gradients_of, "small Parameter", grad_mode) == ([], [("Parameter", [2.0, 2.0])])


def add_one_without_graph(tensor):
    with torch.no_grad():
        tensor += 1
    return facts(tensor)[:3]


def lend(kind):
    tensor = made(kind)
    return native.call("worker1", add_one_without_graph, (native.borrow(tensor),)), tensor.tolist()


def test_a_lent_parameter_is_one_there_and_shares_memory(three):
    assert three[0](lend, "small Parameter") == (("Parameter", True, True), [2.0, 2.0])
    assert three[0](lend, "small") == (("Tensor", True, True), [2.0, 2.0])
