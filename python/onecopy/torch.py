# SPDX-License-Identifier: Apache-2.0
"""Memory of onecopy for torch's allocations on CUDA devices."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

from . import _core
from .errors import Unsupported

__all__ = ["memory", "trim"]

_lock = threading.Lock()
_idle: dict[int, list[Any]] = {}  # pools that no thread is in, the last one left at the end; guarded by _lock
_entered = threading.local()  # .pools: the pool that this thread is in, by device


@contextlib.contextmanager
def memory(device: Any = None) -> Iterator[Any]:
    """Makes torch's CUDA allocations of this thread come from memory of onecopy::

        with onecopy.torch.memory("cuda:0"):
            weights = torch.empty(1 << 30, device="cuda:0")

    Such memory can be exported from the start, so that sharing costs nothing the first time, and other processes
    keep it if this one is killed. Memory of dropped tensors serves torch's next allocations in here.
    ``torch.cuda.empty_cache()`` does not touch the pool while it lives, which is until ``trim()`` or the end of the
    process. Tensors that were made before, and threads other than this one, are not concerned. Also good for a CUDA
    graph's private pool: make the graph's static tensors in here.

    Args:
        device: ``"cuda:0"``, a ``torch.device``, a number, or None for torch's current device.

    Yields:
        The ``torch.cuda.MemPool``: one for each device, until ``trim()``. A thread that enters while others are
            inside has another, as torch records to a pool from one thread only; a thread that enters again
            stays in the one that it is in.

    Raises:
        Unsupported: torch cannot use CUDA in this process, or is older than 2.8; or the device cannot give
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
    """Returns idle memory to the system now: of one device, or of all and of the host::

        onecopy.torch.trim("cuda:0")

    That is unused memory of onecopy, and torch's cached memory of ``memory()``. Pools that no thread is in and no
    graph uses end, and torch's own cache with them (``torch.cuda.empty_cache()``). Tensors stay as they are, also
    those made in ``memory()``. So does a card's segment with a block in use, and memory that other processes hold.
    Without this call idle memory goes back after about a second, except for torch's cached memory.

    Args:
        device: ``"cuda:0"``, ``"cpu"``, a ``torch.device``, a number of a CUDA device, or None for all.

    Returns:
        How many bytes onecopy gave back; 0 for a device that this process has no memory on.

    Raises:
        InvalidArgument: device names none.
    """
    chosen = None if device is None else f"cuda:{device}" if isinstance(device, int) else str(device)
    if chosen == "cuda":
        chosen = f"cuda:{_index_of(_loaded_torch(), None)}"
    _end_pools(chosen)
    return _core._trim(chosen)


def _end_pools(device: str | None) -> None:
    """A pool's memory is torch's as long as the pool lives. One that a captured graph uses must not end."""
    with _lock:
        ended = [
            pools.pop(at)
            for index, pools in _idle.items()
            if device in (None, f"cuda:{index}")
            for at in reversed(range(len(pools)))
            if pools[at].use_count() == 1
        ]
    if ended:
        ended.clear()  # the pools go here
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
    """Raises the errors that the allocator could only report as a null pointer."""
    _core.empty(1, "uint8", f"cuda:{index}")


def _take_pool(torch: Any, index: int) -> Any:
    """The pool of the device that was left last, or a new one. It does not end before it is left."""
    with _lock:
        if pools := _idle.get(index):
            return pools.pop()
    with torch.cuda.device(index):
        return torch.cuda.MemPool(_allocator(torch).allocator())


@functools.cache
def _allocator(torch: Any) -> Any:
    return torch.cuda.memory.CUDAPluggableAllocator(_core.__file__, "onecopy_cuda_allocate", "onecopy_cuda_free")
