# SPDX-License-Identifier: Apache-2.0
"""Measures a tensor of 16 MiB to another process and an int back, against one memcpy of 16 MiB."""

from __future__ import annotations

import ctypes
import dataclasses
import mmap
import os
import statistics
from collections.abc import Callable
from typing import Any

import contenders
from contenders import Contender
from effort import Effort
from hand_over import follow
from peers import Peer, Talk
from report import Row, at_most
from samples import Samples, time_ns

_BYTES = 16 << 20
_SMALL_BYTES = 64
_AT_ONCE = 16
_ROUNDS = 31

# --- what the processes do --------------------------------------------------------------------------


class Sender:
    """Measures in the process that sends. Its objects are freed on both sides unless `keeps`."""

    def __init__(self, contender: Contender, keeps: bool) -> None:
        import torch

        # torch's other threads spin for a while after each operation, and would occupy the processor of the other
        # process.
        torch.set_num_threads(1)
        self._torch = torch
        self._there, self._back = contender.queues(2)
        role = keep_all if keeps else follow
        arguments = (self._there, self._back, contender.strategy, os.sched_getaffinity(0))
        self._follower = contender.context().Process(target=role, args=arguments)
        self._follower.start()
        self._kept: list[Any] | None = [] if keeps else None
        self._warm = bytearray(_BYTES)
        self._scratch = self.fresh()

    def exchange(self, tensor: Any) -> float:
        def work() -> None:
            self._there.put(tensor)
            self._back.get()

        ns = time_ns(work)
        if self._kept is not None:
            self._kept.append(tensor)
        return ns

    def fresh(self) -> Any:
        """Returns a newly written tensor in memory of torch."""
        return self._torch.empty(_BYTES // 4).fill_(1)

    def send_fresh(self) -> float:
        return self.exchange(self.fresh())

    def send_own(self) -> float:
        """Sends a tensor that onecopy has allocated."""
        return self._send_allocated(_BYTES)

    def send_own_small(self) -> float:
        return self._send_allocated(_SMALL_BYTES)

    def _send_allocated(self, nbytes: int) -> float:
        """Returns the median of several sends of tensors that were written before, with both processes awake. The
        caches are in the state after a write of 16 MiB for each."""
        import onecopy

        tensors = []
        for _ in range(_AT_ONCE):
            tensors.append(onecopy.empty((nbytes // 4,), "float32").torch().fill_(1))
            self._scratch.fill_(1)
        for _ in range(100):
            self.exchange(7)
        return statistics.median(map(self.exchange, tensors))

    def copy_warm(self) -> float:
        return self._copy_to((ctypes.c_char * _BYTES).from_buffer(self._warm))

    def copy_fresh(self) -> float:
        memory = mmap.mmap(-1, _BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return self._copy_to((ctypes.c_char * _BYTES).from_buffer(memory))

    def _copy_to(self, target: Any) -> float:
        source = self.fresh()
        return time_ns(lambda: ctypes.memmove(target, source.data_ptr(), _BYTES))

    def close(self) -> None:
        self._there.put(None)
        self._follower.join()


def lead(talk: Talk, contender: dict[str, Any], keeps: bool) -> None:
    """Answers the names of the methods above with their nanoseconds."""
    sender = Sender(Contender(**contender), keeps)
    talk.say(sender.send_fresh())
    for question in talk.questions():
        talk.say(getattr(sender, question)())
    sender.close()


def keep_all(there: Any, back: Any, strategy: str | None, usable: set[int]) -> None:
    """Answers each object with an int and keeps the object, until None arrives."""
    kept = []
    while (tensor := there.get()) is not None:
        kept.append(tensor)
        back.put(7)


# --- the row ----------------------------------------------------------------------------------------


def _peer(contender: Contender, keeps: bool = False) -> Peer:
    return Peer(lead, contender=dataclasses.asdict(contender), keeps=keeps)


def _steady(row: Row, rounds: int) -> None:
    fd, fs = contenders.TORCH_FD, contenders.TORCH_FS
    with _peer(contenders.OURS) as ours, _peer(fd) as by_fd, _peer(fs) as by_fs:
        asked: dict[str, Callable[[], float]] = {
            "memcpy of 16 MiB into warm memory": lambda: ours.ask("copy_warm"),
            "a fresh tensor of torch, steady state": lambda: ours.ask("send_fresh"),
            fd.name: lambda: by_fd.ask("send_fresh"),
            fs.name: lambda: by_fs.ask("send_fresh"),
            "64 bytes allocated by onecopy": lambda: ours.ask("send_own_small"),
            "16 MiB allocated by onecopy": lambda: ours.ask("send_own"),
        }
        samples = _ask_all([ours, by_fd, by_fs], asked, rounds)
    copy, fresh, fd_samples, fs_samples, small, own = samples.values()
    names = list(samples)
    row.add(names[0], copy.median(), "ns")
    bound = at_most(fresh.ratio_to(copy), 1.3)
    row.judge_ratio(names[1], fresh.median(), "ns", "memcpy", bound)
    for name, values in zip(names[2:4], (fd_samples, fs_samples), strict=True):
        row.add(name, values.median(), "ns", values.ratio_to(copy), "memcpy")
    row.add(names[4], small.median(), "ns")
    bound = at_most(own.ratio_to(small), 1.1)
    row.judge_ratio(names[5], own.median(), "ns", "64 bytes", bound)


def _first_touch(row: Row, rounds: int) -> None:
    with _peer(contenders.OURS, keeps=True) as ours:
        asked = {
            "memcpy of 16 MiB into fresh anonymous memory": lambda: ours.ask("copy_fresh"),
            "a fresh tensor of torch, first touch: none is freed": lambda: ours.ask("send_fresh"),
        }
        samples = _ask_all([ours], asked, rounds)
    names = list(samples)
    copy, first = samples.values()
    row.add(names[0], copy.mean(), "ns")
    bound = at_most(first.mean() / copy.mean(), 1.3)
    row.judge_ratio(names[1], first.mean(), "ns", "fresh memory", bound)
    row.note("first touch: means, as memory is made for more than one tensor at a time")


def _ask_all(peers: list[Peer], asked: dict[str, Callable[[], float]], rounds: int) -> dict[str, Samples]:
    for peer in peers:
        peer.hear()
    samples = {name: Samples() for name in asked}
    for _ in range(rounds):
        for name, ask in asked.items():
            samples[name].append(ask())
    return samples


def large(effort: Effort) -> Row:
    row = Row(
        "A tensor of 16 MiB there, an int back",
        "steady state within 1.3 x one warm memcpy, first touch within 1.3 x the same copy into fresh "
        "memory; nothing when it was allocated by onecopy (within 10 % of 64 bytes)",
    )
    _steady(row, effort.rounds(_ROUNDS))
    _first_touch(row, effort.rounds(_ROUNDS))
    return row
