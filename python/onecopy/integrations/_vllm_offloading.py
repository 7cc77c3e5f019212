# SPDX-License-Identifier: Apache-2.0
"""vLLM's offloading: the manager in the scheduler finds and begins blocks, and the worker of a rank copies its part."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from .. import InvalidArgument, StaleHandle, Timeout, store
from ._kv_space import copy_pages, open_pool
from ._packages import need

_WHAT = "onecopy.integrations.vllm_offloading"
_base = need("vllm.v1.kv_offload.base", "'vllm>=0.32'", _WHAT, "OffloadingSpec", "OffloadingManager",
             "OffloadingWorker", "BlockIDsLoadStoreSpec")  # fmt: skip


class PoolLoadStoreSpec(_base.LoadStoreSpec):  # type: ignore[name-defined]
    """Blocks of the KV pool, which a worker joins before it copies."""

    def __init__(self, tickets: list[int]) -> None:
        self.tickets = tickets


class OnecopySpec(_base.OffloadingSpec):  # type: ignore[name-defined]
    """Keeps blocks of vLLM's KV cache in a KV pool, which is their only copy on the host.

    One block of the KV pool has the parts of all ranks, and is found once each rank has copied its part.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        if config.cache.blocks_per_chunk != 1:
            raise InvalidArgument(f"{_WHAT} needs blocks_per_chunk = 1, not {config.cache.blocks_per_chunk}")
        parallel = config.parallel
        self.part_bytes = config.worker_kv_bytes_per_block
        self.block_bytes = -(-self.part_bytes * parallel.world_size // 64) * 64

    def _open(self) -> store.KvPool:
        config, parallel = self.config, self.config.parallel
        return open_pool(
            config.extra_config,
            parts=parallel.world_size,
            engine="vllm",
            engine_version=need("vllm", "'vllm>=0.32'", _WHAT).__version__,
            dtype=config.model.dtype,
            layout=[config.kv_cache_layout or "default", config.replicated_layout, config.canonical_layout],
            tokens_per_block=[config.cache.tokens_per_hash, *self.tokens_per_block],
            world_size=[parallel.world_size, parallel.tp_size, parallel.pp_size, parallel.pcp_size, parallel.dcp_size],
            rank="all",
            key_group=[[group.group_id, *group.layer_names] for group in config.groups],
            block_bytes=self.block_bytes,
        )

    def get_manager(self) -> OnecopyManager:
        return OnecopyManager(self._open())

    def get_worker(self, kv_caches: Any) -> OnecopyWorker:
        return OnecopyWorker(self._open(), kv_caches, self.config.parallel.rank, self.part_bytes)


class OnecopyManager(_base.OffloadingManager):  # type: ignore[name-defined]
    """Finds blocks, and begins new ones, in the scheduler. Thread safety: vLLM calls it from one thread.

    A block that ``lookup()`` found has a lease until the request has finished, so that no other engine takes it.
    After ``reset_cache()`` this engine has keys of its own, since its weights may have changed.
    """

    def __init__(self, pool: store.KvPool) -> None:
        self._pool = pool
        self._group = int.from_bytes(os.urandom(4), "little")
        self._found: dict[str, dict[bytes, int]] = {}  # leases of each request
        self._loads: dict[str, int] = {}  # loads of a request that are not complete
        self._finished: set[str] = set()
        self._stores: dict[bytes, int] = {}
        self._salt = b""

    def lookup(self, key: Any, req_context: Any) -> Any:
        found = self._found.setdefault(req_context.req_id, {})
        if key not in found:
            names = self._names([key])
            numbers = self._pool.find(names)
            if not numbers:
                pending = key in self._stores or self._pool.contains(names) == [None]
                return _base.LookupResult.HIT_PENDING if pending else _base.LookupResult.MISS
            found[key] = numbers[0]
        return _base.LookupResult.HIT

    def prepare_load(self, keys: Collection[Any], req_context: Any) -> PoolLoadStoreSpec:
        found = self._found[req_context.req_id]
        self._loads[req_context.req_id] = self._loads.get(req_context.req_id, 0) + 1
        return PoolLoadStoreSpec(self._pool.tickets([found[key] for key in keys]))

    def complete_load(self, keys: Collection[Any], req_context: Any) -> None:
        self._loads[req_context.req_id] -= 1
        self._release_if_done(req_context.req_id)

    def on_request_finished(self, req_context: Any) -> None:
        self._finished.add(req_context.req_id)
        self._release_if_done(req_context.req_id)

    def _release_if_done(self, request: str) -> None:
        if request in self._finished and self._loads.get(request, 0) == 0:
            self._finished.discard(request)
            self._loads.pop(request, None)
            self._pool.release(list(self._found.pop(request, {}).values()))

    def _names(self, keys: Collection[Any]) -> list[bytes]:
        """Returns the keys that the blocks have in the KV pool."""
        return [key + self._salt for key in keys]

    def touch(self, keys: Collection[Any], req_context: Any) -> None:
        names = self._names(keys)
        present = [name for name, is_there in zip(names, self._pool.contains(names)) if is_there]
        self._pool.release([number for number in self._pool.find_all(present) if number is not None])

    def prepare_store(self, keys: Collection[Any], req_context: Any) -> Any:
        wanted = [key for key in keys if key not in self._stores]
        numbers = self._pool.write(self._names(wanted), self._group)
        begun = {key: number for key, number in zip(wanted, numbers) if number is not None}
        self._stores.update(begun)
        tickets = self._pool.tickets(list(begun.values()))
        return _base.PrepareStoreOutput(list(begun), PoolLoadStoreSpec(tickets), [])

    def complete_store(self, keys: Collection[Any], req_context: Any, success: bool = True) -> None:
        numbers = [self._stores.pop(key) for key in keys]
        if not success:
            self._pool.fail(numbers)
        self._pool.release(numbers)

    def on_new_request(self, req_context: Any) -> Any:
        self._finished.discard(req_context.req_id)
        return _base.RequestOffloadingContext()

    def take_events(self) -> Iterable[Any]:
        # Keys of 36 bytes are hashed in the KV pool, so that only blocks of this engine could be named.
        return ()

    def reset_cache(self) -> None:
        """Ends all leases, and finds and stores blocks under new keys from now on.

        vLLM calls this when a pause clears its caches, after which the weights may be others than
        ``onecopy.weights`` says. The blocks stay for other engines. No stores and loads that began before are reported.
        """
        stores = list(self._stores.values())
        self._pool.fail(stores)
        self._pool.release(stores)
        self._release_found()
        for forgotten in (self._stores, self._loads, self._finished):
            forgotten.clear()
        self._salt = os.urandom(16)

    def shutdown(self) -> None:
        self._release_found()

    def _release_found(self) -> None:
        for found in self._found.values():
            self._pool.release(list(found.values()))
        self._found.clear()


class OnecopyWorker(_base.OffloadingWorker):  # type: ignore[name-defined]
    """Copies the part of one rank. Joins the blocks first, so that they stay even if the scheduler is killed."""

    def __init__(self, pool: store.KvPool, kv_caches: Any, rank: int, part_bytes: int) -> None:
        self._pool, self._rank, self._start = pool, rank, rank * part_bytes
        self._done: list[Any] = []
        self._groups = [
            [(kv_caches.tensors[ref.tensor_idx].tensor, ref.page_size_bytes) for ref in refs]
            for refs in kv_caches.group_data_refs
        ]

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any, **_: Any) -> bool:
        return self._run(job_id, src_spec, dst_spec.tickets, True)

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any, **_: Any) -> bool:
        return self._run(job_id, dst_spec, src_spec.tickets, False)

    def _run(self, job: int, engine: Any, tickets: Sequence[int], to_pool: bool) -> bool:
        start = time.perf_counter()
        try:
            numbers = self._pool.join(tickets)
        except (StaleHandle, Timeout):
            if not to_pool:
                raise  # the scheduler has ended; tokens must not be computed without the blocks
            self._done.append(_base.TransferResult(job, True, 0, 0.0))  # nothing becomes visible, and nothing is lost
            return True
        try:
            size = self._copy(engine, numbers, to_pool)
            if to_pool:
                self._pool.complete(numbers, self._rank)
        finally:
            self._pool.release(numbers)
        self._done.append(_base.TransferResult(job, True, size, time.perf_counter() - start))
        return True

    def _copy(self, engine: Any, numbers: Sequence[int], to_pool: bool) -> int:
        at = size = 0
        for group, count in zip(self._groups, engine.group_sizes):
            blocks, rows = numbers[at : at + count], [int(row) for row in engine.block_ids[at : at + count]]
            offset = self._start
            for tensor, page in group:
                copy_pages(self._pool, blocks, rows, tensor.view(len(tensor), -1)[:, :page], offset, to_pool)
                offset += page
                size += page * count
            at += count
        return size

    def get_finished(self) -> list[Any]:
        done, self._done = self._done, []
        return done

    def wait(self, job_ids: set[int]) -> None:
        pass  # a copy is complete when its submission returns
