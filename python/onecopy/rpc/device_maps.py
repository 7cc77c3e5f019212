# SPDX-License-Identifier: Apache-2.0
"""Chooses the device that a tensor of a message goes to, and checks that the maps of all members fit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

CPU = torch.device("cpu")

DeviceMap = dict[torch.device, torch.device]
Device = Any  # a torch.device, or what torch.device() takes


def of(device: Device) -> torch.device:
    """Returns the torch.device of a name in a map. Raises RuntimeError for values that do not name a device."""
    if isinstance(device, int) and device < 0:
        raise RuntimeError(f"Device index must not be negative, but got {device}")
    device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if device.type == "cpu":
        return CPU
    return device if device.index is not None else torch.device(device.type, 0)


def parse_map(devices: dict[Any, Any]) -> DeviceMap:
    """Returns {device here: device there}."""
    return {of(here): of(there) for here, there in devices.items()}


class Automatic(dict[torch.device, torch.device]):
    """A map for a member that numbers the host's cards as this process does: a card without an entry maps to itself."""

    def get(self, device: torch.device, default: Any = None) -> Any:
        """Does what dict.get() does."""
        return super().get(device, device if device.type == "cuda" else default)


def inverse(devices: DeviceMap) -> DeviceMap:
    """Returns {device there: device here}."""
    return {there: here for here, there in devices.items()}


def numbers(devices: DeviceMap) -> list[tuple[int, int]]:
    """Returns the map of cards by their numbers, and -1 for the CPU, as _core._RpcEndpoint has it."""
    known = [pair for pair in devices.items() if all(d.type in ("cpu", "cuda") for d in pair)]
    return [(_number(here), _number(there)) for here, there in known]


def _number(device: torch.device) -> int:
    return -1 if device.type == "cpu" else device.index


def target(tensor: torch.Tensor, devices: DeviceMap, caller: str, receiver: str, what: str = "Request") -> str:
    """Returns the device that a tensor goes to, as text. `what` names a request or a response in errors. Raises
    RuntimeError for a device without a target."""
    found = devices.get(tensor.device, CPU if tensor.device.type == "cpu" else None)
    if found is None:
        raise RuntimeError(
            f"TensorPipe RPC backend only supports CPU tensors by default, please move your tensors to CPU before "
            f"sending them over RPC, or call `set_device_map` on `TensorPipeRpcBackendOptions` to explicitly "
            f"configure device mapping. {what} device mapping is not available for destination {receiver}: no entry "
            f"for {tensor.device} of {caller}"
        )
    return str(found)


# --- the maps of a whole group, checked when its members meet, with torch's error texts


def parse_maps(device_maps: dict[str, Any] | None) -> dict[str, DeviceMap]:
    """Returns {member: {device here: device there}}."""
    return {to: parse_map(devices) for to, devices in (device_maps or {}).items()}


def own_facts(options: Any) -> dict[str, Any]:
    """Returns the facts that a member tells the others: its number of cards, the cards it uses, and its maps."""
    count = torch.cuda.device_count() if options.devices or any(options.device_maps.values()) else -1
    return {"count": count, "devices": [str(d) for d in options.devices], "maps": texts_of(options.device_maps)}


def texts_of(maps: dict[str, DeviceMap]) -> dict[str, dict[str, str]]:
    """Returns maps for a message, with the devices as text."""
    return {to: {str(here): str(there) for here, there in devices.items()} for to, devices in maps.items()}


def check_maps(told: dict[str, dict[str, Any]]) -> None:
    """Checks {member: own_facts(...)} of all members. All members raise the same ValueError."""
    for name, said in told.items():
        devices = said["devices"]
        if len(set(devices)) != len(devices):
            raise ValueError(f"Node {name} has duplicated devices: {devices}")
        if not _are_there(devices, said["count"]):
            raise ValueError(f"Node {name} has devices with invalid indices: {devices}, of {said['count']}")
    for name, said in told.items():
        strangers = set(said["maps"]) - set(told)
        if strangers:
            raise ValueError(
                f"Node {name} has invalid target node names in its device maps: {sorted(strangers)}; the members "
                f"are {sorted(told)}"
            )
        for to, devices in said["maps"].items():
            _check_map(name, said, to, told[to], devices)


def _check_map(name: str, said: dict[str, Any], to: str, theirs: dict[str, Any], devices: dict[str, str]) -> None:
    where = f"in its device map for {to}: {devices}"
    if len(set(devices.values())) != len(devices):
        raise ValueError(f"Node {name} has duplicated target devices {where}")
    for kind, side, used in (("source", said, devices.keys()), ("target", theirs, devices.values())):
        if side["devices"] and not set(used) <= {*side["devices"], "cpu"}:
            raise ValueError(f"Node {name} has unexpected {kind} devices {where}; devices = {side['devices']}")
        if not side["devices"] and not _are_there(used, side["count"]):
            raise ValueError(
                f"Node {name} has {kind} devices with invalid indices {where}; device count = {side['count']}"
            )


def _are_there(devices: Iterable[str], count: int) -> bool:
    """Returns whether the devices exist. A member without maps does not start CUDA, so its number of cards is unknown
    (-1), and every device counts as existing."""
    return count < 0 or all(d == "cpu" or 0 <= of(d).index < count for d in devices)
