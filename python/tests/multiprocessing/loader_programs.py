# SPDX-License-Identifier: Apache-2.0
"""Runs random programs of torch's DataLoader and prints what each of them saw: loader_programs.py MODE FIRST COUNT.

``stock`` does not import onecopy, ``import`` imports onecopy.multiprocessing, and ``context`` also gives its context to the
loaders. A program is a function of its seed alone, so that the three print the same lines.
"""

from __future__ import annotations

import collections
import gc
import hashlib
import json
import random
import sys
import warnings

import numpy
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

Point = collections.namedtuple("Point", "x y")
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64]
CONTAINERS = ["tensor", "dict", "list", "tuple", "point", "array", "text", "views", "nothing", "parameter"]


class BadItem(Exception):
    """The exception of an item that fails."""


def tensor_of(index: int, plan: dict) -> torch.Tensor:
    """A tensor that says its index; its shape depends on the index if batches need not be stacked."""
    rows = 1 + index % 3 if plan["ragged"] else plan["rows"]
    value = torch.full((rows, plan["columns"]), float(index)) + torch.arange(plan["columns"])
    if plan["random"]:
        value = value + torch.rand(value.shape) + numpy.random.RandomState(index).rand()
    return value.to(plan["dtype"])


def item_of(index: int, plan: dict):
    """The item with that index, in the container of the plan. Raises BadItem at the item that fails."""
    if index == plan["bad_item"]:
        raise BadItem(f"item {index}")
    tensor = tensor_of(index, plan)
    match plan["container"]:
        case "dict":
            return {"x": tensor, "y": index, "z": {"t": tensor[:1] + 1}}
        case "list":
            return [tensor, [torch.tensor(index), float(index)]]
        case "tuple":
            return tensor, str(index)
        case "point":
            return Point(tensor, index)
        case "array":
            return numpy.arange(plan["columns"]) + index
        case "text":
            return "item" * index
        case "views":
            return [tensor, tensor[:, ::2], tensor.t(), tensor]
        case "nothing":
            return torch.empty(0, 3), torch.tensor(index).expand(2, 2)
        case "parameter":
            return {"w": torch.nn.Parameter(tensor.float(), requires_grad=index % 2 == 0)}
    return tensor


class Items(Dataset):
    """A dataset that may return the same tensors in each epoch."""

    def __init__(self, plan: dict) -> None:
        self.plan, self.cache = plan, {}

    def __len__(self) -> int:
        return self.plan["items"]

    def __getitem__(self, index: int):
        if not self.plan["cached"]:
            return item_of(index, self.plan)
        if index not in self.cache:
            self.cache[index] = item_of(index, self.plan)
        return self.cache[index]


class Stream(IterableDataset):
    """A stream that the workers split."""

    def __init__(self, plan: dict) -> None:
        self.plan = plan

    def __iter__(self):
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for index in range(first, self.plan["items"], step):
            yield item_of(index, self.plan)


def collate_by_item(items):
    return items


def collate_with_count(items):
    return {"count": len(items), "items": tuple(items), "again": items[0]}


def plan_of(seed: int) -> dict:
    r = random.Random(seed)
    plan = {
        "container": r.choice(CONTAINERS),
        "dtype": r.choice(DTYPES),
        "rows": r.choice([1, 2, 5]),
        "columns": r.choice([1, 4, 300, 20_000]),
        "items": r.choice([0, 1, 5, 9, 14]),
        "random": r.random() < 0.3,
        "cached": r.random() < 0.3,
        "bad_item": r.choice([-1, -1, -1, 3]),
        "stream": r.random() < 0.25,
        "workers": r.choice([1, 1, 2, 3]),
        "batch": r.choice([None, 1, 2, 4]),
        "collate": r.choice([None, None, collate_by_item, collate_with_count]),
        "persistent": r.random() < 0.4,
        "prefetch": r.choice([1, 2, 4]),
        "shuffle": r.random() < 0.3,
        "epochs": r.choice([1, 2, 3]),
        "stop_after": r.choice([None, None, 0, 1, 3]),
        "keep": r.choice(["nothing", "all", "some", "first"]),
        "write": r.random() < 0.3,
        "drop_last": r.random() < 0.2,
    }
    plan["ragged"] = (plan["batch"] is None or plan["collate"] is not None) and r.random() < 0.5
    return plan


def loader_of(plan: dict, context) -> DataLoader:
    options = {"num_workers": plan["workers"], "prefetch_factor": plan["prefetch"], "multiprocessing_context": context}
    options |= {"persistent_workers": plan["persistent"], "batch_size": plan["batch"], "timeout": 100}
    if plan["batch"] is not None:
        options |= {"collate_fn": plan["collate"], "drop_last": plan["drop_last"]}
    if plan["stream"]:
        return DataLoader(Stream(plan), **options)
    shuffle = plan["shuffle"] and plan["items"] > 0  # torch's sampler refuses an empty dataset
    return DataLoader(Items(plan), shuffle=shuffle, generator=torch.Generator().manual_seed(1), **options)


def tensors_in(value):
    """Yields the tensors of a nested value."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors_in(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors_in(part)


def seen(value) -> str:
    """What can be told of a value: types, layouts and bits."""
    if isinstance(value, torch.Tensor):
        bits = value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
        kind = [type(value).__name__, value.dtype, tuple(value.shape), value.stride(), value.requires_grad]
        return f"{kind} {hashlib.sha1(bits).hexdigest()[:12]}"
    if isinstance(value, numpy.ndarray):
        return f"array {value.dtype} {value.tolist()}"
    if isinstance(value, dict):
        return f"{type(value).__name__} {[(key, seen(part)) for key, part in value.items()]}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__} {[seen(part) for part in value]}"
    return repr(value)


def run_epoch(loader: DataLoader, plan: dict, kept: list, r: random.Random) -> list[str]:
    lines = []
    try:
        for number, batch in enumerate(loader):
            if number == plan["stop_after"]:
                lines.append("stopped")
                break
            lines.append(seen(batch))
            if plan["write"] and not plan["cached"] and plan["container"] not in ("parameter", "nothing"):
                for tensor in tensors_in(batch):
                    tensor.zero_()
            if plan["keep"] == "all" or (plan["keep"] == "some" and r.random() < 0.5):
                kept.append((batch, seen(batch)))
            elif plan["keep"] == "first":
                kept.extend((tensor[:1], seen(tensor[:1])) for tensor in tensors_in(batch) if tensor.dim())
    except Exception as error:
        lines.append(f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}")
    return lines


def run(seed: int, context) -> list[str]:
    plan, r = plan_of(seed), random.Random(seed)
    torch.manual_seed(seed)
    lines, kept = [], []
    loader = loader_of(plan, context)
    for _ in range(plan["epochs"]):
        lines += run_epoch(loader, plan, kept, r)
        gc.collect()
        if r.random() < 0.5:
            del kept[::2]
    del loader
    gc.collect()
    lines += [f"a kept batch changed: {before}" for batch, before in kept if seen(batch) != before]
    return lines


def main(mode: str, first: int, count: int) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    context = "fork"
    if mode != "stock":
        import onecopy.multiprocessing as mp

        context = mp.get_context("fork") if mode == "context" else "fork"
    for seed in range(first, first + count):
        print(json.dumps([seed, run(seed, context)]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
