# SPDX-License-Identifier: Apache-2.0
"""Reports of pending and finished calls of this process or another member, log lines, and ranges of torch.profiler.

Thread safety: all functions may be called concurrently.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import logging
from collections.abc import Callable
from typing import Any

import torch

from . import devices, registry
from .registry import verb

log = logging.getLogger("onecopy.rpc")
is_logged: Callable[[], bool] = functools.partial(log.isEnabledFor, logging.DEBUG)  # whether calls are logged
is_profiled: Callable[[], bool] = torch.autograd._profiler_enabled  # whether this thread is profiled


def attempt(function: Callable[..., Any], *arguments: Any) -> None:
    """Calls a function in a thread that must not end. Logs the function's exception."""
    try:
        function(*arguments)
    except BaseException:
        log.exception("a thread of rpc goes on after an error")


def range_of_call(how: str, function: Any, agent: Any, to: Any) -> contextlib.AbstractContextManager[Any]:
    """Returns a range for the profiler of this thread, with torch's name for the range. The range of an asynchronous
    call covers only the sending."""
    if not is_profiled():
        return contextlib.nullcontext()
    name = torch.jit._builtins._find_builtin(function) or getattr(function, "__qualname__", function)
    title = f"rpc_{how}#{name}({agent.info.name} -> {agent.member(to).info.name})"
    made: contextlib.AbstractContextManager[Any] = torch.autograd.profiler.record_function(title)
    return made


# --- reports


def calls(of: Any = None) -> list[dict[str, Any]]:
    """Returns a dict for each pending call that this process, or the member `of`, has made or runs, with the trace,
    function, member and direction of the call, and the seconds since it reached each stage."""
    agent = registry.current()
    if of is not None:
        return agent.call_verb(agent.member(of).info.id, ".calls", ())
    return list(agent.endpoint.calls())


@verb(".calls")
def _tell_calls(agent: Any, caller: int) -> list[dict[str, Any]]:
    return calls()


def stats(of: Any = None) -> dict[str, Any]:
    """Returns the statistics of this process, or of the member `of`, since it joined its group: the numbers of sent and
    received tensors by route, and a latency histogram of each called and each served function."""
    agent = registry.current()
    if of is not None:
        return agent.call_verb(agent.member(of).info.id, ".stats", ())
    sent: collections.Counter[str] = collections.Counter()
    for number in agent.member_ids():  # includes members that have ended
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
