# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of ``torch.distributed.checkpoint`` in the store, where they outlive the trainer.

>>> writer = onecopy.checkpoint.StoreWriter("llama")
>>> saving = dcp.async_save(state, storage_writer=writer)  # in all ranks of a host
>>> dcp.load(state, storage_reader=onecopy.checkpoint.StoreReader("llama"))

A checkpoint is one version of one object: a tensor for each shard, and the metadata as bytes. The ranks write it
together, as a draft, and the version exists once the coordinator has published the draft. If a rank is killed before
that, nothing is left of the checkpoint, and the last one stays.
"""

from ._folders import export_folder, import_folder
from ._reader import StoreReader
from ._writer import StoreWriter

__all__ = ["StoreReader", "StoreWriter", "export_folder", "import_folder"]
