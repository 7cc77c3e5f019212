# SPDX-License-Identifier: Apache-2.0
"""The writer of checkpoints."""

from __future__ import annotations

import io
import pickle
import threading
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.distributed.checkpoint import StorageWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.staging import AsyncStager, DefaultStager, StagingOptions
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future
from torch.utils._pytree import tree_leaves

from .. import store as _stores
from ..errors import StaleHandle, Unsupported
from ..store._versions import Draft
from ._common import CHECKPOINT, METADATA, Connected, done


@dataclass(frozen=True)
class _Part:
    """The part of a rank in a checkpoint."""

    handle: str | None  # of the draft; None for the only rank
    rows: list[str]  # the name of the tensor of each item; the names of bytes count, too


def _row_of(item: WriteItem) -> str:
    """Returns the name under which the checkpoint has an item: the tensor's own name, with the ranges of a shard."""
    if item.type == WriteItemType.BYTE_IO or item.tensor_data is None:
        return item.index.fqn
    chunk, size = item.tensor_data.chunk, item.tensor_data.size
    if tuple(chunk.sizes) == tuple(size):
        return item.index.fqn
    ranges = (f"{begin}:{begin + length}" for begin, length in zip(chunk.offsets, chunk.sizes))
    return f"{item.index.fqn}[{', '.join(ranges)}]"


class _Save(threading.local):
    """The save that a thread makes: torch makes all steps of one in one thread."""

    checkpoint: str | None = None
    draft: Draft | None = None


class StoreWriter(Connected, AsyncStager, StorageWriter):
    """Saves checkpoints as versions of an object, for ``dcp.save()`` and ``dcp.async_save()``.

    All ranks must run on one host. A ``checkpoint_id`` of the call becomes an attribute of the version.
    ``async_save()`` blocks for one copy of the state, and a second save reuses the memory of that copy.

    Args:
        name: the name of the object, the same in all ranks.
        store: a connection to the store; None for a new one.
        keep: the number of checkpoints to keep, including the new one.
    """

    def __init__(self, name: str, store: _stores.Store | None = None, *, keep: int = 2) -> None:
        Connected.__init__(self, name, store)
        self._keep = keep
        self._clear()

    def _clear(self) -> None:
        self._save = _Save()
        self._stager: DefaultStager | None = None
        self._staged: list[weakref.ref[Any]] = []
        self.version: int | None = None  #: the number of the last checkpoint, in the coordinator

    def __getstate__(self) -> dict[str, Any]:
        return {"_name": self._name, "_given": None, "_keep": self._keep}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._clear()

    def reset(self, checkpoint_id: Any = None) -> None:
        """Begins a checkpoint, and gives the memory of one up that failed."""
        self._save.checkpoint = None if checkpoint_id is None else str(checkpoint_id)
        self._save.draft = None

    # --- staging

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Copies a state, so that the trainer may go on. Reuses the memory of the last copy if that is not in use."""
        if self._stager is None or any(tensor() is not None for tensor in self._staged):
            has_card = torch.accelerator.is_available()
            self._stager = DefaultStager(StagingOptions(has_card, False, False, has_card))
        staged = self._stager.stage(state_dict)
        assert isinstance(staged, dict)
        self._staged = [weakref.ref(leaf) for leaf in tree_leaves(staged) if isinstance(leaf, torch.Tensor)]
        return staged

    def synchronize_staging(self) -> None:
        """Has no effect, since ``stage()`` returns after the copy."""

    def close(self) -> None:
        """Releases the memory of the copy."""
        if self._stager is not None:
            self._stager.close()
        self._stager = None

    # --- the steps of a save

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Refuses a save in which the ranks do not make one checkpoint together."""
        if not kwargs.get("use_collectives", True):
            raise Unsupported("a checkpoint in the store is one version of all ranks; save with use_collectives=True")

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Returns the plan."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Makes the draft of the checkpoint, with the tensors of all ranks."""
        if not all(plan.usable for plan in plans):
            raise Unsupported("a checkpoint in the store needs its whole plan; save without enable_plan_caching")
        layout: dict[str, tuple[Any, Any]] = {}
        rows = [self._add(layout, plan.items) for plan in plans]
        id = self._save.checkpoint
        attributes = {} if id is None else {CHECKPOINT: id}
        draft = self._save.draft = self._store.draft(self._name, layout, keep=self._keep, attributes=attributes)
        handle = draft.handle if len(plans) > 1 else None
        return [replace(plan, storage_data=_Part(handle, mine)) for plan, mine in zip(plans, rows)]

    def _add(self, layout: dict[str, tuple[Any, Any]], items: Iterable[WriteItem]) -> list[str]:
        rows = []
        for item in items:
            rows.append(_row_of(item))
            if item.type == WriteItemType.BYTE_IO or item.tensor_data is None:
                continue
            while rows[-1] in layout:  # the planner was told to save replicas, too
                rows[-1] += "'"
            layout[rows[-1]] = tuple(item.tensor_data.chunk.sizes), item.tensor_data.properties.dtype
        return rows

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Copies the tensors of this rank into the draft, one by one."""
        if self._save.draft is not None:
            return done(self._write(self._save.draft, plan, planner))
        if not plan.items:
            return done([])
        with self._join(plan.storage_data.handle) as draft:
            return done(self._write(draft, plan, planner))

    def _join(self, handle: str) -> Draft:
        try:
            return self._store.join_draft(handle)
        except StaleHandle as error:
            raise StaleHandle(
                f"{error}; the ranks of a checkpoint must find one store, so they must run on one host"
            ) from None

    @staticmethod
    def _write(draft: Draft, plan: SavePlan, planner: SavePlanner) -> list[WriteResult]:
        results = []
        for item, row in zip(plan.items, plan.storage_data.rows):
            data = planner.resolve_data(item)
            if isinstance(data, io.BytesIO):
                content = data.getvalue()
                results.append(WriteResult(item.index, len(content), (row, content)))
            else:
                draft[row].copy_(data.detach())
                results.append(WriteResult(item.index, data.nbytes, (row, None)))
        return results

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Publishes the checkpoint."""
        draft, self._save.draft = self._save.draft, None
        assert draft is not None
        metadata.storage_data = {}
        for result in (each for part in results for each in part):
            row, content = result.storage_data
            metadata.storage_data[result.index] = row
            if content is not None:
                draft[row] = content
        metadata.storage_meta = self.storage_meta()
        draft[METADATA] = pickle.dumps(metadata)
        self.version = draft.publish()

    def storage_meta(self) -> StorageMeta:
        """Returns what the planner may know of the checkpoint."""
        return StorageMeta(checkpoint_id=self._save.checkpoint)
