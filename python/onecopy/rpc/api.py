# SPDX-License-Identifier: Apache-2.0
"""The native interface: calls of exported functions, with deadlines that nested calls inherit, cancellation, and a
bound on pending calls.

Thread safety: all functions may be called concurrently.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .. import _core
from . import calling, devices, functions, group, registry
from .device_maps import parse_maps
from .peers import Options, WorkerInfo
from .rendezvous import open_store, shutdown as leave, start
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
    """Joins a group of processes of one user. A group that spans hosts needs ONECOPY_RPC_KEY: see the guide to rpc.

    Args:
        name: the name of this member, unique in the group; letters, digits and ``-_:``.
        rank, world_size: the number of this member and the number of members; init() returns when all members have
            joined. Without world_size, members join and leave at any time, and a member without a rank gets the next
            free one.
        rendezvous: where the members meet: file:///path, tcp://host:port or env://, as torch.distributed has it.
        timeout: the maximum duration of a call in seconds; 0 for no limit.
        join_timeout: the maximum time in seconds to wait for other members.
        allow: patterns of functions that others may call besides exported functions, e.g. ["package.*"].
        max_calls: the maximum number of pending calls to one member.
        when_full: what a call beyond max_calls does: "wait" until another call ends, or "refuse", which raises Busy.
        device_maps: {member: {device here: device there}}. Without a map, a tensor on a GPU goes to the same GPU in a
            member of this host that numbers the GPUs alike; sending the tensor to any other member raises an error.
        transport: how messages go to members on other hosts, the same in all members: "tls", or "ucx", which does not
            encrypt. The default is the value of ONECOPY_RPC_FABRIC, or "tls".

    Raises:
        RuntimeError: the name is taken, this process is a member already, or a member does not join in time.
    """
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
        start(group.Agent(*open_store(options, name, rank, world_size), options))
    except BaseException:
        functions.lift()
        raise


def shutdown(graceful: bool = True, timeout: float = 0.0) -> None:
    """Leaves the group. A graceful shutdown waits until no call of this process is pending and, in a group of fixed
    size, until all members have called shutdown(). Raises RuntimeError if a member has ended or `timeout` seconds have
    passed (0 for no limit)."""
    try:
        leave(graceful, timeout)
    finally:
        functions.lift()


def members() -> list[WorkerInfo]:
    """Returns the WorkerInfo of each living member, including this process."""
    agent = registry.current()
    return [info for info in agent.get_worker_infos() if not agent.member(info.id).has_ended]


def address() -> bytes:
    """Returns the address of this process, which a program in C++ passes to Agent::join(). The address is valid until
    shutdown()."""
    return registry.current().endpoint.address()


def enter(address: bytes) -> WorkerInfo:
    """Connects to the program in C++ whose Agent::address() returned `address`. Its functions are called by the names
    given to Agent::define_plain(), without keyword arguments: call(info, "name", args).

    Raises BadHandle for bytes that are not an address, InvalidArgument if a member has the number of the program, and
    RuntimeError if a member has its name."""
    return registry.current().add_program(address)


# --- calls


def call(to: Any, function: Any, args: Any = (), kwargs: Any = None, *, timeout: float | None = None) -> Any:
    """Returns the result of function(*args, **kwargs), run in the member `to`: a name, an id or a WorkerInfo.

    `function` is exported in that member (see export()), or is the "module:name" of an exported function. Raises the
    exception of the function, as its own class with the traceback in the text; Timeout after `timeout` seconds (0 for
    no limit, None for the timeout of init()), or at the deadline of the call that this thread runs for another member;
    PeerDied if the member has ended; TypeError for a value that cannot be sent."""
    return calling.call(to, function, args, kwargs, timeout, True)


def remote(to: Any, function: Any, args: Any = (), kwargs: Any = None, *, timeout: float | None = None) -> PyRRef:
    """Returns at once a Reference to the result of function(*args, **kwargs), which stays in the member `to`. The
    Reference calls public methods of the result: reference.rpc_sync().method(...)."""
    agent = registry.current()
    member = agent.member(to)
    member.refuse_program()
    seconds, _ = agent.endpoint.native_deadline(timeout)
    return calling.remote(to, function, args, kwargs, seconds)


def current_call() -> Any:
    """Returns the call that this thread runs for another member, or None outside of a call."""
    return _core._current_call()
