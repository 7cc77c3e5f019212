# SPDX-License-Identifier: Apache-2.0
"""Optimizers of parameters in several processes do what one process does."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import onecopy.distributed.autograd as dist_autograd
from onecopy.distributed import rpc
from onecopy.distributed.optim import DistributedOptimizer
from support.rpc_group import shared_group

three = shared_group(3)


class Layer(torch.nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.linear = torch.nn.Linear(4, 4, dtype=torch.float64)

    def forward(self, x):
        return torch.tanh(self.linear(x))

    def parameter_rrefs(self):
        return [rpc.RRef(p) for p in self.parameters()]

    def weights(self):
        return [p.detach().tolist() for p in self.parameters()]


INPUT = torch.linspace(-1, 1, 8, dtype=torch.float64).reshape(2, 4)


def train_in_three(kind, arguments, steps):
    layers = [rpc.remote(f"worker{i}", Layer, args=(i,)) for i in (1, 2)]
    rrefs = [r for layer in layers for r in layer.rpc_sync().parameter_rrefs()]
    optimizer = DistributedOptimizer(kind, rrefs, **arguments)
    for _ in range(steps):
        with dist_autograd.context() as context_id:
            loss = layers[1].rpc_sync().forward(layers[0].rpc_sync().forward(INPUT)).sum()
            dist_autograd.backward(context_id, [loss])
            optimizer.step(context_id)
    return [layer.rpc_sync().weights() for layer in layers]


def train_in_one(kind, arguments, steps):
    layers = [Layer(i) for i in (1, 2)]
    optimizer = kind([p for layer in layers for p in layer.parameters()], **arguments)
    for _ in range(steps):
        optimizer.zero_grad()
        layers[1](layers[0](INPUT)).sum().backward()
        optimizer.step()
    return [layer.weights() for layer in layers]


@pytest.mark.parametrize(
    "kind, arguments", [(torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}), (torch.optim.Adam, {"lr": 0.05})]
)
def test_training_gives_the_weights_of_one_process(three, kind, arguments):
    found, wanted = three[0](train_in_three, kind, arguments, 3), train_in_one(kind, arguments, 3)
    for here, there in zip(wanted, found):
        for a, b in zip(here, there):
            assert torch.allclose(torch.tensor(a), torch.tensor(b), rtol=1e-9)


def grad_after_a_step():
    layer = Layer(0)
    before = torch.ones(4, 4, dtype=torch.float64)
    layer.linear.weight.grad = before
    optimizer = DistributedOptimizer(torch.optim.SGD, layer.parameter_rrefs(), lr=0.1)
    with dist_autograd.context() as context_id:
        dist_autograd.backward(context_id, [layer(INPUT).sum()])
        optimizer.step(context_id)
    return layer.linear.weight.grad is before


def step_in_an_unknown_context():
    DistributedOptimizer(torch.optim.SGD, Layer(0).parameter_rrefs(), lr=0.1).step(77)


def optimizer_that_cannot_be_made():
    rrefs = rpc.remote("worker1", Layer, args=(1,)).rpc_sync().parameter_rrefs()
    DistributedOptimizer(torch.optim.SGD, rrefs, lr=-1.0)


def test_a_step_leaves_grad_as_it_was(three):
    assert three[0](grad_after_a_step)


def test_a_step_in_an_unknown_context_is_refused(three):
    with pytest.raises(RuntimeError, match="Could not find autograd context with id: 77"):
        three[0](step_in_an_unknown_context)


def test_what_an_optimizers_constructor_throws_on_an_owner_is_thrown(three):
    with pytest.raises(ValueError, match="Invalid learning rate"):
        three[0](optimizer_that_cannot_be_made)
