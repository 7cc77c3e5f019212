# SPDX-License-Identifier: Apache-2.0
"""What docs/benchmarks.md calls the sections and rows of bench/results, and which of them it leaves out."""

from __future__ import annotations

import re
from typing import Any

# The groups of the page in order, each with how the titles of its sections begin. The first that fits takes a title.
GROUPS = (
    ("Tensors and values through queues", ("A fresh", "A view", "A tensor from", "An int", "4 producers", "A tensor of 16 MiB",
     "Hand over", "Wait in", "Small tensors")),
    ("Many tensors, and memory", ("20,000 tensors of", "An nn.Module", "100,000 tensors", "A million", "Share, open", "Allocate",
     "First open of an", "Load a safetensors", "Imports")),
    ("Integrations, weights of a trainer, checkpoints", ("1 GiB of new weights", "256 MiB from actor", "A Llama", "A model of Hugging Face",
     "4 engines of one GPU", "An engine takes new", "A checkpoint", "The first token", "Chunks of 2 MiB")),
    ("The store", ("Weights in a new", "update()", "Reading 1 GiB", "publish()", "open() of 20,000", "The keeper", "An arena")),
    ("The store on several hosts", ("A group of", "A version", "A pull")),
    ("Remote calls", ("Remote calls", "A backward", "A training step", "PyTorch's tutorial")),
    ("CUDA tensors", ("A fresh CUDA", "The first open of a segment", "20,000 CUDA", "A tensor on a card", "First open of 1024",
     "A state_dict", "71576", "40538", "Copies", "Two cards")),
    ("Pinned memory and files to a GPU", ("DataLoader", "1 GiB between", "256 MiB to a card", "How long", "Release of", "open(pin",
     "onecopy.load", "18,867")),
    ("Captured graphs", ("A captured graph", "Host time", "36 captured", "An engine captures", "A parked")),
)  # fmt: skip

LEFT_OUT = ("64 MiB to 1 GiB from card to card, the slowest",)  # "Copies from card to card" has the same figures

TITLES = {
    "A group of 8 hosts, which are stores of this machine": "A group of 8 stores on one machine",
    "A version of 256 MiB goes along a chain of 8 hosts, which are stores of this machine": "A version of 256 MiB goes along a chain of 8 stores on one machine",
    "A version goes to another host": "A version goes to another store, over TLS on one machine",
    "An arena": "A KV pool",
    "An int there and back, both sides sleep": "An int there and back, in a queue that does not spin",
    "The keeper after SIGKILL of a half": "The keeper, when one of its two processes is killed",
    "71576 MiB of a card shared in pieces of a 80th": "71,576 MiB of a GPU, shared in 80 pieces",
    "40538 MiB of a card shared in pieces of a 80th": "40,538 MiB of a GPU, shared in 80 pieces",
    "A state_dict of 20000 tensors and 8192 MiB on a card": "A state_dict of 20,000 tensors and 8 GiB on a GPU",
    "Weights in a new process: 20,000 tensors, 8 GiB": "Weights in a new process: 20,000 tensors, 8 GiB, on a GPU",
    "update() of 8 GiB in 20,000 tensors, with a captured graph": "update() of 8 GiB in 20,000 tensors on a GPU, with a captured graph",
    "publish() of 8 GiB in tensors of 16 MiB": "publish() of 8 GiB in tensors of 16 MiB, on a GPU",
}

ROWS = {
    "of the owner before": "descriptors of the owner before",
    "of the owner": "descriptors of the owner afterwards",
    "of the borrower": "descriptors of the borrower",
    "the busiest of our consumers blocked for 2 s, processor time":
        "processor time of the busiest of onecopy's consumers, blocked for 2 s",
    "processor of a host while nothing happens": "processor time of an idle store",
    "memory of a host": "memory of a store",
    "from the first host's switch to the last one's": "from the first store that shows a version to the last one",
    "the first host has it": "the first store has it",
    "the last host has it": "the last store has it",
    "the worker": "the worker is killed: calls wait, median",
    "the worker: worst": "the worker is killed: calls wait, worst",
    "the guard": "the guard is killed: calls wait, median",
    "reads that saw anything else": "reads meanwhile with another value than the published one",
    "two words in shared memory": "two numbers in shared memory, without a queue",
}  # fmt: skip

NOTES = {
    "1 GiB of new weights of a trainer in another process, which reads a byte of each page": (
        "The process has opened the weights before: the round in which it maps the memory is left out.",
    ),
    "100,000 tensors alive in the receiver": (
        "Views of new tensors and values of a `state_dict()` differ from new tensors by less than one in a hundred.",
    ),
    "Hand over a tensor through Queue and back, both spinning": ("iceoryx polls its subscriber.",),
    "Hand over a tensor through Queue and back, both sleeping": ("iceoryx waits in a WaitSet.",),
    "Weights in a new process: 20,000 tensors, 8 GiB": (
        "`load_file()` alone took longer than with the copy into a module; why was not looked into.",
    ),
    "Remote calls between CUDA devices, there and back until the caller's device is done": (
        "On one GPU, two processes take turns: a GPU needs about 0.15 ms to change between processes that both give it work (measured by "
        "hand on an H200). So small tensors take longer on one GPU than between two.",
    ),
    "Copies from card to card": (
        "The links between the GPUs were not recorded. PCIe 5.0 x16 has 63 GB/s by its standard, so the GPUs of F have a faster one.",
    ),
    "publish() of 20,000 tensors as they are": ("On the H200, the tensors are on the GPU.",),
    "open() of 20,000 tensors of 4 KiB": ("On the H200, the tensors are on the GPU.",),
}

_WORDS = (
    (r"\bcards\b", "GPUs"), (r"\bcard\b", "GPU"), (r"\bfresh\b", "new"), (r"^file_(descriptor|system): alive when it stopped",
     r"torch, file_\1: tensors alive when it failed"), (r"^file_(descriptor|system): ", r"torch, file_\1: "),
    (r"^and copied into the tensors of a module", "the same, and copied into the tensors of a module"),
    (r"host held", "the caller is held for"), (r"^both processes run on all processors; only.*",
     "The queue was told that there is one processor, so a get sleeps at once; the processes run on all processors."),
    (r"^first touch: means.*", "*First touch* is a mean, since memory is reserved for more than one tensor at a time."),
)  # fmt: skip
_OF_TORCH = re.compile(r"^([^:]*): torch, (file_\w+): ")
_REPEATED = ("views of fresh tensors", "values of state_dict()", "Queue, the same tensor, beside the pipe")


def plain(text: str) -> str:
    """Returns the text with the words of the guides."""
    for old, new in _WORDS:
        text = re.sub(old, new, text)
    return text


def title_of(title: str) -> str:
    return TITLES.get(title, plain(title))


def group_of(title: str) -> str:
    """Returns the group of a section: the longest beginning that fits decides."""
    found = [(len(begin), name) for name, begins in GROUPS for begin in begins if title.startswith(begin)]
    return max(found)[1]


def rows_of(title: str, figures: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Returns the figures of a section by the names of their rows. The name of an indented figure begins with the figure
    above it to which it belongs, as does that of "the same with ..."; figures that repeat others are left out."""
    rows: dict[str, dict[str, Any]] = {}
    parent = ""
    for figure in figures:
        what = figure["what"]
        parent = parent if what.startswith(" ") else what
        if parent in _REPEATED:
            continue
        name = what if parent == what else f"{parent}: {what.strip()}"
        name = ROWS.get(name, _row(name))
        if name.startswith("the same "):
            name = f"{list(rows)[-1]}, {name.removeprefix('the same ')}"
        if name in rows:
            raise ValueError(f"{title} has two rows {name}")
        rows[name] = figure
    return rows


def _row(name: str) -> str:
    before, colon, after = name.partition(": ")
    return _OF_TORCH.sub(r"\1, by torch with \2: ", f"{plain(before)}{colon}{plain(after)}")
