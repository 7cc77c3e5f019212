# SPDX-License-Identifier: Apache-2.0
"""The reader of checkpoints."""

from __future__ import annotations

import io
import mmap
import os
import pickle
from dataclasses import replace
from typing import Any

import torch
from torch.distributed.checkpoint import StorageReader
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner
from torch.futures import Future

from .. import store as _stores
from ..errors import InvalidArgument, StaleHandle
from ..store._versions import Version
from ._common import CHECKPOINT, METADATA, Connected, done


class StoreReader(Connected, StorageReader):
    """Loads a checkpoint that a ``StoreWriter`` saved, with any number of ranks, for ``dcp.load()``.

    A shard on the host that was saved as it is loaded is not copied, if it fills the memory of its tensor: the tensor
    gets the memory of the checkpoint, of which a write copies the page that it touches. Other shards are copied into
    the tensors.

    Args:
        name: the name of the object.
        store: a connection to the store; None for a new one.
        version: the number of the checkpoint; None for the last one, or for the last one with the ``checkpoint_id`` of
            the call.
    """

    def __init__(self, name: str, store: _stores.Store | None = None, version: int | None = None) -> None:
        Connected.__init__(self, name, store)
        self._number = version
        self._clear()

    def _clear(self) -> None:
        self._checkpoint: str | None = None
        self._version: Version | None = None
        self.bytes_in_place = 0  #: the bytes of the last load that were not copied

    def __getstate__(self) -> dict[str, Any]:
        return {"_name": self._name, "_given": None, "_number": self._number}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._clear()

    def reset(self, checkpoint_id: Any = None) -> None:
        """Begins a load."""
        self._clear()
        self._checkpoint = None if checkpoint_id is None else str(checkpoint_id)

    def read_metadata(self, *args: Any) -> Metadata:
        """Opens the checkpoint, and returns its metadata."""
        self._version = self._find()
        if METADATA not in self._version:
            raise InvalidArgument(f"{self._name!r} is not a checkpoint of StoreWriter: it has no metadata")
        metadata = pickle.loads(self._version[METADATA])
        assert isinstance(metadata, Metadata)
        return metadata

    def _find(self) -> Version:
        if self._number is not None or self._checkpoint is None:
            return self._open(self._number)
        numbers = [v["version"] for e in self._store.list() if e["name"] == self._name for v in e["versions"]]
        ids = {}
        for number in sorted(numbers, reverse=True):
            version = self._open(number)
            ids[number] = version.attributes.get(CHECKPOINT)
            if ids[number] == self._checkpoint:
                return version
        raise StaleHandle(f"the store has no checkpoint {self._checkpoint!r} of {self._name!r}; it has {ids}")

    def _open(self, number: int | None) -> Version:
        return self._store.open(self._name, number)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Takes the places of the items."""
        self._rows = metadata.storage_data

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Adds the number of the version that this rank reads to the plan."""
        assert self._version is not None
        return replace(plan, storage_data=self._version.version)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Refuses plans for different versions."""
        numbers = {plan.storage_data for plan in plans}
        if len(numbers) > 1:
            raise StaleHandle(
                f"a checkpoint was saved while the ranks began to load, so that they read the versions "
                f"{sorted(numbers)}; load again"
            )
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Gives the tensors of this rank the content of the checkpoint."""
        version, rows = self._version, self._rows
        assert version is not None
        memory = _PrivateMemory(version)
        for item in plan.items:
            source = version[rows[item.storage_index]]
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, io.BytesIO(source))
                continue
            for dim, (begin, length) in enumerate(zip(item.storage_offsets, item.lengths)):
                source = source.narrow(dim, begin, length)
            target = planner.resolve_tensor(item).detach()
            if memory.moves(source, target):
                self.bytes_in_place += target.nbytes
            else:
                target.copy_(source)
            planner.commit_tensor(item, target)
        self._version = None
        return done(None)


class _PrivateMemory:
    """The memory of a version, mapped for this process alone: a write copies the page that it touches."""

    def __init__(self, version: Version) -> None:
        self._version = version
        self._memory: mmap.mmap | None = None
        self._exchange = getattr(torch.UntypedStorage, "_swap_data_ptr_", None)  # torch 2.12 and later

    def moves(self, source: Any, target: Any) -> bool:
        """Gives a tensor the memory of a tensor of the version.

        Returns False, with nothing done, if more than that tensor would move, or if torch cannot do it.
        """
        if self._exchange is None or not _fits(source, target):
            return False
        if self._memory is None:
            self._memory = self._map()
        offset = source.storage_offset() * source.element_size()
        private = torch.frombuffer(self._memory, dtype=torch.uint8, count=source.nbytes, offset=offset)
        self._exchange(target.untyped_storage(), private.untyped_storage())
        return True

    def _map(self) -> mmap.mmap:
        file = self._version._core.descriptor()
        try:
            return mmap.mmap(file, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        finally:
            os.close(file)


def _fits(source: Any, target: Any) -> bool:
    """Returns whether a target on the host is like its source and fills a storage whose address nobody has."""
    storage = target.untyped_storage() if type(target) is torch.Tensor else None
    return (
        storage is not None
        and source.device.type == target.device.type == "cpu"
        and (source.dtype, source.shape, source.stride()) == (target.dtype, target.shape, target.stride())
        and source.is_contiguous()
        and not (target.is_conj() or target.is_neg())
        and source.nbytes == storage.nbytes() > 0
        and storage.resizable()  # false for memory of numpy, and for memory that is shared already
        and not target.is_pinned()
    )
