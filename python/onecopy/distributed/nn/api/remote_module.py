# SPDX-License-Identifier: Apache-2.0
"""A module that lives in another process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ... import rpc as _rpc
from ...rpc import RRef
from ...rpc.api import _get_current_rpc_agent as _current_agent

__all__ = ["RemoteModule"]


def _make(
    module_class: Callable[..., nn.Module], args: list[Any], kwargs: dict[str, Any], device: str
) -> RRef[nn.Module]:
    module = module_class(*args, **kwargs)
    if not isinstance(module, nn.Module):
        raise ValueError(
            f"Expect `module_cls(*args, **kwargs)` returns an instance of <class nn.Module>, but it returns an "
            f"instance of {type(module)}."
        )
    return _rpc.RRef(module.to(device))


def _forward(
    module_rref: RRef[nn.Module], device: str, is_device_map_set: bool, args: Any, kwargs: dict[str, Any]
) -> Any:
    module = module_rref.local_value()
    args = [_to(a, device) for a in args]
    kwargs = {k: _to(v, device) for k, v in kwargs.items()}
    result = module.forward(*args, **kwargs)
    if torch.device(device).type == "cpu" or is_device_map_set:
        return result
    return tuple(_to(r, "cpu") for r in result) if isinstance(result, tuple) else _to(result, "cpu")


def _to(value: Any, device: str) -> Any:
    return value.to(device) if isinstance(value, torch.Tensor) else value


def _parameters(module_rref: RRef[nn.Module], recurse: bool) -> list[RRef[nn.Parameter]]:
    return [_rpc.RRef(p) for p in module_rref.local_value().parameters(recurse)]


def _train(module_rref: RRef[nn.Module], mode: bool) -> None:
    module_rref.local_value().train(mode)


class RemoteModule(nn.Module):
    """A module that is made and run in another member of the group. A backward pass in a context of
    onecopy.distributed.autograd goes through the module.

    Args:
        remote_device: "<worker name or rank>/<device>", such as "trainer0/cpu", "ps0/cuda:1" or "rank:0/cpu".
        module_cls: the class of the module.
        args, kwargs: the arguments of its constructor.
    Raises ValueError for a malformed device, and the exceptions of the constructor."""

    def __init__(
        self, remote_device: str, module_cls: Callable[..., nn.Module], args: Any = None, kwargs: Any = None
    ) -> None:
        super().__init__()
        self.on, self.device = _parse(remote_device)
        self.is_device_map_set = bool(_current_agent()._get_device_map(_rpc.get_worker_info(self.on)))
        self.module_rref: RRef[nn.Module] = _rpc.rpc_sync(
            self.on, _make, (module_cls, list(args or ()), dict(kwargs or {}), self.device)
        )

    def forward_async(self, *args: Any, **kwargs: Any) -> torch.futures.Future[Any]:
        """Returns a Future of forward()'s result."""
        return _rpc.rpc_async(self.on, _forward, (self.module_rref, self.device, self.is_device_map_set, args, kwargs))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the module's forward() in the member that owns the module, and returns the result."""
        return self.forward_async(*args, **kwargs).wait()

    def remote_parameters(self, recurse: bool = True) -> list[RRef[nn.Parameter]]:
        """Returns references to the module's parameters, for DistributedOptimizer."""
        return _rpc.rpc_sync(self.on, _parameters, args=(self.module_rref, recurse))

    def get_module_rref(self) -> RRef[nn.Module]:
        """Returns the reference to the module."""
        return self.module_rref

    def train(self, mode: bool = True) -> RemoteModule:
        """Sets the mode of the module in the member that owns it."""
        if hasattr(self, "module_rref"):
            _rpc.rpc_sync(self.on, _train, args=(self.module_rref, mode))
        self.training = mode
        return self


def _parse(remote_device: str) -> tuple[str | int, str]:
    worker, _, device = remote_device.partition("/")
    if not worker or not device:
        raise ValueError(
            f"Could not parse remote_device: {remote_device}. The valid format is '<workername>/<device>' or "
            "'rank:<rank>/<device>'"
        )
    if worker.startswith("rank:"):
        return int(worker.removeprefix("rank:")), device
    return worker, device


def _refusing(name: str) -> Callable[..., None]:
    def method(self: RemoteModule, *args: Any, **kwargs: Any) -> None:
        raise ValueError(
            f"Method ``{name}`` not supported for RemoteModule: run it on the module, through "
            "get_module_rref().rpc_sync()"
        )

    method.__name__ = name
    return method


_REFUSED = (
    *("register_buffer", "register_parameter", "add_module", "apply", "cuda", "cpu", "type", "float", "double", "half"),
    *("bfloat16", "to", "register_forward_pre_hook", "register_forward_hook", "state_dict", "load_state_dict"),
    *("parameters", "named_parameters", "buffers", "named_buffers", "children", "named_children", "modules"),
    *("named_modules", "requires_grad_", "zero_grad", "share_memory", "extra_repr"),
)
for _name in _REFUSED:
    setattr(RemoteModule, _name, _refusing(_name))
