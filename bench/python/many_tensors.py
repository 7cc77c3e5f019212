# SPDX-License-Identifier: Apache-2.0
"""Measures 20,000 tensors of 4 KiB sent to another process at once."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import contenders
from contenders import Contender
from effort import Effort
from peers import Failed, Peer, Talk
from report import Row, at_least, at_most
from samples import Samples, time_ns

_TENSORS = 20_000
_ELEMENTS = 1024
_ROUNDS = 7
_PAUSE_SECONDS = 0.5  # torch's daemon goes on removing files when its processes have answered

# --- what the processes do --------------------------------------------------------------------------


class Link:
    """A process that opens all received tensors and answers with their number."""

    def __init__(self, contender: Contender) -> None:
        self._there, self._back = contender.queues(2)
        arguments = (self._there, self._back, contender.strategy)
        self._follower = contender.context().Process(target=open_all, args=arguments)
        self._follower.start()
        self._back.get()

    def send(self, sent: Any) -> None:
        self._there.put(sent)
        if self._back.get() != _TENSORS:
            raise AssertionError("not all tensors came")

    def sum(self) -> float:
        """Returns the sum of the elements that the other process sees now."""
        self._there.put("sum")
        return self._back.get()

    def forget(self) -> None:
        """Makes the other process release all tensors."""
        self._there.put("forget")
        self._back.get()

    def close(self) -> None:
        self._there.put(None)
        self._follower.join()


def open_all(there: Any, back: Any, strategy: str | None) -> None:
    """Opens the handle of a bundle, which is sent as bytes; a dict of tensors is open already. Keeps the objects until
    told to release them."""
    import torch

    if strategy:
        torch.multiprocessing.set_sharing_strategy(strategy)
    else:
        import onecopy
    tensors: Any = {}
    back.put("ready")
    while (sent := there.get()) is not None:
        if sent == "sum":
            back.put(sum(float(tensor.detach().sum()) for tensor in tensors.values()))
        elif sent == "forget":
            tensors.clear()
            back.put("done")
        else:
            tensors = onecopy.open(sent, framework="torch").tree() if isinstance(sent, bytes) else sent
            back.put(len(tensors))
            del sent


def lead_shared(talk: Talk, contender: dict[str, Any]) -> None:
    """Shares 20,000 tensors, then answers "bundle" and "dict" with the nanoseconds of sending them."""
    import torch

    chosen = Contender(**contender)
    link = Link(chosen)
    tensors = {f"layers.{i}.weight": torch.full((_ELEMENTS,), 1.0) for i in range(_TENSORS)}
    for tensor in tensors.values():
        tensor.share_memory_()
    talk.say("ready")
    for question in talk.questions():
        send = {"bundle": _send_bundle, "dict": Link.send}[question]
        talk.say(time_ns(lambda send=send: send(link, tensors)))
        link.forget()
    link.close()


def _send_bundle(link: Link, tensors: Any) -> None:
    import onecopy

    handle = onecopy.share(tensors)
    link.send(handle.to_bytes())


def lead_module(talk: Talk, contender: dict[str, Any]) -> None:
    """Answers once with the time for a module that was not shared before."""
    import torch

    chosen = Contender(**contender)
    link = Link(chosen)
    module = torch.nn.ParameterList(torch.full((_ELEMENTS,), 4.0) for _ in range(_TENSORS))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    loss = torch.stack([(p * p).sum() for p in module]).sum() / 2
    if chosen.strategy:
        ns = time_ns(lambda: link.send(dict(module.share_memory().named_parameters())))
    else:
        ns = time_ns(lambda: _send_bundle(link, module))
    _check_unharmed(link, loss, optimizer)
    talk.say(ns)
    link.close()


def _check_unharmed(link: Link, loss: Any, optimizer: Any) -> None:
    """Checks that both processes see a pending backward pass and a step of the optimizer."""
    loss.backward()
    optimizer.step()
    expected = 2.0 * _ELEMENTS * _TENSORS
    seen_here = sum(float(p.detach().sum()) for p in optimizer.param_groups[0]["params"])
    if seen_here != expected or link.sum() != expected:
        raise AssertionError("the module was harmed")


# --- rows -------------------------------------------------------------------------------------------


def shared(effort: Effort) -> Row:
    row = Row(
        "20,000 tensors of 4 KiB, shared already, sent and all opened as torch tensors",
        "as a bundle 60 ms in all, ≥ 30 x faster than torch (file_system)",
    )
    samples = _measure_shared(row, effort.rounds(_ROUNDS))
    bundle, plain = samples["bundle"], samples["dict"]
    row.judge("bundle", bundle.median(), "ns", at_most(bundle.median(), 60e6))
    row.add("bundle, the first time in both processes", bundle[0], "ns")
    row.add("as a dict in " + contenders.OURS.name, plain.median(), "ns")
    by_fs, by_fd = (samples[each.name] for each in _OTHERS)
    times = by_fs.ratio_to(bundle)
    row.judge_ratio(_OTHERS[0].name, by_fs.median(), "ns", "bundle", at_least(times, 30))
    if by_fd:
        row.add(_OTHERS[1].name, by_fd.median(), "ns", by_fd.ratio_to(bundle), "bundle")
    return row


_OTHERS = [contenders.TORCH_FS, contenders.TORCH_FD]


def _measure_shared(row: Row, rounds: int) -> dict[str, Samples]:
    samples = {name: Samples() for name in ("bundle", "dict", *(each.name for each in _OTHERS))}
    with contextlib.ExitStack() as stack:
        ours = _start(stack, contenders.OURS)
        asked = [("bundle", ours, "bundle"), ("dict", ours, "dict")]
        for each in _OTHERS:
            with failures_noted(row, each):
                asked.append((each.name, _start(stack, each), "dict"))
        for _ in range(rounds):
            for name, leader, question in asked:
                time.sleep(_PAUSE_SECONDS)
                samples[name].append(leader.ask(question))
    return samples


def _start(stack: contextlib.ExitStack, contender: Contender) -> Peer:
    leader = stack.enter_context(Peer(lead_shared, contender=dataclasses.asdict(contender)))
    leader.hear()
    return leader


@contextlib.contextmanager
def failures_noted(row: Row, contender: Contender) -> Iterator[None]:
    """Notes failures in the block, since torch may need more descriptors than there are."""
    try:
        yield
    except Failed as why:
        row.note(f"{contender.name}: {why}")


def module(effort: Effort) -> Row:
    row = Row(
        "An nn.Module of 20,000 parameters of 4 KiB, not shared yet: moved, sent, all opened",
        "as a bundle 250 ms in all; optimizer and pending backward unharmed",
    )
    samples = {each: Samples() for each in [contenders.OURS, *_OTHERS]}
    rounds = effort.rounds(_ROUNDS)
    for each, values in samples.items():
        with failures_noted(row, each):
            for _ in range(rounds):
                with Peer(lead_module, contender=dataclasses.asdict(each)) as leader:
                    values.append(leader.hear())
    ours = samples[contenders.OURS]
    row.judge("bundle", ours.median(), "ns", at_most(ours.median(), 250e6))
    for each in _OTHERS:
        if samples[each]:
            row.add(each.name, samples[each].median(), "ns")
    row.note("new processes in each round; backward, optimizer and what both see are checked after it")
    return row
