# SPDX-License-Identifier: Apache-2.0
"""Stages of calls, lines of the log, and ranges of torch.profiler.

Thread safety: all functions and members may be called concurrently, except where a class says otherwise.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any

import torch

log = logging.getLogger("onecopy.rpc")


def is_logged() -> bool:
    """Returns whether calls are lines of the log."""
    return log.isEnabledFor(logging.DEBUG)


class Stages:
    """The times at which a call came to each stage. One thread at a time writes."""

    __slots__ = ("times",)

    def __init__(self, stage: str) -> None:
        self.times = {stage: time.monotonic()}

    def reach(self, stage: str) -> None:
        """Notes that the call is at that stage now."""
        self.times[stage] = time.monotonic()

    @property
    def last(self) -> str:
        """The stage that the call came to last."""
        return next(reversed(self.times))

    def ages(self, now: float) -> dict[str, float]:
        """Returns {stage: seconds since it was reached}."""
        return {stage: now - when for stage, when in self.times.items()}


# --- torch.profiler

_NOTHING = contextlib.nullcontext()

# Whether this thread has a profiler.
is_profiled: Callable[[], bool] = torch.autograd._profiler_enabled


def range_of_call(how: str, function: Any, agent: Any, to: Any) -> contextlib.AbstractContextManager[Any]:
    """Returns a range in the profiler of this thread, if it has one, under the name that torch gives it. For a call that is
    not waited for the range covers its sending."""
    if not is_profiled():
        return _NOTHING
    name = torch.jit._builtins._find_builtin(function) or getattr(function, "__qualname__", function)
    title = f"rpc_{how}#{name}({agent.info.name} -> {agent.member(to).info.name})"
    made: contextlib.AbstractContextManager[Any] = torch.autograd.profiler.record_function(title)
    return made


def range_of_served(name: str, caller: Any) -> contextlib.AbstractContextManager[Any]:
    """Returns a range for a function in the profiler of the thread that runs it, if it has one."""
    if not is_profiled():
        return _NOTHING
    made: contextlib.AbstractContextManager[Any] = torch.autograd.profiler.record_function(
        f"onecopy.rpc {name} for {caller.name}"
    )
    return made
