# SPDX-License-Identifier: Apache-2.0
"""Joining and leaving a group whose members call exported functions only."""

from . import _agent, _explain, _exports, _native, _rooms


def init(
    name,
    *,
    rank=-1,
    world_size=None,
    rendezvous="env://",
    timeout=60.0,
    allow=(),
    max_calls=4096,
    when_full=_rooms.WAIT,
    device_maps=None,
):
    """Joins a group of processes of one user. Those on other hosts need ONECOPY_RPC_KEY: see docs/guides/rpc.md.

    Args:
        name: this member's, unique in the group: letters, digits, ``-_:``.
        rank, world_size: this member's number and how many there are: returns when all have come. Without world_size
            members come and go, and each gets the next number if it gives none.
        rendezvous: where the members meet: file:///path, tcp://host:port or env://, as torch.distributed has it.
        timeout: seconds that a call may take, and that joining waits for others. 0: no limit.
        allow: patterns of functions that others may call besides exported ones: ["package.*"].
        max_calls: calls that may be under way to one member.
        when_full: "wait" for room, or "refuse": then a call beyond max_calls throws Busy.
        device_maps: {member: {device here: device there}}. Without them a tensor of a card goes to that card in a member
            of this host that numbers the cards alike; to another one it is an error that names it.
    Throws RuntimeError for a name that is taken, a second call, and a member that does not come in time."""
    from ..distributed import rpc

    options = rpc.TensorPipeRpcBackendOptions(rpc_timeout=timeout, init_method=rendezvous, device_maps=device_maps)
    options.maps_itself = device_maps is None
    if _agent._current is not None:
        raise RuntimeError("RPC is already initialized: this process is a member of a group")
    _native.set_limits(max_calls, when_full)
    _exports.restrict(allow)
    _explain.clear()
    try:
        rpc.init_rpc(name, rank=rank, world_size=world_size, rpc_backend_options=options)
    except BaseException:
        _exports.lift()
        raise


def shutdown(graceful=True, timeout=0.0):
    """Leaves the group. Graceful: when all members of a group of fixed size have called it, and no call of this process is
    under way; a member that has ended is an error, and `timeout` seconds are the limit (0: none)."""
    from ..distributed import rpc

    try:
        rpc.shutdown(graceful=graceful, timeout=timeout)
    finally:
        _exports.lift()


def members():
    """The WorkerInfo of each member that lives, this process among them."""
    agent = _agent.current()
    return [info for info in agent.get_worker_infos() if not agent.member(info.id).has_ended]
