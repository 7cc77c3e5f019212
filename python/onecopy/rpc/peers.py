# SPDX-License-Identifier: Apache-2.0
"""The members of a group, and how the members of a group of fixed size meet.

The rendezvous is a torch.distributed store, which carries names and addresses. Only processes of the same user can open
an address, so other users cannot use what they read in the store.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import os
import re
import time
from collections.abc import Callable
from typing import Any

from .. import _core
from . import device_maps

DeviceMaps = dict[str, dict[Any, Any]]  # {member: {device here: device there}}
Entry = dict[str, Any]  # a member in the store


@dataclasses.dataclass(eq=False, repr=False)
class Options:
    """The options of a group.

    Attributes:
        rpc_timeout: the maximum duration of a call in seconds; 0 for no limit.
        init_method: where the members meet: env://, tcp://host:port or file:///path.
        join_timeout: the maximum time in seconds to wait for other members.
        device_maps: {member: {device here: device there}}.
        devices: the devices that calls may use; empty for the devices in the maps.
        maps_itself: whether a card without a map goes to the same card in members that number the cards alike.
        max_calls, refuses_calls: how many native calls to one member may be pending, and whether further ones raise
        Busy.
        num_worker_threads: the number that debug information shows.
        transport: how messages go to members on other hosts: "tls" or "ucx"; empty for the value of
            ONECOPY_RPC_FABRIC."""

    rpc_timeout: float = 60.0
    init_method: str = "env://"
    join_timeout: float = 60.0
    device_maps: DeviceMaps = dataclasses.field(default_factory=dict)
    devices: list[Any] = dataclasses.field(default_factory=list)
    maps_itself: bool = False
    max_calls: int = 4096
    refuses_calls: bool = False
    num_worker_threads: int = 16
    transport: str = ""


class WorkerInfo:
    """A member's name and number, which cannot be changed. Infos of one member compare equal in all processes."""

    __slots__ = ("id", "name")
    name: str
    id: int

    def __init__(self, name: str, id: int) -> None:
        if not name:
            raise RuntimeError("Worker name must be non-empty.")
        if len(name) >= 128:
            raise RuntimeError("Worker name must be shorter than 128 characters.")
        if not re.fullmatch(r"[A-Za-z0-9\-_:]*", name):
            raise RuntimeError(f"Worker name must match ^[A-Za-z0-9-_:]*$, but got {name}.")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "id", id)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name!r} of a WorkerInfo cannot be changed")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{name!r} of a WorkerInfo cannot be deleted")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WorkerInfo) and (self.name, self.id) == (other.name, other.id)

    def __hash__(self) -> int:
        return hash((self.name, self.id))

    def __repr__(self) -> str:
        return f"WorkerInfo(id={self.id}, name={self.name})"

    def __reduce__(self) -> tuple[type[WorkerInfo], tuple[str, int]]:
        return WorkerInfo, (self.name, self.id)


_MAX_AWAY, _MOMENT_OF_CONNECTING = 60.0, 1.0  # seconds


class Member:
    """A process of the group.

    Attributes:
        endpoint: the endpoint of this process, once it has joined the member.
        ended_session: the number of the last session with the member that has ended; 0 for none.
        is_far: whether the member is reached by a transport between hosts.
        cards, has_our_cards: visible_cards() of the member, and whether it numbers the cards as this process does.
        is_program: whether the member is a program in C++."""

    def __init__(self, info: WorkerInfo, address: bytes, device_maps: DeviceMaps, cards: Any = None) -> None:
        self.info, self.address, self.device_maps, self.cards = info, address, device_maps, cards
        self.endpoint: Any = None
        self.ended_session = 0
        self._away_since: float | None = None
        self.is_far = self.has_our_cards = self.is_program = False

    @property
    def has_ended(self) -> bool:
        """Returns whether the member has ended. A member on another host counts as ended after its connection is lost,
        until a new connection reaches its process."""
        return self.ended_session != 0 and bool(self.endpoint.is_gone(self.info.id))

    def has_ended_for_good(self) -> bool:
        """Returns whether the member has ended and will not return. Tries to reconnect to a member whose connection was
        lost, for as long as the default timeout of a call, and at most a minute."""
        if not self.has_ended:
            self._away_since = None
            return False
        self._away_since = self._away_since or time.monotonic()
        patience = min(self.endpoint.timeout or _MAX_AWAY, _MAX_AWAY)
        is_late = time.monotonic() - self._away_since > patience
        return is_late or not self.endpoint.may_return(self.info.id, _MOMENT_OF_CONNECTING)

    def refuse_program(self) -> None:
        """Raises TypeError for a program in C++."""
        if self.is_program:
            raise TypeError(f"{self.info} is a program in C++: it can be called with call() and call_async() alone")

    def why_ended(self) -> str:
        """Returns the error text about the end of the member."""
        if self.endpoint.has_left(self.info.id):
            return f"{self.info} has left the group"
        return f"{self.info} has ended, or was cut off for too long" if self.is_far else f"{self.info} has ended"


def visible_cards() -> list[str | None]:
    """Returns values that are equal in processes which number the cards of the host alike. Does not start CUDA."""
    nodes = [os.path.join("/dev", name) for name in os.listdir("/dev") if re.fullmatch(r"nvidia\d+|dxg", name)]
    caps = "/dev/nvidia-caps"  # the nodes of parts of cards
    nodes += [os.path.join(caps, name) for name in (os.listdir(caps) if os.path.isdir(caps) else ())]
    allowed = [f"{node}={os.stat(node).st_rdev}" for node in sorted(nodes) if os.access(node, os.R_OK | os.W_OK)]
    return [os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("CUDA_DEVICE_ORDER"), *allowed]


# --- members in the store


def process_of(pid: int) -> list[Any]:
    """Returns [pid, start time, host], which identifies one process. Raises OSError if the process has ended."""
    with open(f"/proc/{pid}/stat") as file:
        return [pid, file.read().rpartition(")")[2].split()[19], _core._rpc_host()]


def own_entry(agent: Any) -> Entry:
    """Returns the entry of this process."""
    return {
        "id": agent.info.id,
        "name": agent.info.name,
        "process": process_of(os.getpid()),
        "address": agent.endpoint.address().hex(),
        "maps": device_maps.texts_of(agent.options.device_maps),
        "cards": agent.cards,
    }


def member_of(entry: Entry) -> Member:
    """Returns the member of an entry."""
    info = WorkerInfo(entry["name"], entry["id"])
    return Member(info, bytes.fromhex(entry["address"]), entry["maps"], entry["cards"])


# --- groups of fixed size

_A_MOMENT = datetime.timedelta(milliseconds=200)


def join(agent: Any, world_size: int) -> None:
    """Joins a group of that size, and returns when all members have joined. Raises RuntimeError if a member is missing,
    or names or sizes contradict each other, and ValueError for a rank outside of the group."""
    store, info = agent.store, agent.info
    if not 0 <= info.id < world_size:
        raise ValueError(
            f"rank {info.id} of {info.name} is not in a group of {world_size}: ranks go from 0 to {world_size - 1}"
        )
    _agree(
        *(store, "world_size", str(world_size)),
        lambda said: (
            f"{info} was given the world size {world_size}, and another worker of this group {said}: give all of "
            "them one world_size"
        ),
    )
    agent.make_endpoint()
    _agree(
        *(store, f"name/{info.name}", str(info.id)),
        lambda said: (
            f"RPC worker name {info.name} is not unique. Workers {said} and {info.id} have it: give each its own"
        ),
    )
    store.set(f"member/{info.id}", json.dumps(own_entry(agent)))
    agent.open([_find(store, rank, agent.options.join_timeout) for rank in range(world_size)])
    agent.start_serving()
    agent.connect_far()


def _agree(store: Any, key: str, value: str, why_not: Callable[[str], str]) -> None:
    """Stores a value under a key. If the key has another value, raises RuntimeError in this process and in members that
    wait for it."""
    said = store.compare_set(key, "", value).decode()
    if said != value:
        store.set("given_up", why_not(said))
        _check_given_up(store)


def _check_given_up(store: Any) -> None:
    if store.check(["given_up"]):
        raise RuntimeError(store.get("given_up").decode())


def _find(store: Any, rank: int, seconds: float) -> Member:
    """Waits for the member of that rank."""
    key, end = f"member/{rank}", time.monotonic() + seconds
    _check_given_up(store)
    while not store.check([key]):
        _check_given_up(store)
        if time.monotonic() > end:
            raise RuntimeError(
                f"the worker of rank {rank} has not joined the group within {seconds:g} s: has it started, "
                "with this world size and init method?"
            )
        with contextlib.suppress(Exception):  # each kind of store has its own timeout error: look again
            store.wait([key], _A_MOMENT)
    return member_of(json.loads(store.get(key)))
