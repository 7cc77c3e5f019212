# SPDX-License-Identifier: Apache-2.0
"""Measures checkpoints of torch.distributed.checkpoint in the store, beside files in memory and torch's own staging."""

from __future__ import annotations

import contextlib
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from effort import Effort
from loaded_model import wanted_gib
from report import Row, at_most
from samples import Samples, time_ns
from store_versions import own_store

_ROUNDS = 5
_TENSOR = 16 << 20  # bytes of each tensor


def _state(gib: float, value: float) -> dict[str, Any]:
    import torch

    count = max(1, int(gib * 2**30) // _TENSOR)
    return {f"layers.{i}.weight": torch.full((_TENSOR // 4,), value) for i in range(count)}


def checkpoint(effort: Effort) -> Row:
    """Measures how long async_save() blocks, beside a copy of the state, and a load into the same sharding."""
    import torch
    import torch.distributed.checkpoint as dcp

    from onecopy.checkpoint import StoreReader, StoreWriter

    warnings.filterwarnings("ignore", module="torch.distributed.checkpoint")
    gib = wanted_gib()
    torch.set_num_threads(1)
    state, copy, target = (_state(gib, value) for value in (1.0, 0.0, 0.0))
    row = Row(
        f"Checkpoint of {len(state) * _TENSOR / 2**30:g} GiB by torch.distributed.checkpoint",
        "async_save() blocks for ≤ 1.1 x a copy of the state; a load into the same sharding takes ≤ 5 ms",
    )
    ways = ("copy", "the store", "torch", "saved", "loaded", "file saved", "file loaded", "process", "process saved")
    found = {way: Samples() for way in ways}
    with own_store() as store, tempfile.TemporaryDirectory(dir="/dev/shm") as folder, _process() as by_process:
        writer = StoreWriter("checkpoint", store)
        dcp.async_save(state, storage_writer=writer).result()
        by_process(state, folder).result()  # starts the process
        for _ in range(effort.rounds(_ROUNDS)):
            found["copy"].append(time_ns(lambda: [copy[name].copy_(each) for name, each in state.items()]))
            _async(found["the store"], found["saved"], lambda: dcp.async_save(state, storage_writer=writer))
            files = dcp.FileSystemWriter(folder, overwrite=True)
            _async(found["torch"], found["file saved"], lambda files=files: dcp.async_save(state, storage_writer=files))
            _async(found["process"], found["process saved"], lambda: by_process(state, folder))
            for way, reader in (
                ("loaded", StoreReader("checkpoint", store)),
                ("file loaded", dcp.FileSystemReader(folder)),
            ):
                target = _state(gib, 0.0)
                found[way].append(time_ns(lambda target=target, reader=reader: dcp.load(target, storage_reader=reader)))
                if not all(tensor[0] == 1 for tensor in target.values()):
                    raise RuntimeError(f"{way}: another state was loaded")
    blocks = at_most(found["the store"].ratio_to(found["copy"]), 1.1)
    row.judge_ratio(
        "async_save() blocks, in the store", found["the store"].median(), "ns", "a copy of the state", blocks
    )
    row.judge("load from the store", found["loaded"].median(), "ns", at_most(found["loaded"].median(), 5e6))
    row.add("a copy of the state into warm memory", found["copy"].median(), "ns")
    row.add("async_save() in the store until it is saved", found["saved"].median(), "ns")
    row.add("async_save() blocks, by torch with FileSystemWriter on tmpfs", found["torch"].median(), "ns")
    row.add("async_save() by torch until it is saved", found["file saved"].median(), "ns")
    row.add("async_save() blocks, by torch's own process with the same writer", found["process"].median(), "ns")
    row.add("async_save() by torch's own process until it is saved", found["process saved"].median(), "ns")
    row.add("load by FileSystemReader from tmpfs", found["file loaded"].median(), "ns")
    row.note("one process; a load from the store copies nothing, and a page is mapped when it is read first")
    return row


@contextlib.contextmanager
def _process() -> Iterator[Callable[[dict[str, Any], str], Any]]:
    """Yields a function that saves by torch's own process, which reads the staged state in shared memory."""
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import _async_process_executor
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    stager = DefaultStager(StagingOptions(False, True, False, False))
    with tempfile.TemporaryDirectory() as meeting:
        dist.init_process_group("gloo", init_method=f"file://{meeting}/ranks", rank=0, world_size=1)
        try:
            yield lambda state, folder: dcp.async_save(
                state, storage_writer=dcp.FileSystemWriter(folder, overwrite=True), async_stager=stager,
                async_checkpointer_type=AsyncCheckpointerType.PROCESS,
            )  # fmt: skip
        finally:
            _async_process_executor._CHECKPOINT_PROCESS = None  # ends the process
            stager.close()
            dist.destroy_process_group()


def _async(blocks: Samples, saved: Samples, save: Callable[[], Any]) -> None:
    """Measures how long a save blocks, and when it is saved."""
    saving = []
    blocks.append(time_ns(lambda: saving.append(save())))
    saved.append(blocks[-1] + time_ns(lambda: saving.pop().result()))
