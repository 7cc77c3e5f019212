# SPDX-License-Identifier: Apache-2.0
"""Measures captured graphs on the CPU: the arena against the minimum of any plan, and a call against eager execution."""

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


def llama(effort: Effort) -> Row:
    """Measures a step of one token. Each request uses its own cache."""
    import torch

    from llama import Llama
    from onecopy import graphs

    row = Row(
        "A step of a Llama, one thread, a new static cache for each request", "≤ 1.1 x eager execution, tokens equal"
    )
    torch.set_num_threads(1)
    steps, requests = 24, effort.rounds(10)
    for layers in (2, 8):
        torch._dynamo.reset()
        model, pool = Llama(layers, 256, "cpu", torch.float32), graphs.arena()
        compiled = torch.compile(model.step, backend=graphs.backend(pool), dynamic=False)
        eager, ours, wrong = Samples(), Samples(), 0
        with torch.no_grad():
            model.tokens(compiled, model.new_cache(), 3)
            for request in range(requests):
                caches, made = [model.new_cache(), model.new_cache()], [[], []]
                eager.append(
                    time_ns(lambda: made[0].extend(model.tokens(model.step, caches[0], steps, request))) / steps
                )
                ours.append(time_ns(lambda: made[1].extend(model.tokens(compiled, caches[1], steps, request))) / steps)
                wrong += made[0] != made[1]
        row.add(f"eager, {layers} layers ({model.kind})", eager.median(), "ns")
        row.judge_ratio(f"ours, {layers} layers", ours.median(), "ns", "eager", at_most(ours.ratio_to(eager), 1.1))
        row.judge(f"requests with other tokens, {layers} layers", wrong, f"of {requests}", at_most(wrong, 0))
        report = graphs.report(pool)
        row.add(f"calls that ran eagerly, {layers} layers", sum(report.eager.values()), f"of {requests * steps + 3}")
    return row


def interleavings(effort: Effort) -> Row:
    """Runs graphs of eight shapes in random order, overwrites the shared pages after each, and holds seven outputs."""
    import torch

    from onecopy import graphs

    torch.set_num_threads(1)
    count = effort.rounds(100_000)
    row = Row(f"{count} calls of 8 shapes in one poisoned arena, 7 outputs held", "none is wrong")
    torch._dynamo.reset()
    chance, model, pool = random.Random(7), _layers(16), graphs.arena()
    call = torch.compile(model, backend=graphs.backend(pool), dynamic=True)
    inputs = [torch.randn(3 * (i + 1), 16) for i in range(8)]
    wrong, held = 0, []
    with torch.no_grad():
        for x in inputs:
            call(x)
        wanted = [call(x).clone() for x in inputs]
        window = pool.open(pool.footprint.shared)
        pages = torch.frombuffer(window, dtype=torch.uint8)
        for _ in range(count):
            which = chance.randrange(8)
            held.append((which, call(inputs[which])))
            pages[: 1 << 15].fill_(0xFF)
            if len(held) > 7:
                then, out = held.pop(chance.randrange(7))
                wrong += not torch.equal(out, wanted[then])
    row.judge("wrong", wrong, f"of {count}", at_most(wrong, 0))
    most = max(graph.planned for graph in graphs.report(pool).graphs)
    row.judge("of the arena that graphs use, poisoned", min(most, 1 << 15), "B", at_most(most, 1 << 15))
    return row
