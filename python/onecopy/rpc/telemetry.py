# SPDX-License-Identifier: Apache-2.0
"""Lines of the log, and ranges of torch.profiler, for calls.

Thread safety: all functions may be called concurrently.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable
from typing import Any

import torch

log = logging.getLogger("onecopy.rpc")
is_logged: Callable[[], bool] = functools.partial(log.isEnabledFor, logging.DEBUG)  # whether calls are lines of the log
is_profiled: Callable[[], bool] = torch.autograd._profiler_enabled  # whether this thread has a profiler


def range_of_call(how: str, function: Any, agent: Any, to: Any) -> contextlib.AbstractContextManager[Any]:
    """Returns a range in the profiler of this thread, if it has one, under the name that torch gives it. For a call
    that is not waited for the range covers its sending."""
    if not is_profiled():
        return contextlib.nullcontext()
    name = torch.jit._builtins._find_builtin(function) or getattr(function, "__qualname__", function)
    return _range(f"rpc_{how}#{name}({agent.info.name} -> {agent.member(to).info.name})")


def range_of_served(name: str, caller: Any) -> contextlib.AbstractContextManager[Any]:
    """Returns a range for a function in the profiler of the thread that runs it, if it has one."""
    return _range(f"onecopy.rpc {name} for {caller.name}") if is_profiled() else contextlib.nullcontext()


def _range(title: str) -> contextlib.AbstractContextManager[Any]:
    made: contextlib.AbstractContextManager[Any] = torch.autograd.profiler.record_function(title)
    return made
