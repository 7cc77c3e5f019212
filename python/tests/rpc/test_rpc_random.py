# SPDX-License-Identifier: Apache-2.0
"""Random programs over three processes give the results of one process: calls of both interfaces, within each other."""

from __future__ import annotations

import dataclasses
import enum
import os
import random
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")

import onecopy.rpc as native
from onecopy.distributed import rpc
from onecopy.distributed.nn import RemoteModule
from support.rpc_group import shared_group

PROGRAMS = int(os.environ.get("ONECOPY_RPC_PROGRAMS", "30"))
MEMBERS = 3
MAX_DEPTH = 3

group = shared_group(MEMBERS)


class Kind(enum.Enum):
    VALUE = 1
    FAILS = 2


class Branch(NamedTuple):
    how: str
    to: int
    program: Any


@dataclasses.dataclass
class Program:
    """Its result is (value, results of the branches); a branch that fails has the class of its exception for a result."""

    kind: Kind
    value: Any
    branches: list[Branch]


class Kept:
    """A value that stays where it is made."""

    def __init__(self, program):
        self.result = run(program)

    def get(self):
        return self.result


class Module(torch.nn.Module):
    def __init__(self, program):
        super().__init__()
        self.program = program

    def forward(self):
        return run(self.program)


def call_module(module):
    return module.forward()


def keep(program):
    return Kept(program)


def fetch(reference):
    return reference.to_here()


def begin(how, to, program):
    """Returns a function that waits for the result of a call."""
    name, after = f"worker{to}", f"worker{(to + 1) % MEMBERS}"
    if how == "async":
        return rpc.rpc_async(name, run, args=(program,)).wait
    if how == "native async":
        return native.call_async(name, run, (program,)).wait
    if how == "remote":
        return rpc.remote(name, run, args=(program,)).to_here
    if how == "method":
        kept = rpc.remote(name, keep, args=(program,))
        return lambda: kept.rpc_sync().get()
    if how == "passed on":
        reference = rpc.remote(name, run, args=(program,))
        return lambda: rpc.rpc_sync(after, fetch, args=(reference,))
    if how.startswith("module"):
        module = RemoteModule(f"{name}/cpu", Module, args=(program,))
        return module if how == "module" else lambda: rpc.rpc_sync(after, call_module, args=(module,))
    call = native.call if how == "native" else rpc.rpc_sync
    return lambda: call(name, run, kwargs={"program": program})


HOW = ("sync", "async", "native", "native async", "remote", "method", "passed on", "module", "module passed on")


def outcome(wait):
    try:
        return wait()
    except KeyError:
        return KeyError


def run(program, begin=begin):
    waits = [begin(*branch) for branch in program.branches]
    results = [outcome(wait) for wait in waits]
    if program.kind is Kind.FAILS:
        raise KeyError(program.value)
    return program.value, results


def run_here(program):
    return run(program, lambda how, to, inner: lambda: run_here(inner))


def random_value(choose):
    number = choose.randrange(100)
    return choose.choice(
        [number, -number * 2**40, 1j * number, "text" * number, b"\0" * number, None, [number, "a"], {"a": number}, {1, number},
         Kind.VALUE, torch.arange(number), torch.ones(40, 60)[::2].t(), slice(number), (), (number,),
         random_leaf(choose, number), random_leaf(choose, number), b"row" * number * 700, "räw" * number * 500,
         bytearray(b"row") * number * 700]
    )  # fmt: skip


def random_leaf(choose, number):
    """Returns a tensor that requires gradients, or a Parameter."""
    shape = choose.choice([(number,), (number, 2), (number, 40)])
    made = torch.full(shape, float(number))
    made = choose.choice([made, made.t() if made.ndim == 2 else made, made[::2]])
    if choose.random() < 0.5:
        return torch.nn.Parameter(made, requires_grad=choose.random() < 0.8)
    return made.requires_grad_()


def random_program(choose, depth=0):
    count = choose.randrange(4 - depth) if depth < MAX_DEPTH else 0
    branches = [
        Branch(choose.choice(HOW), choose.randrange(MEMBERS), random_program(choose, depth + 1)) for _ in range(count)
    ]
    kind = Kind.FAILS if depth and choose.random() < 0.1 else Kind.VALUE
    return Program(kind, random_value(choose), branches)


def wrong_programs(seeds):
    """Returns the seeds of programs whose result is another one than here."""
    programs = {seed: random_program(random.Random(seed)) for seed in seeds}
    return [seed for seed, program in programs.items() if repr(run(program)) != repr(run_here(program))]


def test_random_programs_give_the_results_of_one_process(group):
    first = random.SystemRandom().randrange(2**32)
    for rank, member in enumerate(group.members):
        member.begin(wrong_programs, range(first + rank * PROGRAMS, first + (rank + 1) * PROGRAMS))
    assert [member.result(PROGRAMS * 1.0 + 60) for member in group.members] == [[]] * MEMBERS, f"from seed {first}"
