# SPDX-License-Identifier: Apache-2.0
"""The native interface: calls of exported functions, with deadlines that travel along, cancelling, and a bound on the
calls under way.

Thread safety: all functions may be called concurrently.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .. import _core
from . import calling, devices, functions, group, meeting, registry
from .device_maps import parse_maps
from .peers import Options, WorkerInfo
from .rref import PyRRef

# --- joining and leaving


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
    when_full: str = "wait",
    device_maps: dict[str, Any] | None = None,
    transport: str = "",
) -> None:
    """Joins a group of processes of one user. Processes on other hosts need ONECOPY_RPC_KEY: see the guide to rpc.

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
        device_maps: {member: {device here: device there}}. Without them a tensor of a card goes to that card in a
            member of this host that numbers the cards alike; to another one it is an error that names it.
        transport: how messages go to members on other hosts, the same in all members: "tls", or "ucx", which does not
            encrypt. The default is what ONECOPY_RPC_FABRIC says, or "tls".
    Throws RuntimeError for a name that is taken, a second call, and a member that does not come in time."""
    if registry.this_agent is not None:
        raise RuntimeError("RPC is already initialized: this process is a member of a group")
    if when_full not in ("wait", "refuse"):
        raise ValueError(f"when_full is 'wait' or 'refuse', not {when_full!r}")
    if max_calls < 1:
        raise ValueError(f"max_calls is the number of calls that may be under way to one member, not {max_calls}")
    options = Options(
        float(timeout),
        rendezvous,
        float(join_timeout),
        parse_maps(device_maps),
        maps_itself=device_maps is None,
        max_calls=max_calls,
        refuses_calls=when_full == "refuse",
        transport=transport,
    )
    functions.restrict(allow)
    devices.received.update(pull=0, staged=0)
    try:
        meeting.start(group.Agent(*meeting.open_store(options, name, rank, world_size), options))
    except BaseException:
        functions.lift()
        raise


def shutdown(graceful: bool = True, timeout: float = 0.0) -> None:
    """Leaves the group. Graceful: when all members of a group of fixed size have called it, and no call of this process
    is under way; a member that has ended is an error, and `timeout` seconds are the limit (0: none)."""
    try:
        meeting.shutdown(graceful, timeout)
    finally:
        functions.lift()


def members() -> list[WorkerInfo]:
    """Returns the WorkerInfo of each member that lives, this process among them."""
    agent = registry.current()
    return [info for info in agent.get_worker_infos() if not agent.member(info.id).has_ended]


def address() -> bytes:
    """Returns the bytes by which a program in C++ finds this process: Agent::join() takes them. The address is good
    until shutdown()."""
    return registry.current().endpoint.address()


def enter(address: bytes) -> WorkerInfo:
    """Enters the program in C++ of that address, which Agent::address() gave. From now on it can be called:
    call(info, "name", args), with the names that Agent::define_plain() gave, and without keyword arguments.

    Throws BadHandle for bytes that are not an address, InvalidArgument if its number is that of a member, RuntimeError
    if its name is."""
    return registry.current().add_program(address)


# --- calls


def call(to: Any, function: Any, args: Any = (), kwargs: Any = None, *, timeout: float | None = None) -> Any:
    """Returns the result of function(*args, **kwargs), run in the member `to`: a name, an id or a WorkerInfo.

    `function` is exported there (see export()), or "module:name" of one that is. Throws what it throws, as its own
    class with the place in the text; Timeout after `timeout` seconds (0: no limit; None: that of init()), or when the
    call that this thread runs for another is late; PeerDied when the member has ended; TypeError for a value that
    cannot cross."""
    return calling.call(to, function, args, kwargs, timeout, True)


def remote(to: Any, function: Any, args: Any = (), kwargs: Any = None, *, timeout: float | None = None) -> PyRRef:
    """Returns a Reference, at once, to the result of function(*args, **kwargs), which stays in the member `to`. Methods
    of the value whose names do not begin with an underscore are called through it: reference.rpc_sync().method(...)."""
    agent = registry.current()
    member = agent.member(to)
    member.refuse_program()
    seconds, _ = agent.endpoint.native_deadline(timeout)
    return calling.remote(to, function, args, kwargs, seconds)


def current_call() -> Any:
    """Returns the call that this thread runs for another member; None outside of a call."""
    return _core._current_call()
