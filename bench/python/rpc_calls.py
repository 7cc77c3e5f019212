# SPDX-License-Identifier: Apache-2.0
"""Calls between two processes, beside torch.distributed.rpc in the same run."""

from __future__ import annotations

import contextlib
import importlib
import pathlib
import tempfile
from collections.abc import Callable
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
    ways = _ways(rpc, here)
    talk.say("ready")
    for what, count in talk.questions() if rank == 0 else ():
        start = perf_counter_ns()
        ways[what](count)
        talk.say((perf_counter_ns() - start) / count)
    rpc.shutdown()


def _ways(rpc: Any, here: Any) -> dict[str, Callable[[int], None]]:
    """By name: so many calls of one kind."""
    import torch

    small, large = torch.ones(1), torch.ones(1 << 20)

    def sync(function: Any, arguments: tuple[Any, ...] = ()) -> Callable[[int], None]:
        def calls(count: int) -> None:
            for _ in range(count):
                rpc.rpc_sync("worker1", function, args=arguments)

        return calls

    def waited(count: int) -> None:
        for _ in range(count):
            rpc.rpc_async("worker1", here.nothing).wait()

    def pipelined(count: int) -> None:
        futures = [rpc.rpc_async("worker1", here.nothing) for _ in range(count)]
        for future in futures:
            future.wait()

    return {"empty": sync(here.nothing), "echo": sync(here.echo, (small,)), "large": sync(here.echo, (large,)),
            "waited": waited, "pipelined": pipelined}  # fmt: skip


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


def _row(what: str, title: str, promise: str, effort: Effort, most_ns: float | None, most_of_torch: float) -> Row:
    row = Row(title, promise)
    found = _measure(what, effort)
    mine, theirs = found["onecopy"], found["torch"]
    if most_ns is not None:
        row.judge("onecopy", mine.median(), "ns", at_most(mine.median(), most_ns))
    row.judge_ratio("onecopy, beside torch", mine.median(), "ns", "torch", at_most(mine.ratio_to(theirs), most_of_torch))
    row.add("torch", theirs.median(), "ns")
    return row


def empty(effort: Effort) -> Row:
    return _row("empty", "rpc_sync of a function that does nothing, back to back",
                "4 µs, and a thirtieth of torch.distributed.rpc in the same run", effort, 4000, 1 / 30)  # fmt: skip


def waited(effort: Effort) -> Row:
    return _row("waited", "rpc_async(...).wait() of a function that does nothing", "7 µs", effort, 7000, 1.0)


def echoed(effort: Effort) -> Row:
    return _row("echo", "rpc_sync that sends a tensor of one float there and back",
                "6 µs, and a thirtieth of torch.distributed.rpc in the same run", effort, 6000, 1 / 30)  # fmt: skip


def echoed_large(effort: Effort) -> Row:
    return _row("large", "rpc_sync that sends 4 MB there and back, copied each way", "half of torch.distributed.rpc", effort,
                None, 0.5)  # fmt: skip


def pipelined(effort: Effort) -> Row:
    return _row("pipelined", "rpc_async of a function that does nothing, 200 at a time", "50,000 a second", effort, 20_000, 1.0)
