# SPDX-License-Identifier: Apache-2.0
"""Measures a group of 32 members of remote calls: what a member needs, and how long its first calls to all others take."""

from __future__ import annotations

import importlib
import os
import pathlib
import tempfile
from contextlib import ExitStack
from statistics import median
from time import perf_counter_ns, sleep
from typing import Any

from effort import Effort
from peers import Peer, Talk
from report import Row, at_most
from rpc_calls import _PACKAGES

_MEMBERS = 32
_TIMEOUT = 600  # seconds, for members of torch on two processors


def member(talk: Talk, package: str, rank: int, rendezvous: str) -> None:
    """Runs a member. It answers "join", "call" with the nanoseconds of an empty call to each other member, "leave", and
    "rest" a second later; each answer has the number of the process's descriptors."""
    import torch

    torch.set_num_threads(1)
    rpc = importlib.import_module(_PACKAGES[package])
    nothing = importlib.import_module("rpc_calls").nothing
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{rendezvous}", rpc_timeout=_TIMEOUT)
    before = _descriptors()

    def call() -> None:
        for other in range(_MEMBERS):
            if other != rank:
                rpc.rpc_sync(f"member{other}", nothing)

    steps = {
        "join": lambda: rpc.init_rpc(f"member{rank}", rank=rank, world_size=_MEMBERS, rpc_backend_options=options),
        "call": call,
        "leave": rpc.shutdown,
        "rest": lambda: sleep(1),
    }
    talk.say("ready")
    for step in talk.questions():
        start = perf_counter_ns()
        steps[step]()
        talk.say({"ns": perf_counter_ns() - start, "descriptors": _descriptors() - before})


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def members(_: Effort) -> Row:
    """Measures the members of each package, all of which do each step at once."""
    row = Row(
        f"Remote calls among {_MEMBERS} processes", "≤ 200 descriptors a process, first calls to all others in ≤ 1.5 s"
    )
    found = {package: _steps_of(package) for package in _PACKAGES}
    ours, theirs = found["onecopy"], found["torch"]
    calls, descriptors = ours["call"]["ns"], ours["call"]["descriptors"]
    row.judge("onecopy: first calls to the 31 others, the slowest member", calls, "ns", at_most(calls, 1.5e9))
    row.judge("onecopy: descriptors of a member, the most", descriptors, "", at_most(descriptors, 200))
    left = ours["rest"]["descriptors"]
    row.judge("onecopy: descriptors that are left a second after shutdown()", left, "", at_most(left, 5))
    row.add("onecopy: init_rpc(), the slowest member", ours["join"]["ns"], "ns")
    row.add("torch: first calls to the 31 others, the slowest member", theirs["call"]["ns"], "ns",
            theirs["call"]["ns"] / calls, "ours")  # fmt: skip
    row.add("torch: descriptors of a member, the most", theirs["call"]["descriptors"], "")
    row.add("torch: descriptors that are left a second after shutdown()", theirs["rest"]["descriptors"], "")
    row.add("torch: init_rpc(), the slowest member", theirs["join"]["ns"], "ns")
    row.add("onecopy: first calls, the median member", ours["call"]["median"], "ns")
    row.note("all members call all others at once; descriptors are those beyond the imports")
    return row


def _steps_of(package: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        given = {"package": package, "rendezvous": str(pathlib.Path(folder) / "members")}
        peers = [stack.enter_context(Peer(member, rank=rank, **given)) for rank in range(_MEMBERS)]
        for peer in peers:
            peer.hear(_TIMEOUT)  # it has imported the package
        for step in ("join", "call", "leave", "rest"):
            for peer in peers:
                peer.tell(step)
            answers = [peer.hear(_TIMEOUT) for peer in peers]
            found[step] = {
                "ns": max(answer["ns"] for answer in answers),
                "median": median(answer["ns"] for answer in answers),
                "descriptors": max(answer["descriptors"] for answer in answers),
            }
    return found
