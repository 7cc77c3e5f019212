# SPDX-License-Identifier: Apache-2.0
"""Random programs give what eager execution gives, over poisoned memory, with held outputs and changed inputs.

ONECOPY_TEST_GRAPHS says how many programs (default 8).
"""

from __future__ import annotations

import os
import random

import pytest

torch = pytest.importorskip("torch", reason="wants torch installed")

from onecopy import graphs

PROGRAMS = int(os.environ.get("ONECOPY_TEST_GRAPHS", "8"))

ONE = [
    lambda t: t + 1, lambda t: t * t, torch.relu, torch.sin, lambda t: t.t(), lambda t: t.t().contiguous(),
    lambda t: t[1:], lambda t: t[:, ::2], lambda t: t.reshape(-1), lambda t: t.flip(0), lambda t: t.sum(0, keepdim=True),
    lambda t: torch.cumsum(t, 0), lambda t: torch.softmax(t, -1), lambda t: t.expand(3, *t.shape).mean(0),
    lambda t: t.to(torch.float64).to(torch.float32), lambda t: torch.where(t > 0, t, -t), lambda t: t.clone().fill_(2),
    lambda t: torch.sort(t, 0).values, lambda t: torch.split(t, 2, 0)[0], lambda t: t.unsqueeze(0).squeeze(0),
    lambda t: torch.var_mean(t, 0, correction=0)[1], lambda t: t.masked_fill(t > 1, 0), lambda t: t.roll(1, 0), lambda t: t.neg().abs(),
]  # fmt: skip
TWO = [
    lambda a, b: a + b.sum(), lambda a, b: torch.cat([a.reshape(-1), b.reshape(-1)]), lambda a, b: a * b.mean(),
    lambda a, b: torch.outer(a.reshape(-1)[:5], b.reshape(-1)[:7]), lambda a, b: torch.maximum(a, b.max()),
]  # fmt: skip


def random_program(chance):
    """A function of two inputs that may change the second, and what it does in words."""
    steps = []
    for _ in range(chance.randint(2, 9)):
        if chance.random() < 0.7:
            steps.append((chance.choice(ONE), chance.random(), None))
        else:
            steps.append((chance.choice(TWO), chance.random(), chance.random()))
    writes = chance.choice([None, "add_", "copy", "part"])
    picked = [chance.random() for _ in range(chance.randint(1, 4))]

    def run(x, y):
        values = [x, y]
        for operator, first, second in steps:
            a = values[int(first * len(values))]
            if a.dim() != 2:
                a = a.reshape(1, -1)
            if second is None:
                values.append(operator(a))
            else:
                values.append(operator(a, values[int(second * len(values))]))
        if writes == "add_":
            y.add_(values[-1].sum())
        elif writes == "copy":
            y.copy_(values[-1].mean().expand_as(y))
        elif writes == "part":
            y[0].mul_(2)
        return [values[int(p * len(values))] for p in picked]

    return run


def same(got, want):
    return len(got) == len(want) and all(
        a.shape == b.shape and a.dtype == b.dtype and a.stride() == b.stride() and torch.allclose(a, b, equal_nan=True)
        for a, b in zip(got, want, strict=True)
    )


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_a_random_program(seed):
    chance = random.Random(seed)
    torch._dynamo.reset()
    torch.manual_seed(seed)
    program, pool = random_program(chance), graphs.arena()
    outputs = chance.choice(["copy", "copy", "private", "view"])
    if outputs != "copy" and not hasattr(torch.UntypedStorage, "_swap_data_ptr_"):
        outputs = "copy"
    inputs = chance.choice(["copy", "copy", "place"])
    call = torch.compile(
        program, backend=graphs.backend(pool, outputs=outputs, inputs=inputs), dynamic=chance.random() < 0.5
    )
    held = []
    with torch.no_grad():
        for turn in range(8):
            rows = chance.choice([4, 4, 6, 9])
            x, y = torch.randn(rows, 6), torch.randn(rows + 1, 5)
            if chance.random() < 0.3:
                x = torch.randn(6, rows).t()
            x2, y2 = x.clone(), y.clone()
            got, want = call(x, y), program(x2, y2)
            if outputs != "view" and pool.footprint.shared:
                torch.frombuffer(pool.open(pool.footprint.shared), dtype=torch.uint8).fill_(0xFF)
            assert same(got, want) and torch.equal(y, y2) and torch.equal(x, x2), (turn, rows)
            held.append((got, [t.clone() for t in want]))
            for was, wanted in held[-4:]:
                assert all(torch.allclose(a, b, equal_nan=True) for a, b in zip(was, wanted, strict=True)), turn
    assert not graphs.report(pool).eager
