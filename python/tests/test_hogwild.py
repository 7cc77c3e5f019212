# SPDX-License-Identifier: Apache-2.0
"""Several processes train one model, the purpose of share_memory()."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import onecopy
import onecopy.multiprocessing as mp


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))


def train(model, seed):
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for _ in range(150):
        x = torch.randn(32, 8)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
        optimizer.step()


# torch imports for a second at the first use of an optimizer: here, so that no forked child does.
torch.optim.SGD(make_model().parameters(), lr=0.02)


def loss(model) -> float:
    torch.manual_seed(7)
    x = torch.randn(256, 8)
    with torch.no_grad():
        return float(nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)))


@pytest.mark.parametrize("method, count", [("fork", 4), ("spawn", 2)])
def test_processes_train_one_model(method, count, strategy):
    """A fresh interpreter takes seconds to import torch: two of them are enough to meet."""
    model = make_model()
    assert model.share_memory() is model
    before, shared = loss(model), onecopy.stats()["shared_total"]
    context = mp.get_context(method)
    processes = [context.Process(target=train, args=(model, seed)) for seed in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
        process.close()
    assert loss(model) < before / 4
    if method == "spawn":
        assert onecopy.stats()["shared_total"] >= shared + 4 * count, "four parameters for each process"


def test_sharing_a_model_disturbs_neither_its_optimizer_nor_its_gradients():
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    x = torch.randn(16, 8)
    nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
    optimizer.step()
    pending = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    parameters, gradients = list(model.parameters()), [p.grad for p in model.parameters()]
    model.share_memory()
    assert all(a is b for a, b in zip(parameters, model.parameters()))
    assert all(p.grad is g for p, g in zip(parameters, gradients))
    pending.backward()
    optimizer.step()
    assert all(p.is_shared() and p in optimizer.state for p in parameters)


def test_tied_weights_stay_tied():
    model = nn.ModuleDict({"a": nn.Linear(3, 3, bias=False), "b": nn.Linear(3, 3, bias=False)})
    model["b"].weight = model["a"].weight
    model.share_memory()
    with torch.no_grad():
        model["a"].weight.fill_(5)
    assert model["b"].weight[0, 0] == 5
    assert model["a"].weight.data_ptr() == model["b"].weight.data_ptr()


def test_values_of_a_state_dict_made_before_follow():
    model = make_model()
    before = model.state_dict()
    model.share_memory()
    with torch.no_grad():
        model[0].weight.fill_(3)
    assert bool((before["0.weight"] == 3).all())
    assert before["0.weight"].is_shared()
