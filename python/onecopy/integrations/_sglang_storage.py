# SPDX-License-Identifier: Apache-2.0
"""SGLang's storage backend: each page of a rank is a block of a KV pool, copied from and into HiCache's own memory."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import Any

from .. import InvalidArgument, store
from ._kv_space import space_of, weights_of
from ._packages import need

_WHAT = "onecopy.integrations.sglang_storage"
_base = need("sglang.srt.mem_cache.hicache_storage", "'sglang>=0.5.23'", _WHAT, "HiCacheStorage")

_DEFAULT_GIB = 8.0
_HELD_SECONDS = 30.0  # between a lookup and its read; SGLang may drop the read without a word


class OnecopyHiCache(_base.HiCacheStorage):  # type: ignore[name-defined]
    """Keeps pages in a KV pool. ``batch_exists()`` leases what it finds until the page was read, or for 30 seconds.

    Thread safety: SGLang calls from several threads.
    """

    def __init__(self, storage_config: Any, kwargs: Any = None) -> None:
        self._config = storage_config
        self._extra = storage_config.extra_config or {}
        weights_of(self._extra)
        if not self._extra.get("interface_v1"):
            raise InvalidArgument(f'{_WHAT} needs "interface_v1": 1 in the extra config of the storage backend')
        self._group = int.from_bytes(os.urandom(4), "little")
        self._lock = threading.Lock()
        self._held: dict[bytes, tuple[int, float]] = {}  # a lease for each page that was looked up, and its end
        self._others: list[str] = []

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        super().register_mem_pool_host(mem_pool_host)
        torch = need("torch", "torch", _WHAT)
        page = torch.zeros(mem_pool_host.page_size, dtype=torch.int64)
        self._sizes = [int(size) for size in mem_pool_host.get_page_buffer_meta(page)[1]]
        c, size = self._config, -(-sum(self._sizes) // 64) * 64
        sglang = need("sglang", "'sglang>=0.5.23'", _WHAT)
        space = space_of({
            "engine": "sglang",
            "engine_version": sglang.__version__,
            "weights": weights_of(self._extra),
            "dtype": str(mem_pool_host.dtype),
            "layout": [mem_pool_host.layout, self._sizes, getattr(mem_pool_host, "storage_format_tag", ""),
                       self._extra.get("onecopy.layout", "")],
            "kv_scales": self._extra.get("onecopy.kv_scales", "none"),
            "tokens_per_block": mem_pool_host.page_size,
            "world_size": [c.tp_size, c.pp_size],
            "rank": [0 if c.is_mla_model else c.tp_rank, c.pp_rank],
            "key_group": "kv",
            "draft_model": self._extra.get("onecopy.draft_model", "none"),
            "block_bytes": size,
        })  # fmt: skip
        self._pool = store.connect(framework="torch").kv_pool(
            self._extra.get("onecopy.pool", "kv"), block_bytes=size, space=space,
            budget=int(float(self._extra.get("onecopy.max_gib", _DEFAULT_GIB)) * (1 << 30)),
            extent_bytes=int(self._extra.get("onecopy.extent_bytes", 0)),
        )  # fmt: skip

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        name = str(getattr(host_pool_name, "value", host_pool_name))
        if name.lower() != "kv":
            self._others.append(name)

    def on_host_pools_registered(self) -> None:
        if self._others:
            raise InvalidArgument(
                f"{_WHAT} stores keys and values only, and the model has {', '.join(self._others)}, too"
            )

    def _end_leases(self) -> None:
        now = time.monotonic()
        old = [key for key, (_, end) in self._held.items() if end < now]
        self._pool.release([self._held.pop(key)[0] for key in old])

    def batch_exists(self, keys: Sequence[str], extra_info: Any = None) -> int:
        names = [bytes.fromhex(key) for key in keys]
        with self._lock:
            self._end_leases()
            numbers = self._pool.find(names)
            end = time.monotonic() + _HELD_SECONDS
            for name, number in zip(names, numbers):
                if name in self._held:
                    self._pool.release([number])
                self._held[name] = (number, end)
        return len(numbers)

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def _lease(self, name: bytes) -> int | None:
        with self._lock:
            if name in self._held:
                return self._held.pop(name)[0]
            return next(iter(self._pool.find([name])), None)

    def batch_get_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Copies pages into HiCache's memory, up to the first that is missing."""
        pages, found = self._pages(host_indices), 0
        for key, page in zip(keys, pages):
            number = self._lease(bytes.fromhex(key))
            if number is None:
                break
            self._copy(number, page, False)
            self._pool.release([number])
            found += 1
        return [index < found for index in range(len(keys))]

    def batch_set_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Copies pages into the KV pool. A page that is there, or that another engine writes, counts as stored."""
        names = [bytes.fromhex(key) for key in keys]
        numbers = self._pool.write(names, self._group)
        for number, page in zip(numbers, self._pages(host_indices)):
            if number is not None:
                self._copy(number, page, True)
        done = [number for number in numbers if number is not None]
        self._pool.complete(done)
        self._pool.release(done)
        return [present is not False for present in self._pool.contains(names)]

    def _pages(self, host_indices: Any) -> list[list[int]]:
        pointers, _ = self.mem_pool_host.get_page_buffer_meta(host_indices)
        count = len(self._sizes)
        return [list(pointers[at : at + count]) for at in range(0, len(pointers), count)]

    def _copy(self, number: int, pointers: Sequence[int], to_pool: bool) -> None:
        offset = 0
        for pointer, size in zip(pointers, self._sizes):
            self._pool._core.copy_blocks([number], [0], pointer, 1, size, size, offset, to_pool)
            offset += size

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        raise NotImplementedError('SGLang calls get() and set() without "interface_v1": 1 only')

    batch_get = set = batch_set = get

    def clear(self) -> None:
        """Does nothing: other engines use the pages. Engines with new weights use another namespace."""

    def close(self) -> None:
        with self._lock:
            self._pool.release([number for number, _ in self._held.values()])
            self._held.clear()
