# SPDX-License-Identifier: Apache-2.0
"""The route that a tensor would take to a member, and the routes that tensors have taken so far."""

import collections

import torch

from . import _devices, _modes, _native, _routes, registry, telemetry
from .registry import handler, handlers


def explain(to, tensor):
    """The Route that `tensor`, or borrow(tensor) or move(tensor), takes as an argument of a call to the member `to`: its
    name, and the reason. Nothing is sent but, for a tensor on a card, a question about the other's cards.

    Throws RuntimeError for a tensor on a card that no device map sends anywhere."""
    agent = registry.current()
    member = agent.member(to)
    tensor = tensor.alias() if isinstance(tensor, _modes.MarkedTensor) else tensor
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"explain() takes a tensor, not a {type(tensor).__name__}")
    if member.info.id == agent.info.id:
        return _routes.choose(_routes.source_of(tensor), _routes.Target("cpu", is_here=True))
    if member.is_far:
        _modes.check_far([tensor], member.info)
        return _routes.choose(_routes.source_of(tensor), _routes.Target("cpu", is_far=True))
    target = _devices.targets([tensor], agent._map_to(member), agent.info.name, member.info.name)[0]
    card = _card(tensor.device)
    return _routes.choose(_routes.source_of(tensor, card), _target(agent, member, target, card))


def _target(agent, member, target, card):
    if target == "cpu":
        return _routes.Target("cpu")
    there, can_reach = agent.call(member.info.id, "card", (target, card)).wait()
    return _routes.Target(there, can_reach=can_reach)


def _card(device):
    """The UUID of a card, by which all processes know it; None for the CPU."""
    return None if device.type == "cpu" else str(torch.cuda.get_device_properties(device).uuid)


@handler(handlers, "card")
def _about_card(agent, caller, value):
    """(UUID of a card of this process, whether it reads the memory of the card with that UUID)."""
    target, card = value
    here = torch.device(target)
    there = [i for i in range(torch.cuda.device_count()) if _card(torch.device("cuda", i)) == card]
    can_reach = None if not there or there[0] == here.index else torch.cuda.can_device_access_peer(here.index, there[0])
    return _card(here), bool(there) if can_reach is None else can_reach


def stats(of=None):
    """The work of this process, or the member `of`, since it joined its group: tensors by route, sent and received,
    and a histogram of latency for each function, called and served."""
    if of is not None:
        return registry.current().call(of, "stats", None).wait()
    return {
        "routes": {"sent": dict(_sent()), "received": _routes.received.report()},
        "called": telemetry.reports(telemetry.called),
        "served": telemetry.reports(telemetry.served),
        "members": {
            rank: {"under_way": used, "waits_for_room": waits} for rank, (used, waits) in _native.rooms().items()
        },
    }


def _sent():
    """The tensors of all calls and answers, by route."""
    agent, sent = registry.current(), collections.Counter()
    for number in (*agent._members, *agent._programs):  # those that have ended, too
        if number != agent.info.id:
            sent.update(agent.node.routes(number))
    return sent


@handler(handlers, "stats")
def _tell_stats(agent, caller, value):
    return stats()


def clear():
    telemetry.clear()
    _routes.received.clear()
