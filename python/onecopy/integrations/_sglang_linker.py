# SPDX-License-Identifier: Apache-2.0
"""SGLang's external linker: pages go from the engine's memory into a KV pool and back, without a copy between."""

from __future__ import annotations

from collections import deque
from typing import Any

from .. import Error, InvalidArgument, StaleHandle
from ._kv_space import copy_pages, open_pool
from ._packages import need
from ._sglang_pages import Pages

_WHAT = "onecopy.integrations.sglang_linker"
_CACHE = "sglang.srt.mem_cache"
_base = need(f"{_CACHE}.unified_cache.unified_cache_linker", "'sglang==0.5.23'", _WHAT, "UnifiedCacheLinker",
             "LayerWiseLoadCounter")  # fmt: skip
_assembler = need(f"{_CACHE}.hybrid_cache.linker_pool_assembler", "'sglang==0.5.23'", _WHAT, "DevicePoolEntry",
                  "DevicePoolGroup")  # fmt: skip
_KV = need(f"{_CACHE}.hicache_storage", "'sglang==0.5.23'", _WHAT, "PoolName").PoolName.KV


class OnecopyLinker(_base.UnifiedCacheLinker):  # type: ignore[name-defined]
    """Copies pages of one rank. A page that ``lookup()`` found stays until its request loads it, or for 30 seconds.

    Each copy is complete when its call returns, so that SGLang's scheduler waits for it. Thread safety: SGLang calls
    from the scheduler's thread.
    """

    def __init__(self, server_args: Any, params: Any, *, components: Any, extra_config: Any = None,
                 forward_stream: Any = None) -> None:  # fmt: skip
        self.forward_stream = forward_stream
        cache = params.token_to_kv_pool_allocator.get_kvcache()
        keys, values = _layers_of(cache)
        self._page = params.page_size
        entry = _assembler.DevicePoolEntry(
            name=_KV, indices_from_pool=_KV, device_pool=cache, components=[keys, values],
            layer_mapping={layer: layer for layer in range(len(keys))}, page_size=self._page, rows_are_pages=False,
        )  # fmt: skip
        self._group = _assembler.DevicePoolGroup([entry], len(keys), self._page)
        self.pools = self._group.entry_map
        self.layer_done_counter = _base.LayerWiseLoadCounter(len(keys))
        self._layers = [_pages_of(layer, self._page) for layer in (*keys, *values)]
        sizes = [layer[0].nbytes for layer in self._layers]
        ranks = [server_args.tp_size, server_args.pp_size]
        self._is_alone = ranks == [1, 1]
        pool = open_pool(
            extra_config or {},
            engine="sglang-linker",
            engine_version=need("sglang", "'sglang==0.5.23'", _WHAT).__version__,
            dtype=str(cache.dtype),
            layout=sizes,
            tokens_per_block=self._page,
            world_size=ranks,
            rank=[0 if self._is_alone else _tensor_rank(), params.pp_rank],
            key_group="kv",
            block_bytes=-(-sum(sizes) // 64) * 64,
        )
        self._pages = Pages(pool)
        self._queued: dict[str, tuple[list[int], list[int]] | None] = {}  # blocks and pages of a request
        self._offloaded: deque[bool] = deque()

    def lookup(self, rid: str, transfers: Any) -> list[int]:
        [kv] = self._group.resolve_transfers(transfers)
        return list(range(1, self._pages.look_up(kv.keys, rid) + 1))

    def load(self, rid: str, transfers: Any) -> bool:
        """Queues a load. Several ranks must return the same: there, a page that is gone fails the load later."""
        [kv] = self._group.resolve_transfers(transfers, allow_partial=True, allow_missing_kv=True)
        numbers = self._pages.take(kv.keys, rid)
        is_whole = len(numbers) == len(kv.keys)
        if not is_whole:
            self._pages.pool.release(numbers)
        if is_whole or not self._is_alone:
            self._queued[rid] = (numbers, self._indices(kv)) if is_whole else None
        return rid in self._queued

    def cancel_queued_load(self, rid: str) -> bool:
        if rid not in self._queued:
            return False
        if queued := self._queued.pop(rid):
            self._pages.pool.release(queued[0])
        return True

    def start_layer_wise_loading(self) -> int:
        if not self._queued:
            return -1
        index = self.layer_done_counter.update_producer()
        error: Error | None = None
        for rid, queued in list(self._queued.items()):
            if queued is None:
                error = StaleHandle(f"the KV pool has evicted pages of the request {rid} since they were looked up")
            else:
                self._copy(*queued, False)
            self.cancel_queued_load(rid)
        if error:
            self.layer_done_counter.fail(index, error)
        else:
            for layer in range(self._group.num_layers):
                self.layer_done_counter.complete(index, layer)
        return int(index)

    def finish_layer_wise_loading(self, counter_index: int) -> bool:
        return bool(self.layer_done_counter.finish(counter_index))

    def offload(self, transfers: Any, session_id: Any = None) -> bool:
        [kv] = self._group.resolve_transfers(transfers, allow_partial=True)
        for event in self.record_offload_ready():
            event.synchronize()
        pages = self._indices(kv)
        stored = self._pages.store(kv.keys, lambda number, index: self._copy([number], [pages[index]], True))
        self._offloaded.append(all(stored))
        return True

    def num_completed_offloads(self) -> int:
        return len(self._offloaded)

    def pop_completed_offload(self) -> bool:
        return self._offloaded.popleft()

    def _indices(self, kv: Any) -> list[int]:
        """Returns the index of each page, whose tokens SGLang keeps in consecutive rows."""
        indices: list[int] = (kv.host_indices[:: self._page] // self._page).tolist()
        return indices

    def _copy(self, numbers: list[int], pages: list[int], to_pool: bool) -> None:
        offset = 0
        for layer in self._layers:
            copy_pages(self._pages.pool, numbers, pages, layer, offset, to_pool)
            offset += layer[0].nbytes

    def reset(self) -> None:
        """Ends leases. The pages stay, since other engines use them."""
        for rid in list(self._queued):
            self.cancel_queued_load(rid)
        self._pages.end()
        self._offloaded.clear()
        self.layer_done_counter.reset()

    def close(self) -> None:
        self.reset()


def _layers_of(cache: Any) -> tuple[list[Any], list[Any]]:
    """Returns the keys and values of each layer: a row for each token.

    Raises:
        InvalidArgument: the model has other caches, or their scales lie elsewhere.
    """
    keys, values = getattr(cache, "k_buffer", None), getattr(cache, "v_buffer", None)
    if not keys or not values or getattr(cache, "k_scale_buffer", None) is not None or keys[0].dim() != 3:
        raise InvalidArgument(
            f"{_WHAT} stores keys and values with a row for each token only, and the model has a "
            f"{type(cache).__name__}: start the engine without the linker"
        )
    return list(keys), list(values)


def _pages_of(layer: Any, page: int) -> Any:
    count = len(layer) // page
    return layer[: count * page].view(count, -1)


def _tensor_rank() -> int:
    parallel = need("sglang.srt.runtime_context", "'sglang==0.5.23'", _WHAT, "get_parallel").get_parallel()
    return int(parallel.tp_rank)
