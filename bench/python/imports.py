# SPDX-License-Identifier: Apache-2.0
"""Measures the time of an import in a new interpreter."""

from __future__ import annotations

import subprocess
import sys
from time import perf_counter_ns

from effort import Effort
from report import Row, at_most
from samples import Samples

_ROUNDS = 21
_PROGRAMS = {
    "a bare interpreter": "pass",
    "import onecopy": "import onecopy",
    "import torch": "import torch",
    "import torch, torch.multiprocessing": "import torch, torch.multiprocessing",
    "import onecopy.multiprocessing": "import onecopy.multiprocessing",
}

# The difference of two imports of more than a second each would be lost in their variation.
_AFTER_TORCH = """
from time import perf_counter_ns
import torch
start = perf_counter_ns()
import onecopy.multiprocessing
print(perf_counter_ns() - start)
"""


def _run(program: str) -> float:
    start = perf_counter_ns()
    subprocess.run([sys.executable, "-c", program], check=True)
    return float(perf_counter_ns() - start)


def _import_after_torch(rounds: int) -> Samples:
    samples = Samples()
    for _ in range(rounds):
        said = subprocess.run([sys.executable, "-c", _AFTER_TORCH], check=True, stdout=subprocess.PIPE)
        samples.append(float(said.stdout))
    return samples


def _measure(rounds: int) -> dict[str, Samples]:
    samples = {what: Samples() for what in _PROGRAMS}
    for _ in range(rounds):
        for what, program in _PROGRAMS.items():
            samples[what].append(_run(program))
    return samples


def times(effort: Effort) -> Row:
    row = Row(
        "Imports",
        "onecopy within 60 ms over a bare interpreter, onecopy.multiprocessing within import torch + 30 ms",
    )
    best = {what: samples.best() for what, samples in _measure(effort.rounds(_ROUNDS)).items()}
    for what, value in best.items():
        row.add(what, value, "ns")
    over = best["import onecopy"] - best["a bare interpreter"]
    row.judge("import onecopy, over a bare interpreter", over, "ns", at_most(over, 60e6))
    after = _import_after_torch(effort.rounds(_ROUNDS)).median()
    row.judge("import onecopy.multiprocessing, after import torch", after, "ns", at_most(after, 30e6))
    row.note(f"whole processes, the best of {effort.rounds(_ROUNDS)} each; the last within a process, its median")
    return row
