# SPDX-License-Identifier: Apache-2.0
"""Calls between two processes, beside torch.distributed.rpc in the same run."""

from __future__ import annotations

import contextlib
import importlib
import pathlib
import tempfile
from time import perf_counter_ns
from typing import Any

from effort import Effort
from peers import Peer, Talk
from report import Row, at_most
from samples import Samples

_ROUNDS = 21
_CALLS = 200
_PACKAGES = {"onecopy": "onecopy.distributed.rpc", "torch": "torch.distributed.rpc"}


def nothing() -> None:
    """The empty call."""


def echo(value: Any) -> Any:
    return value


def member(talk: Talk, package: str, rank: int, rendezvous: str) -> None:
    """Rank 0 answers (what, count) with the nanoseconds that one of so many calls took; rank 1 is called."""
    import torch

    torch.set_num_threads(1)
    rpc = importlib.import_module(_PACKAGES[package])
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{rendezvous}", rpc_timeout=0)
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)
    # Named by the module that both processes import, and not by the program that runs it.
    here = importlib.import_module("rpc_calls")
    work = {"empty": (here.nothing, ()), "echo": (here.echo, (torch.ones(1),))}
    talk.say("ready")
    for what, count in talk.questions() if rank == 0 else ():
        function, arguments = work[what]
        start = perf_counter_ns()
        for _ in range(count):
            rpc.rpc_sync("worker1", function, args=arguments)
        talk.say((perf_counter_ns() - start) / count)
    rpc.shutdown()


def _measure(what: str, effort: Effort) -> dict[str, Samples]:
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        callers = {}
        for package in _PACKAGES:
            pair = [Peer(member, package=package, rank=rank, rendezvous=str(pathlib.Path(directory) / package))
                    for rank in (0, 1)]  # fmt: skip
            for peer in reversed(pair):  # the caller is told of the end first; the other waits for it in shutdown()
                stack.enter_context(peer)
            for peer in pair:
                peer.hear()
            callers[package] = pair
        found = {package: Samples() for package in _PACKAGES}
        for _ in range(effort.rounds(_ROUNDS)):
            for package, (caller, _) in callers.items():
                found[package].append(caller.ask((what, _CALLS)))
        return found


def _row(what: str, title: str, effort: Effort) -> Row:
    row = Row(title, "not slower than torch.distributed.rpc in the same run")
    found = _measure(what, effort)
    mine, theirs = found["onecopy"], found["torch"]
    row.judge_ratio("onecopy", mine.median(), "ns", "torch", at_most(mine.ratio_to(theirs), 1.0))
    row.add("torch", theirs.median(), "ns")
    return row


def empty(effort: Effort) -> Row:
    return _row("empty", "rpc_sync of a function that does nothing", effort)


def echoed(effort: Effort) -> Row:
    return _row("echo", "rpc_sync that sends a tensor of one float there and back", effort)
