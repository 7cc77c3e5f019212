# SPDX-License-Identifier: Apache-2.0
"""Joining and leaving a group whose members call exported functions only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from . import _agent, _device_maps, _explain, _native, _rooms, functions, meeting, registry
from ._group import WorkerInfo


def init(
    name: str,
    *,
    rank: int = -1,
    world_size: int | None = None,
    rendezvous: str = "env://",
    timeout: float = 60.0,
    join_timeout: float = 60.0,
    allow: Iterable[str] = (),
    max_calls: int = 4096,
    when_full: str = _rooms.WAIT,
    device_maps: dict[str, Any] | None = None,
) -> None:
    """Joins a group of processes of one user. Those on other hosts need ONECOPY_RPC_KEY: see the guide to rpc.

    Args:
        name: this member's, unique in the group: letters, digits, ``-_:``.
        rank, world_size: this member's number and how many there are: returns when all have come. Without world_size
            members come and go, and each gets the next number if it gives none.
        rendezvous: where the members meet: file:///path, tcp://host:port or env://, as torch.distributed has it.
        timeout: seconds that a call may take. 0: no limit.
        join_timeout: seconds that joining waits for other members.
        allow: patterns of functions that others may call besides exported ones: ["package.*"].
        max_calls: calls that may be under way to one member.
        when_full: "wait" for room, or "refuse": then a call beyond max_calls throws Busy.
        device_maps: {member: {device here: device there}}. Without them a tensor of a card goes to that card in a member
            of this host that numbers the cards alike; to another one it is an error that names it.
    Throws RuntimeError for a name that is taken, a second call, and a member that does not come in time."""
    if registry.find() is not None:
        raise RuntimeError("RPC is already initialized: this process is a member of a group")
    options = meeting.Options(
        float(timeout),
        rendezvous,
        float(join_timeout),
        _device_maps.parse(device_maps),
        maps_itself=device_maps is None,
    )
    _native.set_limits(max_calls, when_full)
    functions.restrict(allow)
    _explain.clear()
    try:
        rank, size = meeting.place_in_group(rendezvous, rank, world_size)
        store = meeting.open_store(options, rank, size)
        meeting.start(_agent.Agent(store, name, rank, size or None, options), options)
    except BaseException:
        functions.lift()
        raise


def shutdown(graceful: bool = True, timeout: float = 0.0) -> None:
    """Leaves the group. Graceful: when all members of a group of fixed size have called it, and no call of this process is
    under way; a member that has ended is an error, and `timeout` seconds are the limit (0: none)."""
    try:
        meeting.shutdown(graceful, timeout)
    finally:
        functions.lift()


def members() -> list[WorkerInfo]:
    """Returns the WorkerInfo of each member that lives, this process among them."""
    agent = registry.current()
    return [info for info in agent.get_worker_infos() if not agent.member(info.id).has_ended]
