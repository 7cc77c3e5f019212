# SPDX-License-Identifier: Apache-2.0
"""Options of init_rpc()."""

from ...rpc import devices as device_maps_of
from . import constants


class RpcBackendOptions:
    """Args:
    rpc_timeout: seconds that a call may take; 0 is for ever.
    init_method: where the members meet, as torch.distributed has it: env://, tcp://host:port, file:///path."""

    def __init__(self, rpc_timeout=constants.DEFAULT_RPC_TIMEOUT_SEC, init_method=constants.DEFAULT_INIT_METHOD):
        if isinstance(rpc_timeout, bool) or not isinstance(rpc_timeout, (int, float)):
            raise TypeError(
                "__init__(): incompatible constructor arguments: rpc_timeout is a number of seconds, not "
                f"{rpc_timeout!r}"
            )
        self.rpc_timeout, self.init_method = float(rpc_timeout), init_method


class TensorPipeRpcBackendOptions(RpcBackendOptions):
    """Args:
    num_worker_threads: threads that run calls; more are started while these wait.
    device_maps: {member: {device here: device there}}.
    devices: the devices that calls may use; found from the maps if not given.
    join_timeout: seconds that joining waits for other members; not a part of torch's interface."""

    maps_itself = False  # whether a card without a map is meant itself, in members that number the cards alike

    def __init__(
        self,
        *,
        num_worker_threads=constants.DEFAULT_NUM_WORKER_THREADS,
        rpc_timeout=constants.DEFAULT_RPC_TIMEOUT_SEC,
        init_method=constants.DEFAULT_INIT_METHOD,
        device_maps=None,
        devices=None,
        join_timeout=60.0,
        _transports=None,
        _channels=None,
    ):
        super().__init__(rpc_timeout, init_method)
        if num_worker_threads <= 0:
            raise ValueError("num_worker_threads must be positive")
        self.num_worker_threads, self.join_timeout = num_worker_threads, float(join_timeout)
        self.device_maps = {to: device_maps_of.parse_map(m) for to, m in (device_maps or {}).items()}
        self.devices = self._checked([device_maps_of.of(d) for d in devices or []])

    @staticmethod
    def _checked(devices):
        for device in devices:
            if device.type != "cuda":
                raise ValueError(f"`set_devices` expect a list of CUDA devices, but got device type {device.type}.")
        return devices

    def set_device_map(self, to, device_map):
        """Tensors on a key's device go to the value's device of member `to`, and results the other way. Throws ValueError
        for a device that goes elsewhere already; two that go to one are an error of init_rpc()."""
        known = dict(self.device_maps.get(to, {}))
        for here, there in device_maps_of.parse_map(device_map).items():
            if here in known and known[here] != there:
                raise ValueError(
                    f"`set_device_map` only supports 1-to-1 mapping, trying to map {here} to {there}, and it "
                    f"goes to {known[here]}"
                )
            known[here] = there
        self.device_maps[to] = known

    def set_devices(self, devices):
        """The devices that calls may use."""
        self.devices = self._checked([device_maps_of.of(d) for d in devices])
