# SPDX-License-Identifier: Apache-2.0
"""The members of a group: their identities and addresses, and the ones that have ended.

The rendezvous is a torch.distributed store, which carries names and addresses. An address opens for processes of
its user only, so a store that others can read gives nothing away that they could use.
"""

from __future__ import annotations

from typing import Any

import datetime
import json
import os
import re
import time

_A_MOMENT = datetime.timedelta(milliseconds=200)


class WorkerInfo:
    """A member's name and number. Equal members are equal, also after they crossed to another process."""

    __slots__ = ("name", "id")

    def __init__(self, name: str, id: Any) -> None:
        if not name:
            raise RuntimeError("Worker name must be non-empty.")
        if len(name) >= 128:
            raise RuntimeError("Worker name must be shorter than 128 characters.")
        if not re.fullmatch(r"[A-Za-z0-9\-_:]*", name):
            raise RuntimeError(f"Worker name must match ^[A-Za-z0-9-_:]*$, but got {name}.")
        self.name, self.id = name, id

    def __eq__(self, other: Any) -> Any:
        return isinstance(other, WorkerInfo) and (self.name, self.id) == (other.name, other.id)

    def __hash__(self) -> Any:
        return hash((self.name, self.id))

    def __repr__(self) -> str:
        return f"WorkerInfo(id={self.id}, name={self.name})"

    def __reduce__(self) -> Any:
        return WorkerInfo, (self.name, self.id)


class Member:
    """Another process of the group, or this one. `has_ended`, by death or by leaving, is final; `why_ended` says which.
    `is_far`: it is on another host, or reached as if it were. `cards`: visible_cards() there; `has_our_cards`: they are
    numbered as here. `is_program`: it is a program in C++."""

    def __init__(self, info: Any, pid: Any, address: Any, device_maps: Any, cards: Any = None) -> None:
        self.info, self.pid, self.address, self.device_maps, self.cards = info, pid, address, device_maps, cards
        self.has_ended, self.why_ended = False, ""
        self.is_far = self.has_our_cards = self.is_program = False


def check_size(store: Any, info: Any, world_size: int) -> None:
    """Throws ValueError for a rank that is not in the group, RuntimeError when others have said another size."""
    if not 0 <= info.id < world_size:
        raise ValueError(
            f"rank {info.id} of {info.name} is not in a group of {world_size}: ranks go from 0 to {world_size - 1}"
        )
    said = store.compare_set("world_size", "", str(world_size)).decode()
    if said != str(world_size):
        _give_up(
            store,
            f"{info} was given the world size {world_size}, and another worker of this group {said}: give all of "
            "them one world_size",
        )


def _give_up(store: Any, why: Any) -> None:
    """Throws RuntimeError here, and where others wait for this process."""
    store.set("given_up", why)
    raise RuntimeError(why)


def check_given_up(store: Any) -> None:
    """Throws RuntimeError when another member found that this group cannot be."""
    if store.check(["given_up"]):
        raise RuntimeError(store.get("given_up").decode())


def announce(store: Any, name: str, rank: int, address: Any, device_maps: Any, cards: Any) -> None:
    """Enters this process. Throws RuntimeError when the name is taken."""
    taken = store.compare_set(f"name/{name}", "", str(rank)).decode()
    if taken != str(rank):
        _give_up(store, f"RPC worker name {name} is not unique. Workers {taken} and {rank} have it: give each its own")
    store.set(f"member/{rank}", json.dumps([name, os.getpid(), address.hex(), plain_maps(device_maps), cards]))


def visible_cards() -> Any:
    """How this process will number the cards of its host: equal in processes that number them alike. CUDA is not started."""
    nodes = [os.path.join("/dev", name) for name in os.listdir("/dev") if re.fullmatch(r"nvidia\d+|dxg", name)]
    caps = "/dev/nvidia-caps"  # of parts of cards
    nodes += [os.path.join(caps, name) for name in (os.listdir(caps) if os.path.isdir(caps) else ())]
    allowed = [f"{node}={os.stat(node).st_rdev}" for node in sorted(nodes) if os.access(node, os.R_OK | os.W_OK)]
    return [os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("CUDA_DEVICE_ORDER"), *allowed]


def plain_maps(device_maps: Any) -> Any:
    return {to: {str(k): str(v) for k, v in devices.items()} for to, devices in device_maps.items()}


def find(store: Any, rank: int, seconds: float) -> Any:
    """The Member of that rank, waited for. Throws RuntimeError when it does not come."""
    key, end = f"member/{rank}", time.monotonic() + seconds
    check_given_up(store)
    while not store.check([key]):
        check_given_up(store)
        if time.monotonic() > end:
            raise RuntimeError(
                f"the worker of rank {rank} has not joined the group within {seconds:g} s: has it started, "
                "with this world size and init method?"
            )
        _wait_for_key(store, key)
    name, pid, address, maps, cards = json.loads(store.get(key))
    return Member(WorkerInfo(name, rank), pid, bytes.fromhex(address), maps, cards)


def _wait_for_key(store: Any, key: str) -> None:
    try:
        store.wait([key], _A_MOMENT)
    except Exception:  # each kind of store has its own for this; the caller looks again
        pass
