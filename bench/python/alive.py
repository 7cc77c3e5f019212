# SPDX-License-Identifier: Apache-2.0
"""100,000 tensors alive in the process that receives them: descriptors and mappings of both."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
from collections.abc import Iterator
from typing import Any

import contenders
from contenders import Contender
from effort import Effort
from footprint import Footprint, footprint
from peers import Peer, Talk, first_line
from report import Row, at_least, at_most

_TENSORS = 100_000
_ELEMENTS = 16
_AT_ONCE = 50  # the number of objects put before an answer; they fit into a pipe
_KIND_NAMES = {
    "fresh": "fresh tensors",
    "views": "views of fresh tensors",
    "state-dict": "values of state_dict()",
    "collate": "default_collate batches from a DataLoader",
}

# --- what the processes do --------------------------------------------------------------------------


def _fresh_tensors() -> Iterator[Any]:
    import torch

    return (torch.full((_ELEMENTS,), 1.0) for _ in itertools.count())


def _fresh_views() -> Iterator[Any]:
    import torch

    return (torch.full((2 * _ELEMENTS,), 1.0)[_ELEMENTS:] for _ in itertools.count())


def _state_dict_values() -> Iterator[Any]:
    """Returns values with Parameters, whose module stays alive."""
    import torch

    module = torch.nn.ParameterList(torch.full((_ELEMENTS,), 1.0) for _ in range(_TENSORS))
    return iter([(module, value) for value in module.state_dict().values()])


_SOURCES = {"fresh": _fresh_tensors, "views": _fresh_views}


def _values(kind: str) -> Iterator[Any]:
    if kind == "state-dict":
        return (value for _, value in _state_dict_values())
    return _SOURCES[kind]()


def lead(talk: Talk, contender: dict[str, Any], kind: str) -> None:
    """Answers with the number of tensors alive, the error that limited it, and the open files of both processes."""
    chosen = Contender(**contender)
    measure = _load if kind == "collate" else _send
    came, why, here, there = measure(chosen, kind)
    talk.say([came, why, dataclasses.asdict(here), dataclasses.asdict(there)])


def _less(now: Footprint, before: Footprint) -> Footprint:
    return Footprint(now.descriptors, now.mappings - before.mappings)


def _send(contender: Contender, kind: str) -> tuple[int, str, Footprint, Footprint]:
    there, back = contender.queues(2)
    follower = contender.context().Process(target=keep, args=(there, back, contender.strategy))
    follower.start()
    there.put(0)
    back.get()
    values = _values(kind)
    before = footprint(os.getpid()), footprint(follower.pid)
    came, why = _put_all(values, there, back)
    after = footprint(os.getpid()), footprint(follower.pid)
    if why:
        follower.kill()
    there.put(None)
    follower.join()
    return came, why, _less(after[0], before[0]), _less(after[1], before[1])


def _put_all(values: Iterator[Any], there: Any, back: Any) -> tuple[int, str]:
    """Puts all tensors. Returns how many the other process holds, and the error that stopped it."""
    came = 0
    while came < _TENSORS:
        try:
            for value in itertools.islice(values, _AT_ONCE):
                there.put(value)
            value = None
        except Exception as error:
            return came, f"in the sender: {first_line(error)}"
        there.put(0)
        came, why = back.get()
        if why:
            return came, f"in the receiver: {why}"
    return came, ""


def keep(there: Any, back: Any, strategy: str | None) -> None:
    """Keeps the received values until None arrives. Answers 0 with their number and the error, if any."""
    if strategy:
        import torch.multiprocessing

        torch.multiprocessing.set_sharing_strategy(strategy)
    kept: list[Any] = []
    why = ""
    while True:
        try:
            value = there.get()
        except Exception as error:
            why = why or first_line(error)
            continue
        if value is None:
            return
        if isinstance(value, int):
            back.put((len(kept), why))
        else:
            kept.append(value)


class Numbers:
    """An endless data set of small tensors."""

    def __len__(self) -> int:
        return 4 * _TENSORS

    def __getitem__(self, index: int) -> Any:
        import torch

        return torch.full((_ELEMENTS,), float(index))


def _use(strategy: str, worker: int) -> None:
    import torch.multiprocessing

    torch.multiprocessing.set_sharing_strategy(strategy)


def _load(contender: Contender, kind: str) -> tuple[int, str, Footprint, Footprint]:
    from torch.utils.data import DataLoader

    options = {"num_workers": 1, "multiprocessing_context": contender.context()}
    if contender.strategy:
        options["worker_init_fn"] = functools.partial(_use, contender.strategy)
    loader = DataLoader(Numbers(), batch_size=2, **options)
    batches = iter(loader)
    kept = [next(batches)]
    worker = batches._workers[0].pid
    before = footprint(os.getpid()), footprint(worker)
    there = before[1]
    try:
        while len(kept) < _TENSORS:
            kept.append(next(batches))
            if len(kept) % 1000 == 0:
                there = footprint(worker)
    except Exception as error:
        return len(kept), first_line(error), _less(footprint(os.getpid()), before[0]), _less(there, before[1])
    after = footprint(os.getpid()), footprint(worker)
    return len(kept), "", _less(after[0], before[0]), _less(after[1], before[1])


# --- the row ----------------------------------------------------------------------------------------


def _judge(row: Row, name: str, answer: Any) -> None:
    came, why, sender, receiver = answer
    row.judge(name, came, "", at_least(came, _TENSORS))
    for who, open_now in (("sender", sender), ("receiver", receiver)):
        for what in ("descriptors", "mappings"):
            new = "new " if what == "mappings" else ""
            row.judge(f"  {new}{what} in the {who}", open_now[what], "", at_most(open_now[what], 64))
    if why:
        row.note(f"{name}, ours stopped: {why}")


def _add(row: Row, name: str, who: str, answer: Any) -> None:
    came, why, _, receiver = answer
    row.add(f"  {who}: alive when it stopped", came, "")
    row.add(f"  {who}: descriptors in the receiver", receiver["descriptors"], "")
    row.add(f"  {who}: new mappings in the receiver", receiver["mappings"], "")
    if why:
        row.note(f"{name}, torch, {who}: {why}")


def _measure(contender: Contender, kind: str) -> Any:
    with Peer(lead, contender=dataclasses.asdict(contender), kind=kind) as leader:
        return leader.hear(timeout=600)


def alive(effort: Effort) -> Row:
    row = Row(
        "100,000 tensors alive in the receiver",
        "64 descriptors and 64 new mappings in each process",
    )
    for kind, name in _KIND_NAMES.items():
        _judge(row, name, _order(kind, _measure(contenders.OURS, kind)))
        for torch in (contenders.TORCH_FD_SIMPLE, contenders.TORCH_FS_SIMPLE):
            _add(row, name, str(torch.strategy), _order(kind, _measure(torch, kind)))
    row.note("torch runs with the descriptor limit raised as far as this machine allows")
    return row


def _order(kind: str, answer: Any) -> Any:
    """Returns the two processes, the sender first; with a DataLoader, the other process sends."""
    came, why, here, there = answer
    return [came, why, there, here] if kind == "collate" else [came, why, here, there]
