# SPDX-License-Identifier: Apache-2.0
"""An L2 adapter for LMCache's server: its objects are blocks of a KV pool, and stay when the server is killed."""

from __future__ import annotations

import hashlib
import itertools
import logging
import secrets
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from .. import store
from ._kv_space import open_named
from ._packages import need

_WHAT = "onecopy.integrations.lmcache"
_base = need("lmcache.v1.distributed.l2_adapters.base", "lmcache", _WHAT, "AdapterUsage")
_internal = need("lmcache.v1.distributed.internal_api", "lmcache", _WHAT, "L2StoreResult")
_native = need("lmcache.lmcache_native", "lmcache", _WHAT, "Bitmap")
_platform = need("lmcache.v1.platform", "lmcache", _WHAT, "create_event_notifier")

_STORE, _LOOKUP, _LOAD = range(3)
_THREADS = 4


class OnecopyL2Adapter(_base.L2AdapterInterface):  # type: ignore[name-defined]
    """Keeps the objects of LMCache's server in a KV pool of the store, which all servers of the host share.

    An object is found when all its bytes are stored. Objects without a lock stay until their place is needed, also
    when the server is killed; those that were used least recently go first. A lock is a lease of this process. Objects
    of one size are a namespace, and a key contains the layout: an object is loaded into the same layout only.
    Each store and load copies the bytes once, in a thread of the adapter. Thread safety: all methods may be called
    concurrently. ``close()`` ends the locks.
    """

    def __init__(self, options: dict[str, Any], l1_memory_desc: Any = None) -> None:
        super().__init__()
        self._options = options
        self._lock = threading.Lock()
        self._pools: dict[int, store.KvPool] = {}  # by the size of an object
        self._leases: dict[Any, list[tuple[bytes, store.KvPool, int]]] = defaultdict(list)  # one for each lock
        self._tasks = itertools.count()
        self._results: tuple[dict[int, Any], ...] = ({}, {}, {})
        self._events = tuple(_platform.create_event_notifier() for _ in self._results)
        self._threads = ThreadPoolExecutor(_THREADS, "onecopy-lmcache")

    def _pool(self, size: int) -> store.KvPool:
        with self._lock:
            if size not in self._pools:
                space = f"lmcache-server/{self._options.get('onecopy.title', '')}/{size}"
                self._pools[size] = open_named(self._options, block_bytes=-(-size // 64) * 64, space=space)
            return self._pools[size]

    def _submit(self, kind: int, result: Any, work: Callable[..., Any], *arguments: Any) -> int:
        """Calls ``work(result, *arguments)`` in a thread. Returns the task, whose result is what `work` returns."""
        task = next(self._tasks)

        def run() -> None:
            try:
                self._results[kind][task] = work(result, *arguments)
            except Exception:
                logging.getLogger("onecopy").exception("a task of LMCache's server failed; the server computes again")
                self._results[kind][task] = result
            self._events[kind].notify()

        self._threads.submit(run)
        return task

    def get_store_event_fd(self) -> int:
        return int(self._events[_STORE].fileno())

    def get_lookup_and_lock_event_fd(self) -> int:
        return int(self._events[_LOOKUP].fileno())

    def get_load_event_fd(self) -> int:
        return int(self._events[_LOAD].fileno())

    def submit_store_task(self, keys: Sequence[Any], objects: Sequence[Any]) -> int:
        return self._submit(_STORE, _internal.L2StoreResult(False, 0), self._store, keys, objects)

    def pop_completed_store_tasks(self) -> dict[int, Any]:
        return {task: self._results[_STORE].pop(task) for task in list(self._results[_STORE])}

    def _store(self, _: Any, keys: Sequence[Any], objects: Sequence[Any]) -> Any:
        """Stores objects that are not stored yet. Fails if there was no room for one."""
        stored, copied, group = True, 0, secrets.randbits(32)
        for key, memory in zip(keys, objects, strict=True):
            data, digest = _bytes(memory), _digest(key, memory.get_shapes(), memory.get_dtypes())
            pool = self._pool(len(data))
            [block] = pool.write([digest], group)
            if block is None:
                stored = stored and pool.contains([digest]) != [False]
                continue
            try:
                pool.block(block)[: len(data)] = data
                pool.complete([block])
            finally:
                pool.release([block])
            copied += len(data)
        return _internal.L2StoreResult(stored, copied)

    def submit_lookup_and_lock_task(self, keys: Sequence[Any], group_layout_descs: Any) -> int:
        return self._submit(_LOOKUP, _native.Bitmap(len(keys)), self._lookup, keys, group_layout_descs)

    def query_lookup_and_lock_result(self, task_id: int) -> Any:
        return self._results[_LOOKUP].pop(task_id, None)

    def _lookup(self, found: Any, keys: Sequence[Any], layouts: Any) -> Any:
        for group, members in itertools.groupby(enumerate(keys), lambda row: row[1].object_group_id):
            rows, layout = list(members), layouts[group]
            sizes = (shape.numel() * dtype.itemsize for shape, dtype in zip(layout.shapes, layout.dtypes, strict=True))
            pool = self._pool(sum(sizes))
            digests = [_digest(key, layout.shapes, layout.dtypes) for _, key in rows]
            for (row, key), digest, block in zip(rows, digests, pool.find_all(digests), strict=True):
                if block is not None:
                    with self._lock:
                        self._leases[key].append((digest, pool, block))
                    found.set(row)
        return found

    def submit_load_task(self, keys: Sequence[Any], objects: Sequence[Any]) -> int:
        return self._submit(_LOAD, _native.Bitmap(len(keys)), self._load, keys, objects)

    def query_load_result(self, task_id: int) -> Any:
        return self._results[_LOAD].pop(task_id, None)

    def _load(self, loaded: Any, keys: Sequence[Any], objects: Sequence[Any]) -> Any:
        for row, (key, memory) in enumerate(zip(keys, objects, strict=True)):
            digest = _digest(key, memory.get_shapes(), memory.get_dtypes())
            with self._lock:
                held = [(pool, block) for locked, pool, block in self._leases.get(key, ()) if locked == digest]
            for pool, block in held[:1]:
                data = _bytes(memory)
                data[:] = pool.block(block)[: len(data)]
                loaded.set(row)
        return loaded

    def submit_unlock(self, keys: Sequence[Any]) -> None:
        with self._lock:
            for key in keys:
                if held := self._leases.pop(key, []):
                    _, pool, block = held.pop()
                    pool.release([block])
                if held:
                    self._leases[key] = held

    def get_usage(self) -> Any:
        """Returns the bytes of all objects of the sizes that this server has used, of all servers."""
        stats = [(pool.block_bytes, pool.stats()) for pool in list(self._pools.values())]
        return _base.AdapterUsage(sum(size * (now["blocks"] - now["free"]) for size, now in stats), 0)

    def close(self) -> None:
        self._threads.shutdown()
        self.submit_unlock([key for key, held in self._leases.items() for _ in held])
        for event in self._events:
            event.close()


def _bytes(memory: Any) -> torch.Tensor:
    return torch.frombuffer(memory.byte_array, dtype=torch.uint8)


def _digest(key: Any, shapes: Sequence[torch.Size], dtypes: Sequence[torch.dtype]) -> bytes:
    return hashlib.sha256(repr((key, [tuple(shape) for shape in shapes], dtypes)).encode()).digest()
