# SPDX-License-Identifier: Apache-2.0
"""LMCache's storage plugin: a process shares a chunk as a bundle, and the catalogue maps its key to its handle."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from typing import Any

from .. import OutOfMemory, empty, open as _open, share as _share
from .._notices import _OF_NO_USE
from ._catalogue import Catalogue
from ._packages import need

_base = need("lmcache.v1.storage_backend.abstract_backend", "lmcache", "onecopy.integrations.lmcache")

_DEFAULT_GIB = 8.0


class OnecopyBackend(_base.StoragePluginInterface):  # type: ignore[name-defined]
    """Keeps the chunks that this process has put, and reads the chunks of other processes.

    If the memory is full, the least recently used chunks are dropped. A chunk is copied once by a put, and once into
    LMCache's own memory by a get. When its process ends, other processes no longer find the chunk; a read that has
    begun succeeds.
    """

    def __init__(self, config: Any = None, metadata: Any = None, local_cpu_backend: Any = None, loop: Any = None,
                 dst_device: str = "cpu") -> None:  # fmt: skip
        super().__init__(
            dst_device=dst_device, config=config, metadata=metadata, local_cpu_backend=local_cpu_backend, loop=loop
        )
        extra = getattr(config, "extra_config", None) or {}
        self._room = int(float(extra.get("onecopy.max_gib", _DEFAULT_GIB)) * (1 << 30))
        self._catalogue = Catalogue(f"lmcache {extra.get('onecopy.title', '')} {os.geteuid()}")
        self._lock = threading.Lock()
        self._chunks: OrderedDict[str, int] = OrderedDict()  # bytes by key, the most recently used last
        self._pinned: dict[str, int] = {}
        self._bytes = 0

    def __str__(self) -> str:
        return "OnecopyBackend"

    def contains(self, key: Any, pin: bool = False) -> bool:
        with self._lock:
            there = bool(self._catalogue.find(key.to_string()))
            if there and pin:
                self._add_pin(key.to_string())
            return there

    def exists_in_put_tasks(self, key: Any) -> bool:
        return False  # a put is complete when it returns

    def batched_submit_put_task(self, keys: Any, objs: Any, transfer_spec: Any = None,
                                on_complete_callback: Any = None) -> None:  # fmt: skip
        for key, obj in zip(keys, objs, strict=True):
            if self._put(key.to_string(), obj) and on_complete_callback is not None:
                on_complete_callback(key)

    def get_blocking(self, key: Any) -> Any:
        chunk = self._open(key.to_string())
        if chunk is None or self.local_cpu_backend is None:
            return None
        shape, dtype, fmt = chunk["shape"], chunk["data"].dtype, chunk["fmt"]
        memory = self.local_cpu_backend.allocate(_shape(shape), dtype, _format(fmt))
        if memory is None:
            return None
        memory.tensor.copy_(chunk["data"].view(shape))
        return memory

    async def batched_async_contains(self, lookup_id: str, keys: Any, pin: bool = False) -> int:
        return int(self.batched_contains(keys, pin))

    async def batched_get_non_blocking(self, lookup_id: str, keys: Any, transfer_spec: Any = None) -> list[Any]:
        found = []
        for key in keys:
            memory = self.get_blocking(key)
            if memory is None:  # chunks behind a missing one cannot be used
                break
            found.append(memory)
        return found

    def pin(self, key: Any) -> bool:
        return self.contains(key, pin=True)

    def unpin(self, key: Any) -> bool:
        with self._lock:
            name = key.to_string()
            left = self._pinned.pop(name, 0) - 1
            if left > 0:
                self._pinned[name] = left
            return left >= 0

    def remove(self, key: Any, force: bool = True) -> bool:
        """Removes a chunk. Returns False for a chunk of another process, and for a pinned one without ``force``."""
        with self._lock:
            name = key.to_string()
            if name not in self._chunks or (name in self._pinned and not force):
                return False
            self._drop(name)
            return True

    def touch_cache(self) -> None:
        pass  # a get touches a chunk

    def get_allocator_backend(self) -> Any:
        return self.local_cpu_backend

    def close(self) -> None:
        with self._lock:
            self._catalogue.close()
            self._chunks.clear()
            self._bytes = 0

    def _put(self, name: str, memory: Any) -> bool:
        """Stores a chunk. Returns False if it is stored already, or if there is not enough memory."""
        tensor = memory.tensor
        with self._lock:
            if self._catalogue.find(name) or not self._make_room(tensor.nbytes):
                return False
        chunk = {"shape": list(tensor.shape), "fmt": memory.get_memory_format().name, "data": _copy(tensor)}
        if chunk["data"] is None:
            return False
        with self._lock:
            self._catalogue.put(name, _share(chunk))
            self._chunks[name] = tensor.nbytes
            self._bytes += tensor.nbytes
        return True

    def _make_room(self, size: int) -> bool:
        for name in [name for name in self._chunks if name not in self._pinned]:
            if self._bytes + size <= self._room:
                break
            self._drop(name)
        return self._bytes + size <= self._room

    def _drop(self, name: str) -> None:
        self._catalogue.drop(name)
        self._bytes -= self._chunks.pop(name)

    def _add_pin(self, name: str) -> None:
        self._pinned[name] = self._pinned.get(name, 0) + 1

    def _open(self, name: str) -> Any:
        with self._lock:
            handles = self._catalogue.find(name)
            if name in self._chunks:
                self._chunks.move_to_end(name)
        for text in handles:
            with contextlib.suppress(*_OF_NO_USE):
                return _open(text, framework="torch").tree()
        return None


def _copy(tensor: Any) -> Any:
    """Returns a copy in shared memory, or None if there is no memory left."""
    with contextlib.suppress(OutOfMemory):
        copy = empty(tuple(tensor.shape), dtype=str(tensor.dtype).removeprefix("torch.")).torch()
        copy.copy_(tensor)
        return copy
    return None


def _shape(sizes: list[int]) -> Any:
    import torch

    return torch.Size(sizes)


def _format(name: str) -> Any:
    return need("lmcache.v1.memory_management", "lmcache", "onecopy.integrations.lmcache").MemoryFormat[name]
