# SPDX-License-Identifier: Apache-2.0
"""Options of init_rpc()."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ...rpc.device_maps import Device, of, parse_map, parse_maps
from ...rpc.peers import Options
from . import constants


class RpcBackendOptions(Options):
    """The options of all backends.

    Args:
    rpc_timeout: the maximum duration of a call in seconds; 0 for no limit.
    init_method: where the members meet, as in torch.distributed: env://, tcp://host:port or file:///path."""

    def __init__(
        self, rpc_timeout: float = constants.DEFAULT_RPC_TIMEOUT_SEC, init_method: str = constants.DEFAULT_INIT_METHOD
    ) -> None:
        if isinstance(rpc_timeout, bool) or not isinstance(rpc_timeout, (int, float)):
            raise TypeError(
                "__init__(): incompatible constructor arguments: rpc_timeout is a number of seconds, not "
                f"{rpc_timeout!r}"
            )
        self.rpc_timeout, self.init_method = float(rpc_timeout), init_method


class TensorPipeRpcBackendOptions(RpcBackendOptions):
    """The options of the only backend.

    Args:
    num_worker_threads: a number for the debug information; threads that run calls are started as needed.
    device_maps: {member: {device here: device there}}.
    devices: the devices that calls may use; by default the devices in the maps.
    join_timeout: the maximum time in seconds to wait for other members; not a part of torch's interface.
    transport: how messages go to members on other hosts, "tls" or "ucx", as in onecopy.rpc.init(); not a part of
        torch's interface."""

    def __init__(
        self,
        *,
        num_worker_threads: int = constants.DEFAULT_NUM_WORKER_THREADS,
        rpc_timeout: float = constants.DEFAULT_RPC_TIMEOUT_SEC,
        init_method: str = constants.DEFAULT_INIT_METHOD,
        device_maps: dict[str, dict[Device, Device]] | None = None,
        devices: Iterable[Device] | None = None,
        join_timeout: float = 60.0,
        transport: str = "",
        _transports: Any = None,
        _channels: Any = None,
    ) -> None:
        super().__init__(rpc_timeout, init_method)
        if num_worker_threads <= 0:
            raise ValueError("num_worker_threads must be positive")
        self.num_worker_threads, self.join_timeout = num_worker_threads, float(join_timeout)
        self.device_maps, self.transport = parse_maps(device_maps), transport
        self.devices = _checked(devices or ())

    def set_device_map(self, to: str, device_map: dict[Device, Device]) -> None:
        """Maps tensors on the device of a key to the device of its value in the member `to`, and results in the other
        direction. Raises ValueError for a device that is mapped otherwise already. init_rpc() raises if two devices are
        mapped to one."""
        known = dict(self.device_maps.get(to, {}))
        for here, there in parse_map(device_map).items():
            if here in known and known[here] != there:
                raise ValueError(
                    f"`set_device_map` only supports 1-to-1 mapping, trying to map {here} to {there}, and it "
                    f"goes to {known[here]}"
                )
            known[here] = there
        self.device_maps[to] = known

    def set_devices(self, devices: Iterable[Device]) -> None:
        """Sets the devices that calls may use. Raises ValueError for a device that is not a card."""
        self.devices = _checked(devices)


def _checked(devices: Iterable[Device]) -> list[torch.device]:
    found = [of(device) for device in devices]
    for device in found:
        if device.type != "cuda":
            raise ValueError(f"`set_devices` expect a list of CUDA devices, but got device type {device.type}.")
    return found
