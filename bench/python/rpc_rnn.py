# SPDX-License-Identifier: Apache-2.0
"""A recurrent network whose embedding and decoder are in another process, in the shape of PyTorch's tutorial on rpc: a step
is two calls forward, a distributed backward pass, and a distributed optimizer. Both processes import this module."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

_TOKENS, _INPUT, _HIDDEN, _LAYERS, _LENGTH, _BATCH, _RATE = 7, 2, 3, 4, 6, 5, 0.05


class Decoder(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(_HIDDEN, _TOKENS)

    def forward(self, output: torch.Tensor) -> torch.Tensor:
        return self.linear(output)


def embedding() -> nn.Module:
    return nn.Embedding(_TOKENS, _INPUT)


def parameters_of(module: Any, package: str) -> list[Any]:
    """Returns references to the parameters of a module of this process."""
    rpc = importlib.import_module(package)
    return [rpc.RRef(parameter) for parameter in module.local_value().parameters()]


def _batches() -> tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    data, target = torch.randint(_TOKENS, (_LENGTH, _BATCH)), torch.randint(_TOKENS, (_LENGTH * _BATCH,))
    state = torch.zeros(_LAYERS, _BATCH, _HIDDEN)
    return data, target, (state, state)


def across(rpc: Any) -> Callable[[], None]:
    """Returns a step of the network over two processes. REQUIRES: this process calls, and "worker1" is called."""
    autograd = importlib.import_module(rpc.__name__.replace(".rpc", ".autograd"))
    optim = importlib.import_module(rpc.__name__.replace(".rpc", ".optim"))
    here = importlib.import_module("rpc_rnn")
    data, target, state = _batches()
    table, decoder = rpc.remote("worker1", here.embedding), rpc.remote("worker1", here.Decoder)
    recurrent, loss_of = nn.LSTM(_INPUT, _HIDDEN, _LAYERS), nn.CrossEntropyLoss()
    parameters = [rpc.RRef(parameter) for parameter in recurrent.parameters()]
    for module in (table, decoder):
        parameters += rpc.rpc_sync("worker1", here.parameters_of, args=(module, rpc.__name__))
    optimizer = optim.DistributedOptimizer(torch.optim.SGD, parameters, lr=_RATE)

    def step() -> None:
        with autograd.context() as context:
            output, _ = recurrent(table.rpc_sync().forward(data), state)
            loss = loss_of(decoder.rpc_sync().forward(output).view(-1, _TOKENS), target)
            autograd.backward(context, [loss])
            optimizer.step(context)

    return step


def alone() -> Callable[[], None]:
    """Returns the same step in one process, by torch alone: what both packages cannot do without."""
    data, target, state = _batches()
    table, decoder, recurrent = embedding(), Decoder(), nn.LSTM(_INPUT, _HIDDEN, _LAYERS)
    loss_of = nn.CrossEntropyLoss()
    optimizers = [torch.optim.SGD(module.parameters(), lr=_RATE) for module in (table, decoder, recurrent)]

    def step() -> None:
        output, _ = recurrent(table(data), state)
        loss = loss_of(decoder(output).view(-1, _TOKENS), target)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()

    return step
