# SPDX-License-Identifier: Apache-2.0
"""Serves torch's allocations on CUDA devices from memory of onecopy."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

from .. import _core
from ..errors import Unsupported

__all__ = ["memory", "trim"]

_lock = threading.Lock()
_idle: dict[int, list[Any]] = {}  # by device: pools that no thread uses, the last used one at the end; under _lock
_entered = threading.local()  # .pools: the pool that this thread uses, by device


@contextlib.contextmanager
def memory(device: Any = None) -> Iterator[Any]:
    """Serves torch's CUDA allocations of this thread from memory of onecopy::

        with onecopy.torch.memory("cuda:0"):
            weights = torch.empty(1 << 30, device="cuda:0")

    Memory of onecopy can be exported from the start: the first ``share()`` of a tensor costs nothing extra, and other
    processes keep the memory if this process is killed. Memory of released tensors serves torch's next allocations in
    the block. The pool lives until ``trim()`` or the end of the process, and ``torch.cuda.empty_cache()`` does not
    shrink it. Older tensors and other threads are not affected. The static tensors of a CUDA graph can be made in the
    block, too.

    Args:
        device: ``"cuda:0"``, a ``torch.device``, a number, or None for torch's current device.

    Yields:
        The ``torch.cuda.MemPool`` of the device. If several threads are in the block at once, each uses its own
            pool, since torch records a pool from one thread only. A nested block uses the pool of the outer block.

    Raises:
        Unsupported: torch cannot use CUDA in this process, torch is older than 2.8, or the device cannot export
            memory to other processes.
    """
    import torch

    index = _index_of(torch, device)
    _check_device(index)
    entered = _entered.__dict__.setdefault("pools", {})
    if index in entered:
        yield entered[index]
        return
    pool = entered[index] = _take_pool(torch, index)
    try:
        with torch.cuda.use_mem_pool(pool, device=torch.device("cuda", index)):
            yield pool
    finally:
        with _lock:
            _idle.setdefault(index, []).append(entered.pop(index))


def trim(device: Any = None) -> int:
    """Returns idle memory of one device, or of all devices and the host, to the system now::

        onecopy.torch.trim("cuda:0")

    Idle memory is unused memory of onecopy and torch's cached memory of ``memory()``. The call destroys the pools that
    neither a thread nor a graph uses, and empties torch's own cache (``torch.cuda.empty_cache()``). All tensors stay,
    including tensors made in ``memory()``, and so do segments of a card with a block in use and memory that other
    processes hold. Without this call idle memory is returned after about a second, except for torch's cached memory.

    Args:
        device: ``"cuda:0"``, ``"cpu"``, a ``torch.device``, a number of a CUDA device, or None for all.

    Returns:
        The number of bytes that onecopy returned; 0 for a device on which this process holds no memory.

    Raises:
        InvalidArgument: device is not a device.
    """
    chosen = None if device is None else f"cuda:{device}" if isinstance(device, int) else str(device)
    if chosen == "cuda":
        chosen = f"cuda:{_index_of(_loaded_torch(), None)}"
    _end_pools(chosen)
    return _core._trim(chosen)


def _pool_ids() -> set[tuple[int, int]]:
    """Returns torch's ids of the pools of ``memory()``, without pools that other threads use now."""
    with _lock:
        pools = [pool for idle in _idle.values() for pool in idle]
    return {tuple(pool.id) for pool in (*pools, *_entered.__dict__.get("pools", {}).values())}


def _end_pools(device: str | None) -> None:
    """Destroys the idle pools, so that torch returns their memory. Keeps a pool that a captured graph uses."""
    with _lock:
        ended = [
            pools.pop(at)
            for index, pools in _idle.items()
            if device in (None, f"cuda:{index}")
            for at in reversed(range(len(pools)))
            if pools[at].use_count() == 1
        ]
    if ended:
        ended.clear()  # destroys the pools
        _loaded_torch().cuda.empty_cache()


def _loaded_torch() -> Any:
    import torch

    return torch


def _index_of(torch: Any, device: Any) -> int:
    if not hasattr(torch.cuda, "MemPool"):
        raise Unsupported(f"torch {torch.__version__} has no torch.cuda.MemPool; use torch 2.8 or newer")
    try:
        torch.cuda.init()
    except (AssertionError, RuntimeError) as error:
        raise Unsupported(f"torch cannot use CUDA in this process: {error}") from error
    if device is None:
        return int(torch.cuda.current_device())
    chosen = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if chosen.type != "cuda":
        raise Unsupported(f"device must be a CUDA device, not {str(chosen)!r}: torch has no pools elsewhere")
    return int(torch.cuda.current_device() if chosen.index is None else chosen.index)


@functools.cache
def _check_device(index: int) -> None:
    """Raises the errors of an allocation, which torch's allocator could only report as a null pointer."""
    _core.empty(1, "uint8", f"cuda:{index}")


def _take_pool(torch: Any, index: int) -> Any:
    """Returns the idle pool of the device that was used last, or a new pool."""
    with _lock:
        if pools := _idle.get(index):
            return pools.pop()
    with torch.cuda.device(index):
        return torch.cuda.MemPool(_allocator(torch).allocator())


@functools.cache
def _allocator(torch: Any) -> Any:
    return torch.cuda.memory.CUDAPluggableAllocator(_core.__file__, "onecopy_cuda_allocate", "onecopy_cuda_free")
