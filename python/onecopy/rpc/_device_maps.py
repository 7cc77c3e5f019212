# SPDX-License-Identifier: Apache-2.0
"""Checks the device maps of a whole group, as its members meet. The texts are those of torch."""

import torch

from . import _devices


def parse(device_maps):
    """Returns {member: {device here: device there}} with torch.device as devices."""
    return {to: _devices.parse_map(devices) for to, devices in (device_maps or {}).items()}


def own(options):
    """A member's facts for the others: how many cards it has, the cards that it uses, and its maps, as plain values."""
    count = torch.cuda.device_count() if options.devices or any(options.device_maps.values()) else -1
    maps = {
        to: {str(here): str(there) for here, there in devices.items()} for to, devices in options.device_maps.items()
    }
    return {"count": count, "devices": [str(d) for d in options.devices], "maps": maps}


def check(told):
    """`told` is {member: own(...)} of all. Throws ValueError, the same one in all members."""
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


def _check_map(name, said, to, theirs, devices):
    of = f"in its device map for {to}: {devices}"
    if len(set(devices.values())) != len(devices):
        raise ValueError(f"Node {name} has duplicated target devices {of}")
    for kind, side, used in (("source", said, devices.keys()), ("target", theirs, devices.values())):
        if side["devices"] and not set(used) <= {*side["devices"], "cpu"}:
            raise ValueError(f"Node {name} has unexpected {kind} devices {of}; devices = {side['devices']}")
        if not side["devices"] and not _are_there(used, side["count"]):
            raise ValueError(
                f"Node {name} has {kind} devices with invalid indices {of}; device count = {side['count']}"
            )


def _are_there(devices, count):
    """A member that maps nothing has not looked how many cards it has (-1): it is not asked to start CUDA for others."""
    return count < 0 or all(d == "cpu" or 0 <= _devices.of(d).index < count for d in devices)
