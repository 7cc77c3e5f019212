# SPDX-License-Identifier: Apache-2.0
"""A module that lives in another process."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ....rpc import values
from ... import rpc as _rpc
from ...rpc import RRef
from ...rpc.api import _get_current_rpc_agent as _current_agent

__all__ = ["RemoteModule"]

# The attributes of an instance. torch's tests read this name.
_REMOTE_MODULE_PICKLED_ATTRIBUTES = ("on", "device", "is_device_map_set", "is_scriptable", "module_rref")


# --- what runs in the member that owns the module


def _make(
    module_class: Callable[..., nn.Module], args: list[Any], kwargs: dict[str, Any], device: str, is_compiled: bool
) -> RRef[nn.Module]:
    module = module_class(*args, **kwargs)
    if not isinstance(module, nn.Module):
        raise ValueError(
            f"Expect `module_cls(*args, **kwargs)` returns an instance of <class nn.Module>, but it returns an "
            f"instance of {type(module)}."
        )
    module = module.to(device)
    return _rpc.RRef(_compile(module) if is_compiled else module)


def _compile(module: nn.Module) -> nn.Module:
    with warnings.catch_warnings():  # of torch, whose own argument `_module_interface_cls` asks for torch.jit
        warnings.filterwarnings("ignore", ".*torch.jit", DeprecationWarning)
        return torch.jit.script(module)


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


# --- what the others have


class _RemoteModule(nn.Module):
    """A RemoteModule with one further argument.

    Args:
        _module_interface_cls: an interface of TorchScript; the owner then compiles the module. A RemoteModule itself
            cannot be compiled: TorchScript knows references of torch's own rpc only."""

    is_scriptable = False

    def __init__(
        self,
        remote_device: str,
        module_cls: Callable[..., nn.Module],
        args: Any = None,
        kwargs: Any = None,
        _module_interface_cls: Any = None,
    ) -> None:
        super().__init__()
        self._point_to(remote_device)
        values_of_module = (module_cls, list(args or ()), dict(kwargs or {}), self.device)
        self.module_rref = _rpc.rpc_sync(self.on, _make, (*values_of_module, _module_interface_cls is not None))

    def _point_to(self, remote_device: str) -> None:
        self.on, self.device = _parse(remote_device)
        self.is_device_map_set = bool(_current_agent()._get_device_map(_rpc.get_worker_info(self.on)))

    @staticmethod
    def init_from_module_rref(
        remote_device: str, module_rref: RRef[nn.Module], _module_interface_cls: Any = None
    ) -> RemoteModule:
        """Returns a RemoteModule of a module that exists in the member `remote_device` already."""
        made: RemoteModule = RemoteModule.__new__(RemoteModule)
        nn.Module.__init__(made)
        made._point_to(remote_device)
        made.module_rref = module_rref
        return made

    def forward_async(self, *args: Any, **kwargs: Any) -> torch.futures.Future[Any]:
        """Returns a Future of forward()'s result."""
        call = (self.module_rref, self.device, self.is_device_map_set, args, kwargs)
        return _rpc.rpc_async(self.module_rref.owner(), _forward, call)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the module's forward() in the member that owns the module, and returns the result."""
        return self.forward_async(*args, **kwargs).wait()

    def remote_parameters(self, recurse: bool = True) -> list[RRef[nn.Parameter]]:
        """Returns references to the module's parameters, for DistributedOptimizer."""
        return _rpc.rpc_sync(self.module_rref.owner(), _parameters, args=(self.module_rref, recurse))

    def get_module_rref(self) -> RRef[nn.Module]:
        """Returns the reference to the module."""
        return self.module_rref

    def train(self, mode: bool = True) -> Any:
        """Sets the mode of the module in the member that owns it."""
        _rpc.rpc_sync(self.module_rref.owner(), _train, args=(self.module_rref, mode))
        self.training = mode
        return self

    def __prepare_scriptable__(self) -> Any:
        raise RuntimeError(
            "a RemoteModule cannot be compiled by TorchScript, which knows references of torch's own rpc only: compile "
            "the module in the member that owns it"
        )

    def __getstate__(self) -> Any:
        raise RuntimeError(
            "Cannot pickle RemoteModule in python pickler. RemoteModule can only be pickled when using RPC"
        )

    def __setstate__(self, state: Any) -> None:
        raise RuntimeError(
            "Cannot unpickle RemoteModule in python pickler. RemoteModule can only be unpickled when using RPC"
        )


class RemoteModule(_RemoteModule):
    """A module that is made and run in another member of the group. A backward pass in a context of
    onecopy.distributed.autograd goes through the module. A RemoteModule may be an argument or a result of a call: each
    member that has it uses the same module.

    Args:
        remote_device: "<worker name or rank>/<device>", such as "trainer0/cpu", "ps0/cuda:1" or "rank:0/cpu"; without
            a device, the module is on the CPU.
        module_cls: the class of the module.
        args, kwargs: the arguments of its constructor.
    Raises ValueError for a malformed device, and the exceptions of the constructor."""

    def __init__(
        self, remote_device: str, module_cls: Callable[..., nn.Module], args: Any = None, kwargs: Any = None
    ) -> None:
        super().__init__(remote_device, module_cls, args, kwargs)


def _parse(remote_device: str) -> tuple[str | int, str]:
    worker, slash, device = remote_device.partition("/")
    rank = worker.removeprefix("rank:")
    if not worker or bool(slash) != bool(device) or (rank != worker and not rank.isdecimal()):
        raise ValueError(
            f"Could not parse remote_device: {remote_device}. The valid format is '<workername>/<device>' or "
            "'rank:<rank>/<device>', where '/<device>' may be left out"
        )
    return worker if rank == worker else int(rank), str(torch.device(device or "cpu"))


def _parts(module: _RemoteModule) -> list[Any]:
    worker = f"rank:{module.on}" if isinstance(module.on, int) else module.on
    return [f"{worker}/{module.device}", module.module_rref]


values.register("remote module", _RemoteModule, _parts, RemoteModule.init_from_module_rref)  # see rpc/api.py


def _refusing(name: str, advice: str) -> Callable[..., None]:
    def method(self: RemoteModule, *args: Any, **kwargs: Any) -> None:
        raise ValueError(f"Method ``{name}`` not supported for RemoteModule{advice}")

    method.__name__ = name
    return method


_REFUSED = (
    *("register_buffer", "register_parameter", "add_module", "apply", "cuda", "cpu", "ipu", "xpu", "type", "float"),
    *("double", "half", "bfloat16", "to", "register_backward_hook", "register_forward_pre_hook"),
    *("register_forward_hook", "state_dict", "load_state_dict", "named_parameters", "buffers", "named_buffers"),
    *("children", "named_children", "modules", "named_modules", "requires_grad_", "zero_grad", "share_memory"),
    "extra_repr",
)
for _name in _REFUSED:
    _advice = ": run it on the module, through get_module_rref().rpc_sync()"
    setattr(_RemoteModule, _name, _refusing(_name, _advice))
_RemoteModule.parameters = _refusing("parameters", ". Please use ``remote_parameters`` instead.")
