# SPDX-License-Identifier: Apache-2.0
"""A RemoteModule is made, shared and trained as torch's."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch")

import onecopy.distributed.autograd as dist_autograd
from onecopy.distributed import rpc
from onecopy.distributed.nn import RemoteModule
from onecopy.distributed.nn.api.remote_module import _RemoteModule
from onecopy.distributed.optim import DistributedOptimizer
from support.rpc_group import shared_group

three = shared_group(3)


def linear():
    module = torch.nn.Linear(2, 1)
    with torch.no_grad():
        module.weight.fill_(2.0)
        module.bias.fill_(1.0)
    return module


def output(module):
    return module(torch.ones(1, 2)).detach().tolist()


def made(remote_device):
    module = RemoteModule(remote_device, linear)
    return output(module), module.on, module.device


@pytest.mark.parametrize("device", ["worker1", "worker1/cpu", "rank:1", "rank:1/cpu"])
def test_a_module_without_a_device_is_on_the_cpu(three, device):
    assert three[0](made, device) == ([[5.0]], 1 if "rank" in device else "worker1", "cpu")


@pytest.mark.parametrize("device", ["", "/cpu", "worker1/", "rank:one/cpu"])
def test_a_malformed_device_is_refused(three, device):
    with pytest.raises(ValueError, match="Could not parse remote_device"):
        three[0](made, device)


def from_rref():
    module = RemoteModule.init_from_module_rref("worker1", rpc.remote("worker1", linear))
    return type(module) is RemoteModule, output(module), module.get_module_rref().owner_name()


def test_a_module_is_made_from_a_reference(three):
    assert three[0](from_rref) == (True, [[5.0]], "worker1")


def double_weight(module_rref):
    with torch.no_grad():
        module_rref.local_value().weight.mul_(2)


def give(remote_device):
    return RemoteModule(remote_device, linear)


def passed_on():
    module = RemoteModule("worker1", linear)
    before = rpc.rpc_sync("worker2", output, args=(module,))
    rpc.rpc_sync("worker1", double_weight, args=(module.get_module_rref(),))
    back = rpc.rpc_sync("worker2", give, args=("worker1",))
    return before, rpc.rpc_sync("worker2", output, args=(module,)), output(module), output(back)


def test_a_module_that_is_passed_on_is_the_same_module(three):
    assert three[0](passed_on) == ([[5.0]], [[9.0]], [[9.0]], [[5.0]])


class Compiled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def with_interface():
    module = _RemoteModule("worker1", Compiled, _module_interface_cls=object)
    with warnings.catch_warnings(), pytest.raises(RuntimeError, match="cannot be compiled by TorchScript"):
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit itself
        torch.jit.script(module)
    return output(module), rpc.rpc_sync("worker1", is_compiled, args=(module.get_module_rref(),))


def is_compiled(module_rref):
    return isinstance(module_rref.local_value(), torch.jit.ScriptModule)


def test_a_module_with_an_interface_is_compiled_by_its_owner(three):
    assert three[0](with_interface) == ([[2.0, 2.0]], True)


def trained():
    module = RemoteModule("worker1", linear)
    module.train(False)
    optimizer = DistributedOptimizer(torch.optim.SGD, module.remote_parameters(), lr=1.0)
    with dist_autograd.context() as context_id:
        dist_autograd.backward(context_id, [rpc.rpc_sync("worker2", forward, args=(module,))])
        optimizer.step(context_id)
    return output(module), module.training, rpc.rpc_sync("worker1", is_training, args=(module.get_module_rref(),))


def forward(module):
    return module(torch.ones(1, 2)).sum()


def is_training(module_rref):
    return module_rref.local_value().training


def test_a_module_that_is_passed_on_is_trained(three):
    assert three[0](trained) == ([[2.0]], False, False)


def refused():
    module = RemoteModule("worker1", linear)
    for name in ("parameters", "state_dict", "cuda", "register_backward_hook"):
        with pytest.raises(ValueError, match=f"Method ``{name}`` not supported for RemoteModule"):
            getattr(module, name)()


def test_methods_that_need_the_module_are_refused(three):
    three[0](refused)


def elsewhere():
    """The reference says where the module is, and not the device, as in torch."""
    module = RemoteModule.init_from_module_rref("worker2", rpc.remote("worker1", linear))
    return output(module), len(module.remote_parameters())


def test_a_module_is_used_where_its_reference_points(three):
    assert three[0](elsewhere) == ([[5.0]], 2)
