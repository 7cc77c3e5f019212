# SPDX-License-Identifier: Apache-2.0
"""SGLang's storage backend: each page of a rank is a block of a KV pool, copied from and into HiCache's own memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import InvalidArgument
from ._kv_space import open_pool, weights_of
from ._packages import need
from ._sglang_pages import Pages

_WHAT = "onecopy.integrations.sglang_storage"
_base = need("sglang.srt.mem_cache.hicache_storage", "'sglang>=0.5.23'", _WHAT, "HiCacheStorage")


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
        self._others: list[str] = []

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        super().register_mem_pool_host(mem_pool_host)
        torch = need("torch", "torch", _WHAT)
        page = torch.zeros(mem_pool_host.page_size, dtype=torch.int64)
        self._sizes = [int(size) for size in mem_pool_host.get_page_buffer_meta(page)[1]]
        c = self._config
        pool = open_pool(
            self._extra,
            engine="sglang",
            engine_version=need("sglang", "'sglang>=0.5.23'", _WHAT).__version__,
            dtype=str(mem_pool_host.dtype),
            layout=[mem_pool_host.layout, self._sizes, getattr(mem_pool_host, "storage_format_tag", "")],
            tokens_per_block=mem_pool_host.page_size,
            world_size=[c.tp_size, c.pp_size],
            rank=[0 if c.is_mla_model else c.tp_rank, c.pp_rank],
            key_group="kv",
            block_bytes=-(-sum(self._sizes) // 64) * 64,
        )
        self._pages = Pages(pool)

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

    def batch_exists(self, keys: Sequence[str], extra_info: Any = None) -> int:
        return self._pages.look_up(keys)

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def batch_get_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Copies pages into HiCache's memory, up to the first that is missing."""
        numbers = self._pages.take(keys)
        for number, page in zip(numbers, self._runs(host_indices)):
            self._copy(number, page, False)
        self._pages.pool.release(numbers)
        return [index < len(numbers) for index in range(len(keys))]

    def batch_set_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Copies pages into the KV pool. A page that is there, or that another engine writes, counts as stored."""
        pages = self._runs(host_indices)
        return self._pages.store(keys, lambda number, index: self._copy(number, pages[index], True))

    def _runs(self, host_indices: Any) -> list[list[int]]:
        """Returns the addresses of each page, which is some runs of bytes."""
        pointers, _ = self.mem_pool_host.get_page_buffer_meta(host_indices)
        count = len(self._sizes)
        return [list(pointers[at : at + count]) for at in range(0, len(pointers), count)]

    def _copy(self, number: int, pointers: Sequence[int], to_pool: bool) -> None:
        offset = 0
        for pointer, size in zip(pointers, self._sizes):
            self._pages.pool._core.copy_blocks([number], [0], pointer, 1, size, size, offset, to_pool, "cpu")
            offset += size

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        raise NotImplementedError('SGLang calls get() and set() without "interface_v1": 1 only')

    batch_get = set = batch_set = get

    def clear(self) -> None:
        """Does nothing: other engines use the pages. Engines with new weights use another namespace."""

    def close(self) -> None:
        self._pages.end()
