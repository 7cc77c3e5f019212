# SPDX-License-Identifier: Apache-2.0
"""Measures calls between two processes on separate processors, against torch.distributed.rpc.

The members are pinned after their threads were started, since two members that spin on one processor would measure its
scheduler. Pinning makes torch faster, too. Members that exchange large bytes are not pinned: several threads copy these, and a
member on one processor would measure calls that no program makes."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import mmap
import os
import pathlib
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
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
    """Does nothing, for the empty call."""


def echo(value: Any) -> Any:
    return value


def tripled(value: Any) -> Any:
    return value * 3


@functools.cache
def sixty_four_mib(kind: str) -> Any:
    """Returns 64 MiB: a tensor, bytes, a str or a bytearray."""
    import torch

    size = 64 << 20
    made = {"tensor": lambda: torch.ones(size, dtype=torch.uint8), "bytes": lambda: b"x" * size,
            "str": lambda: "x" * size, "bytearray": lambda: bytearray(size)}  # fmt: skip
    return made[kind]()


def ignored(value: Any) -> None:
    """Takes a value, for calls that send one."""


def lent_echo(value: Any) -> Any:
    import onecopy.rpc

    return onecopy.rpc.borrow(value)


def _pin(rank: int) -> None:
    """Pins all threads of this process, including the threads of torch's agent."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        return
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), {usable[rank]})


def member(talk: Talk, package: str, rank: int, rendezvous: str, spin: str, is_pinned: bool = True) -> None:
    """Runs a member: rank 0 answers (what, count) with the nanoseconds per call, and rank 1 is called."""
    if spin:
        os.environ["ONECOPY_RPC_SPIN_US"] = spin
    import torch

    torch.set_num_threads(1)
    rpc = importlib.import_module(_PACKAGES[package])
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{rendezvous}", rpc_timeout=0)
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)
    # Functions need the name of the module that both processes import, and not the name of the running program.
    here = importlib.import_module("rpc_calls")
    ways = _ways(rpc, here)
    if package == "onecopy":
        importlib.import_module("onecopy.rpc").export(here.lent_echo)
    if is_pinned:
        _pin(rank)
    talk.say("ready")
    for what, count in talk.questions() if rank == 0 else ():
        start = perf_counter_ns()
        took = ways[what](count)
        talk.say((took or perf_counter_ns() - start) / count)
    rpc.shutdown()


def _after_pauses(call: Callable[[], object], count: int) -> int:
    """Returns the nanoseconds of `count` calls, each made after the other side has fallen asleep."""
    took = 0
    for _ in range(count):
        time.sleep(0.0005)
        start = perf_counter_ns()
        call()
        took += perf_counter_ns() - start
    return took


def sleeper(talk: Talk, rank: int, path: str) -> None:
    """Exchanges two words in shared memory by futex, where both sides sleep. Rank 0 leads and answers as member() does;
    rank 1 follows until it is killed."""
    _pin(rank)
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 4096) as memory:
        words = (ctypes.c_uint32 * 1024).from_buffer(memory)
        there, back = (ctypes.c_void_p(ctypes.addressof(words) + at) for at in (0, 256))
        system, number = ctypes.CDLL(None).syscall, 0

        def wake(at: int, word: ctypes.c_void_p) -> None:
            words[at] = number
            system(202, word, 1, 1, None, None, 0)

        def wait(at: int, word: ctypes.c_void_p) -> None:
            while words[at] != number:
                system(202, word, 0, number - 1, None, None, 0)

        def exchange() -> None:
            nonlocal number
            number += 1
            wake(0, there)
            wait(64, back)

        talk.say("ready")
        while rank == 1:
            number += 1
            wait(0, there)
            wake(64, back)
        for _, count in talk.questions():
            talk.say(_after_pauses(exchange, count) / count)
        del words


def _ways(rpc: Any, here: Any) -> dict[str, Callable[[int], int | None]]:
    """Returns, by name, functions that make a number of calls of one kind. A function returns the nanoseconds that its
    calls took if it spends time on other things, too."""
    import torch

    small, large, other = torch.ones(1), torch.ones(1 << 20), torch.ones(1 << 20)

    def sync(function: Any, arguments: tuple[Any, ...] = ()) -> Callable[[int], None]:
        def calls(count: int) -> None:
            for _ in range(count):
                rpc.rpc_sync("worker1", function, args=arguments)

        return calls

    def sent(kind: str) -> Callable[[int], int]:
        return lambda count: _after_a_call(sync(here.ignored, (here.sixty_four_mib(kind),)), count)

    def returned(kind: str) -> Callable[[int], int]:
        return lambda count: _after_a_call(sync(here.sixty_four_mib, (kind,)), count)

    kinds = ("tensor", "bytes", "str", "bytearray")

    def waited(count: int) -> None:
        for _ in range(count):
            rpc.rpc_async("worker1", here.nothing).wait()

    def pipelined(count: int) -> None:
        futures = [rpc.rpc_async("worker1", here.nothing) for _ in range(count)]
        for future in futures:
            future.wait()

    def copied(count: int) -> None:
        for _ in range(count):
            other.copy_(large)

    def borrowed(count: int) -> None:
        import onecopy.rpc as native

        for _ in range(count):
            native.call("worker1", here.lent_echo, args=(native.borrow(large),))

    def asleep(count: int) -> int:
        return _after_pauses(lambda: rpc.rpc_sync("worker1", here.nothing), count)

    def fetched(count: int) -> None:
        for _ in range(count):
            rpc.remote("worker1", here.nothing).to_here()

    def backward(count: int) -> int:
        """Returns the nanoseconds of the backward passes, without the calls that come before each pass."""
        autograd, took = importlib.import_module(rpc.__name__.replace(".rpc", ".autograd")), 0
        leaf = torch.ones(4, requires_grad=True)
        for _ in range(count):
            with autograd.context() as context:
                loss = rpc.rpc_sync("worker1", here.tripled, args=(leaf * 2,)).sum()
                start = perf_counter_ns()
                autograd.backward(context, [loss])
                took += perf_counter_ns() - start
        return took

    def plain_backward(count: int) -> int:
        took, leaf = 0, torch.ones(4, requires_grad=True)
        for _ in range(count):
            loss = (leaf * 2 * 3).sum()
            start = perf_counter_ns()
            loss.backward()
            took += perf_counter_ns() - start
        return took

    steps: dict[str, Callable[[], None]] = {}

    def trained(where: str) -> Callable[[int], int]:
        """Returns a function that makes steps of a recurrent network, which it makes at the first call."""

        def calls(count: int) -> int:
            network = importlib.import_module("rpc_rnn")
            if where not in steps:
                steps[where] = network.across(rpc) if where == "across" else network.alone()
            return _after_a_call(lambda times: [steps[where]() for _ in range(times)], count)

        return calls

    return {"trained": trained("across"), "trained alone": trained("alone"), "fetched": fetched, "backward": backward, "plain backward": plain_backward, "asleep": asleep, "empty": sync(here.nothing), "echo": sync(here.echo, (small,)),
            "large": sync(here.echo, (large,)), "waited": waited, "pipelined": pipelined, "copied": copied,
            "borrowed": borrowed, **{f"{kind} sent": sent(kind) for kind in kinds},
            **{f"{kind} returned": returned(kind) for kind in kinds}}  # fmt: skip


def _after_a_call(calls: Callable[[int], object], count: int) -> int:
    """Returns the nanoseconds of calls that come right after a call: the kind that is measured first would pay for the
    memory of the others."""
    calls(1)
    start = perf_counter_ns()
    calls(count)
    return perf_counter_ns() - start


def _measure(
    what: str,
    effort: Effort,
    count: int = _CALLS,
    beside: str = "",
    spin: str = "",
    is_pinned: bool = True,
    of_torch: int = _ROUNDS,
) -> dict[str, Samples]:
    """Returns the samples by package, and the samples of `beside` in onecopy's caller or among the sleepers. Torch takes
    part in the first `of_torch` rounds."""
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        callers = {}
        for package in _PACKAGES:
            path = str(pathlib.Path(directory) / package)
            given = {"package": package, "rendezvous": path, "spin": spin, "is_pinned": is_pinned}
            pair = [Peer(member, rank=rank, **given) for rank in (0, 1)]
            for peer in reversed(pair):  # ends the caller first, for which the other member waits
                stack.enter_context(peer)
            for peer in pair:
                peer.hear()
            callers[package] = pair
        asked = {package: (pair[0], what) for package, pair in callers.items()}
        if beside == "futex":
            asked[beside] = _sleepers(stack, pathlib.Path(directory) / "words"), what
        elif beside:
            asked[beside] = callers["onecopy"][0], beside
        found = {name: Samples() for name in asked}
        for number in range(effort.rounds(_ROUNDS)):
            for name, (peer, question) in asked.items():
                if name == "torch" and number >= of_torch:
                    continue
                others = [one for pair in callers.values() if peer not in pair for one in pair]
                with _stopped(others):
                    found[name].append(peer.ask((question, count)))
        return found


@contextlib.contextmanager
def _stopped(peers: list[Peer]) -> Iterator[None]:
    """Stops processes for the block: the threads of torch's agent poll all the time, on the same processors."""
    for peer in peers:
        os.kill(peer.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for peer in peers:
            os.kill(peer.pid, signal.SIGCONT)


def _sleepers(stack: contextlib.ExitStack, path: pathlib.Path) -> Peer:
    path.write_bytes(bytes(4096))
    pair = [Peer(sleeper, rank=rank, path=str(path)) for rank in (0, 1)]
    for peer in pair:
        stack.enter_context(peer)
        peer.hear()
    stack.callback(pair[1].kill)  # rank 1 follows until it is killed
    return pair[0]


def _row(what: str, title: str, promise: str, effort: Effort, most_ns: float | None, most_of_torch: float) -> Row:
    row = Row(title, promise)
    found = _measure(what, effort)
    mine, theirs = found["onecopy"], found["torch"]
    if most_ns is not None:
        row.judge("onecopy", mine.median(), "ns", at_most(mine.median(), most_ns))
    row.judge_ratio(
        "onecopy, beside torch", mine.median(), "ns", "torch", at_most(mine.ratio_to(theirs), most_of_torch)
    )
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
    row = Row("rpc_sync that sends 4 MB there and back, copied each way; onecopy.rpc.call that lends it",
              "1.3 x as long as copying it twice, and half of torch.distributed.rpc; 15 µs lent")  # fmt: skip
    found = _measure("large", effort, 20, beside="copied")
    mine, theirs, copy = found["onecopy"], found["torch"], found["copied"]
    row.judge_ratio("onecopy, beside two copies", mine.median(), "ns", "copies", at_most(mine.ratio_to(copy) / 2, 1.3))
    row.judge_ratio("onecopy, beside torch", mine.median(), "ns", "torch", at_most(mine.ratio_to(theirs), 0.5))
    row.add("torch", theirs.median(), "ns")
    row.add("Tensor.copy_ of 4 MB", copy.median(), "ns")
    lent = _lent(effort)
    row.judge("onecopy, lent each way", lent.median(), "ns", at_most(lent.median(), 15_000))
    return row


def _lent(effort: Effort) -> Samples:
    with contextlib.ExitStack() as stack:
        path = str(pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory())) / "onecopy")
        pair = [Peer(member, package="onecopy", rank=rank, rendezvous=path, spin="") for rank in (0, 1)]
        for peer in reversed(pair):
            stack.enter_context(peer)
        for peer in pair:
            peer.hear()
        return Samples([pair[0].ask(("borrowed", _CALLS)) for _ in range(effort.rounds(_ROUNDS))])


def large_bytes(effort: Effort) -> Row:
    row = Row("rpc_sync that sends, and that returns, 64 MiB of bytes, str or bytearray",
              "1.5 x as long as a tensor of that size")  # fmt: skip
    for way in ("sent", "returned"):
        for kind in ("bytes", "str", "bytearray"):
            # A call of torch with such bytes takes 0.3 to 0.4 s, and only stands beside what is judged.
            found = _measure(f"{kind} {way}", effort, 3, beside=f"tensor {way}", is_pinned=False, of_torch=2)
            mine, tensor = found["onecopy"], found[f"tensor {way}"]
            row.judge_ratio(f"{kind} {way}", mine.median(), "ns", "tensor", at_most(mine.ratio_to(tensor), 1.5))
            row.add(f"{kind} {way}, torch", found["torch"].median(), "ns")
    return row


def fetched(effort: Effort) -> Row:
    return _row("fetched", "remote(...).to_here() of a function that does nothing",
                "a thirtieth of torch.distributed.rpc in the same run", effort, None, 1 / 30)  # fmt: skip


def backward(effort: Effort) -> Row:
    row = Row("a backward pass of a tiny tensor through another member", "a plain one + 15 µs + two empty calls")
    found = _measure("backward", effort, beside="plain backward")
    mine, theirs, plain = found["onecopy"], found["torch"], found["plain backward"]
    call = _measure("empty", effort)["onecopy"]
    most = plain.median() + 15_000 + 2 * call.median()
    row.judge("onecopy", mine.median(), "ns", at_most(mine.median(), most))
    row.add("onecopy, beside torch", mine.median(), "ns", mine.ratio_to(theirs), "torch")
    row.add("torch", theirs.median(), "ns")
    row.add("plain, in one process", plain.median(), "ns")
    return row


def trained(effort: Effort) -> Row:
    row = Row("a training step of a recurrent network whose embedding and decoder are in another process",
              "2.5 x as fast as torch.distributed.rpc in the same run")  # fmt: skip
    found = _measure("trained", effort, 50, beside="trained alone")
    mine, theirs, alone = found["onecopy"], found["torch"], found["trained alone"]
    row.judge_ratio("onecopy, beside torch", mine.median(), "ns", "torch", at_most(mine.ratio_to(theirs), 1 / 2.5))
    row.add("torch", theirs.median(), "ns")
    row.add("the step in one process, with torch alone", alone.median(), "ns")
    return row


def asleep(effort: Effort) -> Row:
    row = Row("rpc_sync of a function that does nothing, both sides asleep", "1.15 x a futex round trip + 5 µs")
    found = _measure("asleep", effort, beside="futex", spin="0")
    mine, futex = found["onecopy"], found["futex"]
    row.judge("onecopy", mine.median(), "ns", at_most(mine.median(), 1.15 * futex.median() + 5000))
    row.add("onecopy, beside the futex", mine.median(), "ns", mine.ratio_to(futex), "futex")
    row.add("futex, called from Python", futex.median(), "ns")
    row.add("torch", found["torch"].median(), "ns")
    return row


def pipelined(effort: Effort) -> Row:
    return _row(
        "pipelined", "rpc_async of a function that does nothing, 200 at a time", "50,000 a second", effort, 20_000, 1.0
    )
