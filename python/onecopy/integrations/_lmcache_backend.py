# SPDX-License-Identifier: Apache-2.0
"""LMCache's storage plugin: each chunk is a block of a KV pool, which all engines of the host read in place."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch

from .. import OutOfMemory, store
from ._kv_space import open_named
from ._packages import need

_base = need("lmcache.v1.storage_backend.abstract_backend", "lmcache", "onecopy.integrations.lmcache")
_memory = need("lmcache.v1.memory_management", "lmcache", "onecopy.integrations.lmcache")

_FORM_BYTES = 256  # behind the data of a chunk: its shape, dtype and format as JSON


class OnecopyBackend(_base.StoragePluginInterface):  # type: ignore[name-defined]
    """Keeps chunks in a KV pool of the store, whose leases are LMCache's references and pins.

    LMCache copies a chunk into memory of ``allocate()`` and puts it. Each engine reads the chunk where it is. A chunk
    without a lease stays until its place is needed, whatever happens to the engine that stored it; the chunk that was
    used least recently goes first. Thread safety: all methods may be called concurrently.
    """

    def __init__(self, config: Any = None, metadata: Any = None, local_cpu_backend: Any = None, loop: Any = None,
                 dst_device: str = "cpu") -> None:  # fmt: skip
        super().__init__(
            dst_device=dst_device, config=config, metadata=metadata, local_cpu_backend=local_cpu_backend, loop=loop
        )
        if config.local_cpu:
            raise ValueError("set local_cpu: false: LMCache's own cache would hold chunks of the KV pool for ever")
        self._extra = config.extra_config or {}
        self._lock = threading.RLock()
        self._opened: store.KvPool | None = None
        self._pins: dict[str, list[int]] = defaultdict(list)  # a lease for each pin, by key

    def __str__(self) -> str:
        return "OnecopyBackend"

    @property
    def _kv_pool(self) -> store.KvPool:
        """The KV pool of chunks of this size. LMCache knows the size when the engine has registered its layers."""
        with self._lock:  # one KV pool for all threads, since a lease ends by the object that made it
            self._opened = self._opened or self._open()
            return self._opened

    def _open(self) -> store.KvPool:
        shapes, dtypes = self.metadata.get_shapes(), self.metadata.get_dtypes()
        chunk = sum(shape.numel() * dtype.itemsize for shape, dtype in zip(shapes, dtypes, strict=True))
        size = -(-chunk // 64) * 64 + _FORM_BYTES
        return open_named(
            self._extra, block_bytes=size, pin=self.dst_device != "cpu",
            space=f"lmcache/{self._extra.get('onecopy.title', '')}/{chunk}",
        )  # fmt: skip

    # --- memory: LMCache allocates here what it puts, and frees here what it has got

    def get_allocator_backend(self) -> OnecopyBackend:
        return self

    def allocate(self, shape: torch.Size, dtype: torch.dtype, fmt: Any, **_: Any) -> Any:
        """Returns a MemoryObj of one block; None if the chunk is larger or all blocks are leased."""
        if shape.numel() * dtype.itemsize > self._kv_pool.block_bytes - _FORM_BYTES:
            return None
        try:
            [block] = self._kv_pool.allocate(1)
        except OutOfMemory:
            return None
        return self._object(block, shape, dtype, fmt)

    def free(self, memory: Any, allocator_type: str | None = None) -> None:
        memory.invalidate()
        self._kv_pool.release([memory.meta.address])

    def batched_free(self, memories: Iterable[Any], allocator_type: str | None = None, *_: Any, **__: Any) -> None:
        for memory in memories:
            self.free(memory)

    def _object(self, block: int, shape: torch.Size, dtype: torch.dtype, fmt: Any) -> Any:
        data = self._kv_pool.block(block)[:-_FORM_BYTES]
        meta = _memory.MemoryObjMetadata(
            shape, dtype, address=block, phy_size=len(data), ref_count=1, fmt=fmt, shapes=[shape], dtypes=[dtype]
        )
        return _memory.TensorMemoryObj(data, meta, self)

    # --- storing

    def exists_in_put_tasks(self, key: Any) -> bool:
        return False  # a put is complete when it returns

    def batched_submit_put_task(self, keys: Any, objs: Any, transfer_spec: Any = None,
                                on_complete_callback: Any = None) -> None:  # fmt: skip
        """Stores objects of ``allocate()``."""
        for key, obj in zip(keys, objs, strict=True):
            if obj.parent() is not self:
                raise TypeError("a chunk is in memory of another backend: copy it into memory of allocate() here")
            form = {"shape": list(obj.meta.shape), "dtype": str(obj.meta.dtype), "fmt": obj.meta.fmt.name}
            text = bytearray(json.dumps(form).encode().ljust(_FORM_BYTES))
            self._kv_pool.block(obj.meta.address)[-_FORM_BYTES:] = torch.frombuffer(text, dtype=torch.uint8)
            if self._kv_pool.put(_digest(key), obj.meta.address) and on_complete_callback is not None:
                on_complete_callback(key)

    def remove(self, key: Any, force: bool = True) -> bool:
        """Removes a chunk for all engines. Returns False if there is none, and for a pinned one without ``force``."""
        with self._lock:
            return (force or key.to_string() not in self._pins) and self._kv_pool.remove(_digest(key))

    def clear(self) -> int:
        """Removes all chunks for all engines. Returns the number of their tokens."""
        return self._kv_pool.clear() * int(self.metadata.chunk_size)

    # --- looking up: pins are leases as well

    def contains(self, key: Any, pin: bool = False) -> bool:
        return self.batched_contains([key], pin) == 1

    def batched_contains(self, keys: Any, pin: bool = False) -> int:
        blocks = self._kv_pool.find([_digest(key) for key in keys])
        if not pin:
            self._kv_pool.release(blocks)
            return len(blocks)
        with self._lock:
            for key, block in zip(keys, blocks, strict=False):
                self._pins[key.to_string()].append(block)
        return len(blocks)

    async def batched_async_contains(self, lookup_id: str, keys: Any, pin: bool = False) -> int:
        return self.batched_contains(keys, pin)

    def pin(self, key: Any) -> bool:
        return self.contains(key, pin=True)

    def unpin(self, key: Any) -> bool:
        with self._lock:
            name = key.to_string()
            pins = self._pins.pop(name, [])
            if not pins:
                return False
            self._kv_pool.release([pins.pop()])
            if pins:
                self._pins[name] = pins
            return True

    def touch_cache(self) -> None:
        pass  # a lookup touches a chunk

    # --- reading in place

    def get_blocking(self, key: Any) -> Any:
        return self.batched_get_blocking([key])[0]

    def batched_get_blocking(self, keys: Any) -> list[Any]:
        """Returns an object for each key up to the first that is missing, and None for the others."""
        found = [self._found(block) for block in self._kv_pool.find([_digest(key) for key in keys])]
        return found + [None] * (len(keys) - len(found))

    async def batched_get_non_blocking(self, lookup_id: str, keys: Any, transfer_spec: Any = None) -> list[Any]:
        return [memory for memory in self.batched_get_blocking(keys) if memory is not None]

    def _found(self, block: int) -> Any:
        form = json.loads(self._kv_pool.block(block)[-_FORM_BYTES:].numpy().tobytes())
        dtype = getattr(torch, form["dtype"].removeprefix("torch."))
        return self._object(block, torch.Size(form["shape"]), dtype, _memory.MemoryFormat[form["fmt"]])

    def close(self) -> None:
        with self._lock:
            for blocks in self._pins.values():
                self._kv_pool.release(blocks)
            self._pins.clear()


def _digest(key: Any) -> bytes:
    return hashlib.sha256(key.to_string().encode()).digest()
