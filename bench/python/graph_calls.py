# SPDX-License-Identifier: Apache-2.0
"""Captured graphs on the CPU: the arena beside what any plan needs, and a call beside eager execution."""

from __future__ import annotations

import random
from typing import Any

from effort import Effort
from report import Row, at_most
from samples import Samples, time_ns

_ROUNDS = 11
_CALLS = 50
_WIDTH = 1024
_SIZES = [1, 2, 4, 8, *range(16, 513, 16)]


def _layers(width: int) -> Any:
    import torch

    torch.set_num_threads(1)
    parts = [(torch.nn.Linear(width, width), torch.nn.GELU()) for _ in range(8)]
    return torch.nn.Sequential(*(part for layer in parts for part in layer))


def _captured(model: Any, order: list[int], width: int) -> Any:
    import torch

    from onecopy import graphs

    torch._dynamo.reset()
    pool = graphs.arena()
    compiled = torch.compile(model, backend=graphs.backend(pool), dynamic=True)
    with torch.no_grad():
        for rows in order:
            compiled(torch.randn(rows, width))
    report = graphs.report(pool)
    return compiled, report


def memory(effort: Effort) -> Row:
    row = Row(
        f"{len(_SIZES)} shapes of 8 layers of {_WIDTH}, captured in three orders",
        "≤ 1.01 x the bytes that the largest needs at its worst step",
    )
    model = _layers(_WIDTH)
    for name, order in (
        ("ascending", _SIZES), ("descending", _SIZES[::-1]), ("shuffled", random.Random(1).sample(_SIZES, len(_SIZES))),
    ):  # fmt: skip
        _, report = _captured(model, order, _WIDTH)
        needed = max(graph.lower_bound for graph in report.graphs)
        planned = max(graph.planned for graph in report.graphs)
        row.judge_ratio(f"the largest plan, {name}", planned, "B", "what it needs", at_most(planned / needed, 1.01))
        row.add(f"pages of the arena, {name}", report.shared_bytes, "B", report.shared_bytes / needed, "what it needs")
    apart = sum(graph.planned for graph in report.graphs)
    row.add("a pool for each shape", apart, "B", apart / report.shared_bytes, "the arena")
    return row


def calls(effort: Effort) -> Row:
    import torch

    row = Row("A replay of 8 layers, one thread, results copied out", "≤ 1.1 x eager execution")
    for width, rows in ((64, 1), (256, 64), (512, 512)):
        model = _layers(width)
        compiled, _ = _captured(model, [rows, rows], width)
        x = torch.randn(rows, width)
        eager, ours = Samples(), Samples()
        with torch.no_grad():
            for _ in range(effort.rounds(_ROUNDS)):
                eager.append(time_ns(lambda model=model, x=x: [model(x) for _ in range(_CALLS)]) / _CALLS)
                ours.append(time_ns(lambda f=compiled, x=x: [f(x) for _ in range(_CALLS)]) / _CALLS)
        row.add(f"eager, {rows} rows of {width}", eager.median(), "ns")
        ratio = ours.ratio_to(eager)
        row.judge_ratio(f"ours, {rows} rows of {width}", ours.median(), "ns", "eager", at_most(ratio, 1.1))
    return row
