# SPDX-License-Identifier: Apache-2.0
"""Ranges of calls in torch.profiler, under the names that torch gives them."""

import contextlib

import torch

_NOTHING = contextlib.nullcontext()


def are_recorded():
    """Whether this thread has a profiler."""
    return torch.autograd._profiler_enabled()


def of_call(how, function, agent, to):
    """A range in the profiler of this thread, if it has one. Of a call that is not waited for: its sending."""
    if not are_recorded():
        return _NOTHING
    name = torch.jit._builtins._find_builtin(function) or getattr(function, "__qualname__", function)
    return torch.autograd.profiler.record_function(
        f"rpc_{how}#{name}({agent.info.name} -> {agent.member(to).info.name})"
    )


def of_served(name, caller):
    """The function of a call, in the profiler of the thread that runs it, if it has one."""
    if not are_recorded():
        return _NOTHING
    return torch.autograd.profiler.record_function(f"onecopy.rpc {name} for {caller.name}")
