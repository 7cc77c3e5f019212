# SPDX-License-Identifier: Apache-2.0
"""What this process, or another member, has under way and has done.

Thread safety: all functions may be called concurrently.
"""

from __future__ import annotations

import collections
import time
from typing import Any

from . import devices, registry
from .calling import under_way
from .peers import WorkerInfo
from .registry import verb


def calls(of: Any = None) -> list[dict[str, Any]]:
    """Returns the calls under way: a dict for each that this process, or the member `of`, has made or runs, with its
    trace, function, member, direction and the seconds since it came to each stage."""
    agent = registry.current()
    if of is not None:
        return agent.call_verb(agent.member(of).info.id, ".calls", ())
    found = [_made(one.trace, one.function, one.to, one.times, one.deadline) for one in under_way()]
    for to, _, function, trace, made, sent, deadline in agent.endpoint.calls_made():
        times = {"made": made, **({"sent": sent} if sent else {})}
        found.append(_made(trace, function, agent.get_worker_info(to), times, deadline))
    return found + list(agent.endpoint.calls_running())


def _made(trace: str, function: str, to: WorkerInfo, times: dict[str, float], deadline: float | None) -> dict[str, Any]:
    now = time.monotonic()
    ages = {stage: now - when for stage, when in times.items()}
    remaining = None if deadline is None else deadline - now
    return {
        "trace": trace,
        "function": function,
        "member": to.name,
        "direction": "made",
        "stage": next(reversed(ages)),
        "ages": ages,
        "remaining": remaining,
    }


@verb(".calls")
def _tell_calls(agent: Any, caller: int) -> list[dict[str, Any]]:
    return calls()


def stats(of: Any = None) -> dict[str, Any]:
    """Returns the work of this process, or the member `of`, since it joined its group: tensors by route, sent and
    received, and a histogram of latency for each function, called and served."""
    agent = registry.current()
    if of is not None:
        return agent.call_verb(agent.member(of).info.id, ".stats", ())
    sent: collections.Counter[str] = collections.Counter()
    for number in agent.member_ids():  # those that have ended, too
        if number != agent.info.id:
            sent.update(agent.endpoint.routes(number))
    limits = agent.endpoint.limits().items()
    return {
        "routes": {"sent": dict(sent), "received": {r: n for r, n in devices.received.items() if n}},
        "called": agent.endpoint.times_called(),
        "served": agent.endpoint.times_served(),
        "members": {rank: {"under_way": used, "waits_for_room": waits} for rank, (used, waits) in limits},
    }


@verb(".stats")
def _tell_stats(agent: Any, caller: int) -> dict[str, Any]:
    return stats()
