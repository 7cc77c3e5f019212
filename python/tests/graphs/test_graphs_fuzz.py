# SPDX-License-Identifier: Apache-2.0
"""Random programs, compared with eager execution: inputs and outputs that alias, writes in place, held outputs, inputs
that move, poisoned scratch memory, threads and forks.

``ONECOPY_GRAPH_PROGRAMS`` is how many (default 12), ``ONECOPY_GRAPH_SEED`` the first seed. ``./dev gpu`` runs 200, on the
CPU and on a card.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="wants torch installed")

from onecopy import graphs
from support.processes import in_threads

PROGRAMS = int(os.environ.get("ONECOPY_GRAPH_PROGRAMS", "12"))
SEED = int(os.environ.get("ONECOPY_GRAPH_SEED", "1"))
WIDTH, LENGTH = 6, 8
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="wants a CUDA GPU")),
]

Step = tuple[str, tuple[int, ...]]


pytestmark = pytest.mark.usefixtures("fresh_compiler")


def rows(x: Any, like: Any) -> Any:
    """Returns ``x`` with the shape of ``like``."""
    return x.reshape(-1)[: like.numel()].repeat(-(-like.numel() // x.numel()))[: like.numel()].reshape(like.shape)


# Each makes a value of others.
MAKERS: dict[str, Callable[..., Any]] = {
    "add": lambda a, b, _: a + rows(b, a),
    "scale": lambda a, b, _: torch.tanh(a * 0.7) + 0.1,
    "matmul": lambda a, b, _: a @ a.transpose(-1, -2) @ a * 0.01,
    "part": lambda a, b, _: a[1:] if a.shape[0] > 2 else a,
    "turned": lambda a, b, _: a.transpose(0, 1).contiguous().transpose(0, 1),
    "as_strided": lambda a, b, _: (a * 1.0).as_strided((2, 2), (1, 2), 1) if a.numel() > 4 else a,
    "view": lambda a, b, _: a.reshape(-1).view(1, -1),
    "norm": lambda a, b, _: torch.nn.functional.layer_norm(a, a.shape[-1:]),
    "split": lambda a, b, _: torch.cat([part * 2 for part in a.split(1, 0)]),
    "sorted": lambda a, b, _: a.sort(dim=-1).values,
    "picked": lambda a, b, at: a[at % a.shape[0]],
    "where": lambda a, b, _: torch.where(a > 0, a, rows(b, a)),
    "attend": lambda a, b, _: torch.nn.functional.scaled_dot_product_attention(a[None], a[None], a[None])[0],
    "loss": lambda a, b, _: a + torch.nn.functional.huber_loss(a, rows(b, a)),
    "transposed": lambda a, b, _: a.t(),
    "every_second": lambda a, b, _: a[:, ::2],
    "flipped": lambda a, b, _: a.flip(0),
    "rolled": lambda a, b, _: a.roll(1, 0),
    "sum": lambda a, b, _: a.sum(0, keepdim=True),
    "running_sum": lambda a, b, _: torch.cumsum(a, 0),
    "mean": lambda a, b, _: a.expand(3, *a.shape).mean(0),
    "variance": lambda a, b, _: torch.var_mean(a, 0, correction=0, keepdim=True)[1],
    "rounded": lambda a, b, _: a.to(torch.float64).to(torch.float32),
    "filled": lambda a, b, _: a.clone().fill_(2),
    "outer": lambda a, b, _: torch.outer(a.reshape(-1)[:5], b.reshape(-1)[:7]),
    "limited": lambda a, b, _: torch.maximum(a, b.max()),
}
# Each writes into a cache.
WRITERS: dict[str, Callable[..., Any]] = {
    "index_copy": lambda c, a, at: c.index_copy_(0, at[:1], rows(a, c[:1])),
    "slice": lambda c, a, _: c[1:3].copy_(rows(a, c[1:3])),
    "item": lambda c, a, _: c.select(0, 2).mul_(0.5),
    "add": lambda c, a, _: c.add_(rows(a, c) * 0.1),
    "index_add": lambda c, a, at: c.index_add_(0, at[:1], rows(a, c[:1])),
    "masked": lambda c, a, _: c.masked_fill_(c > 2, 0.25),
}


class Program:
    """A function of (x, y, cache, at), as a list of steps."""

    def __init__(self, chance: random.Random) -> None:
        self.steps: list[Step] = []
        for _ in range(chance.randrange(3, 9)):
            kind = chance.choice(["make"] * 3 + ["write"])
            name = chance.choice(list(MAKERS if kind == "make" else WRITERS))
            self.steps.append((f"{kind} {name}", (chance.randrange(99), chance.randrange(99))))
        self.returned = [chance.randrange(99) for _ in range(chance.randrange(1, 4))]
        self.returns_cache = chance.random() < 0.3

    def __call__(self, x: Any, y: Any, cache: Any, at: Any) -> tuple[Any, ...]:
        values = [x, y]
        for step, (first, second) in self.steps:
            kind, name = step.split()
            a, b = values[first % len(values)], values[second % len(values)]
            if kind == "write":
                WRITERS[name](cache, a, at)
                values.append(cache * 1.5 if first % 2 else cache[1:4])
            else:
                values.append(MAKERS[name](a, b, at))
        results = tuple(values[which % len(values)] for which in self.returned)
        return (*results, cache) if self.returns_cache else results


class Inputs:
    """The same inputs twice: for the graph, and for eager execution."""

    def __init__(self, chance: random.Random, device: str) -> None:
        self._chance = chance
        self._device = device
        self.caches = [self._pair(self._random(LENGTH, WIDTH)) for _ in range(2)]
        self.which = 0

    def next(self) -> tuple[list[Any], list[Any]]:
        chance = self._chance
        count = chance.choice([3, 4, 6])
        kind = chance.choice(["apart", "views", "one", "offset"])
        if kind == "apart":
            x, y = self._pair(self._random(count, WIDTH)), self._pair(self._random(count, WIDTH))
        elif kind == "views":
            base = self._pair(self._random(2 * count, WIDTH))
            x, y = [b[:count] for b in base], [b[count:] for b in base]
        elif kind == "one":
            x = y = self._pair(self._random(count, WIDTH))
        else:
            base = self._pair(self._random(count + 3, WIDTH))
            x, y = [b[3:] for b in base], [b[:count] for b in base]
        if chance.random() < 0.15:
            self.which = 1 - self.which  # the cache has moved
        if chance.random() < 0.05:
            self.caches[self.which] = self._pair(self.caches[self.which][0])
        at = torch.tensor([chance.randrange(LENGTH), chance.randrange(LENGTH)], device=self._device)
        mine, theirs = zip(x, y, self.caches[self.which], strict=True)
        return [*mine, at], [*theirs, at]

    def _random(self, *shape: int) -> Any:
        generator = torch.Generator().manual_seed(self._chance.randrange(1 << 30))
        return torch.randn(*shape, generator=generator).to(self._device)

    def _pair(self, tensor: Any) -> list[Any]:
        return [tensor.clone(), tensor.clone()]


def differ(got: Any, want: Any) -> bool:
    return (
        got.shape != want.shape
        or got.dtype != want.dtype
        or not torch.allclose(got, want, rtol=1e-3, atol=1e-3, equal_nan=True)
    )


def poison(pool: Any) -> None:
    """Overwrites the scratch memory of an arena on the CPU, in which no result may lie."""
    if pool is not None and str(pool.device) == "cpu" and pool.footprint.shared:
        torch.frombuffer(pool.open(pool.footprint.shared), dtype=torch.uint8).fill_(0xFF)


def run(compiled: Any, program: Program, chance: random.Random, device: str, turns: int, pool: Any = None) -> str:
    """Calls both. Returns the first difference, or an empty text. Compares outputs again after later calls.

    ``pool`` is poisoned after each call.
    """
    inputs, held = Inputs(chance, device), []
    for turn in range(turns):
        mine, theirs = inputs.next()
        got, want = compiled(*mine), program(*theirs)
        poison(pool)
        if any(differ(a, b) or a.stride() != b.stride() for a, b in zip(got, want, strict=True)):
            return f"call {turn}: another result"
        if any(differ(*cache) for cache in inputs.caches) or any(
            differ(a, b) for a, b in zip(mine, theirs, strict=True)
        ):
            return f"call {turn}: another input"
        caches = {cache.untyped_storage()._cdata for pair in inputs.caches for cache in pair}
        held += [(a, b.clone()) for a, b in zip(got, want, strict=True) if a.untyped_storage()._cdata not in caches]
        if len(held) > 6:
            held.pop(chance.randrange(len(held)))
        if any(differ(a, b) for a, b in held):
            return f"after call {turn}: a held result has changed"
    return ""


def make(seed: int, device: str, pool: Any) -> tuple[Program, Any, random.Random]:
    chance = random.Random(seed)
    program = Program(chance)
    torch._dynamo.reset()
    options = {
        "inputs": chance.choice(["copy", "copy", "place"]),
        "outputs": chance.choice(["copy", "view", "private"]),
    }
    program.is_placed = options["inputs"] == "place"  # its inputs move at each call, and so it may run eagerly
    return (
        program,
        torch.compile(program.__call__, backend=graphs.backend(pool, **options), dynamic=chance.random() < 0.3),
        chance,
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("part", range(4))
def test_random_programs_are_as_eager_execution(part, device):
    pool, replays = graphs.arena(device), 0
    for seed in range(SEED + part, SEED + PROGRAMS, 4):
        program, compiled, chance = make(seed, device, pool)
        difference = run(compiled, program, chance, device, 14, pool)
        assert not difference, f"seed {seed}: {difference}: {program.steps} {program.returned}"
        report = graphs.report(pool)
        reasons = [reason for reason in report.eager if not program.is_placed or "uses in place" not in reason]
        assert not reasons, f"seed {seed}: fell back to eager execution: {reasons} {program.steps}"
        replays = max(replays, report.replays)
    assert replays, "nothing was replayed"


def unless_traced(compiled: Any) -> Any:
    """``compiled``, called again where torch has refused it: it does while another thread traces."""

    def call(*arguments: Any) -> Any:
        while True:
            try:
                return compiled(*arguments)
            except RuntimeError as error:
                if "symbolically trace" not in str(error):
                    raise

    return call


@pytest.mark.parametrize("device", DEVICES)
def test_random_programs_in_threads(device):
    for seed in range(SEED, SEED + max(PROGRAMS // 8, 1)):
        program, compiled, _ = make(seed, device, graphs.arena(device))
        run(compiled, program, random.Random(seed), device, 4)  # compiled by one
        found: list[str] = []

        def work(number: int, compiled: Any = compiled, program: Program = program, found: list[str] = found) -> None:
            with torch.no_grad():
                found.append(run(unless_traced(compiled), program, random.Random(number), device, 12))

        in_threads(work, [(number,) for number in range(3)])
        assert found == ["", "", ""], f"seed {seed}: {found}: {program.steps} {program.returned}"


@pytest.mark.skipif(torch.cuda.is_available(), reason="wants a machine without a CUDA GPU, to fork")
def test_random_programs_in_forks():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # OpenMP's threads do not live on in a fork
    try:
        for seed in range(SEED, SEED + max(PROGRAMS // 8, 1)):
            program, compiled, chance = make(seed, "cpu", graphs.arena())
            assert run(compiled, program, chance, "cpu", 6) == "", f"seed {seed}"
            child = os.fork()
            if child == 0:
                os._exit(run(compiled, program, random.Random(7), "cpu", 20) != "")
            assert run(compiled, program, random.Random(8), "cpu", 20) == "", f"seed {seed}"
            assert os.waitpid(child, 0)[1] == 0, f"seed {seed}: in the child"
    finally:
        torch.set_num_threads(threads)
