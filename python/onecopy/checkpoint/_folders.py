# SPDX-License-Identifier: Apache-2.0
"""Copies checkpoints between the store and folders of torch's own format."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter, StorageWriter
from torch.distributed.checkpoint.metadata import STORAGE_TYPES, Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    ReadItem,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)

from .. import store as _stores
from ..errors import InvalidArgument
from ._common import METADATA
from ._reader import StoreReader
from ._writer import StoreWriter


def import_folder(
    folder: str | os.PathLike[str], name: str, store: _stores.Store | None = None, *, keep: int = 2
) -> int:
    """Publishes a checkpoint that ``dcp.save()`` wrote into a folder, and returns the number of the version.

    The version has the shards of the folder, and the folder's own name as its ``checkpoint_id``. One shard at a time is
    in memory beside the version. torch unpickles the metadata, so the folder must come from a source that you trust.

    Args:
        folder: the folder, which has a file ``.metadata``.
        name: the name of the object.
        store: a connection to the store; None for a new one.
        keep: the number of checkpoints to keep, including the new one.

    Raises:
        InvalidArgument: the folder is not a complete checkpoint.
        OutOfMemory: memory or the keeper's limit is used up; nothing is left of the version.
    """
    path = Path(folder).absolute()
    if not (path / METADATA).is_file():
        raise InvalidArgument(f"{path} has no file {METADATA}, so it is not a complete checkpoint of dcp.save()")
    reader, writer = FileSystemReader(path), StoreWriter(name, store, keep=keep)
    metadata = reader.read_metadata()
    reader.set_up_storage_reader(metadata, True)
    _write(writer, path.name, metadata, lambda item: _read(reader, item))
    assert writer.version is not None
    return writer.version


def export_folder(
    name: str, folder: str | os.PathLike[str], store: _stores.Store | None = None, version: int | None = None
) -> int:
    """Writes a checkpoint of the store into a folder for ``dcp.load(checkpoint_id=folder)``, and returns its number.

    The folder is a checkpoint once all of it is on disk.

    Args:
        name: the name of the object.
        folder: a folder without a checkpoint, which is made if it does not exist.
        store: a connection to the store; None for a new one.
        version: the number of the checkpoint; None for the last one.

    Raises:
        InvalidArgument: the folder has a checkpoint, or the version is not a checkpoint.
        StaleHandle: the version does not exist.
    """
    path = Path(folder).absolute()
    if (path / METADATA).exists():
        raise InvalidArgument(f"{path} has a checkpoint already; name another folder, or remove that one")
    reader = StoreReader(name, store, version)
    metadata = reader.read_metadata()
    source, rows = reader._version, metadata.storage_data
    assert source is not None

    def content(item: WriteItem) -> Any:
        found = source[rows[item.index]]
        return io.BytesIO(found) if isinstance(found, bytes) else found

    _write(FileSystemWriter(path, overwrite=False), path, metadata, content)
    return source.version


class _Planner(NamedTuple):
    """The part of a ``SavePlanner`` that writers use: gives the content of each item when it is written."""

    resolve_data: Callable[[WriteItem], Any]


class _Destination:
    """The part of a ``LoadPlanner`` that readers use, for a plan of one item."""

    def __init__(self, item: WriteItem) -> None:
        self._data = item.tensor_data
        self.content: Any = None

    def load_bytes(self, item: ReadItem, value: io.BytesIO) -> None:
        self.content = value

    def resolve_tensor(self, item: ReadItem) -> torch.Tensor:
        assert self._data is not None
        self.content = torch.empty(self._data.chunk.sizes, dtype=self._data.properties.dtype)
        return self.content

    def commit_tensor(self, item: ReadItem, tensor: torch.Tensor) -> None:
        """Does nothing, since the tensor is the content."""


def _write(
    writer: StorageWriter, id: str | os.PathLike[str], metadata: Metadata, content: Callable[[WriteItem], Any]
) -> None:
    """Makes all steps of a save with the shards of a checkpoint, as its only rank."""
    items = [item for name, entry in metadata.state_dict_metadata.items() for item in _items(name, entry)]
    writer.reset(id)
    writer.set_up_storage_writer(True)
    (plan,) = writer.prepare_global_plan([writer.prepare_local_plan(SavePlan(items))])
    planner: Any = _Planner(content)
    results = writer.write_data(plan, planner).wait()
    writer.finish(replace(metadata, storage_data=None), [results])


def _items(name: str, entry: STORAGE_TYPES) -> Iterator[WriteItem]:
    if not isinstance(entry, TensorStorageMetadata):
        yield WriteItem(MetadataIndex(name), WriteItemType.BYTE_IO)
        return
    for number, chunk in enumerate(entry.chunks):
        data = TensorWriteData(chunk, entry.properties, entry.size)
        yield WriteItem(MetadataIndex(name, chunk.offsets, number), WriteItemType.SHARD, tensor_data=data)


def _read(reader: FileSystemReader, item: WriteItem) -> Any:
    data, nothing = item.tensor_data, torch.Size([])
    kind = LoadItemType.BYTE_IO if data is None else LoadItemType.TENSOR
    sizes = nothing if data is None else data.chunk.sizes
    begin = torch.Size([0] * len(sizes))
    destination: Any = _Destination(item)
    plan = LoadPlan([ReadItem(kind, item.index, begin, item.index, begin, sizes)])
    reader.read_data(plan, destination).wait()
    return destination.content
