# SPDX-License-Identifier: Apache-2.0
"""What onecopy does for torch on CUDA devices besides sharing: memory to allocate from."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

from . import _core
from .errors import Unsupported

__all__ = ["memory"]

_making = threading.Lock()
_pools: dict[int, Any] = {}


@contextlib.contextmanager
def memory(device: Any = None) -> Iterator[Any]:
    """Torch's CUDA allocations of this thread come from memory of onecopy::

        with onecopy.torch.memory("cuda:0"):
            weights = torch.empty(1 << 30, device="cuda:0")

    Such memory can be exported from the start, so that sharing costs nothing the first time, and other
    processes keep it when this one is killed. What its tensors let go of serves torch's next allocations in
    here: ``torch.cuda.empty_cache()`` does not touch the pool while it lives, which is until the process
    ends. Tensors that were made before, and threads other than this one, are not concerned. Also good for a
    CUDA graph's private pool: make the graph's static tensors in here.

    Args:
        device: ``"cuda:0"``, a ``torch.device``, a number, or None for torch's current device.

    Yields:
        The ``torch.cuda.MemPool``, the same one for a device in the whole process.

    Raises:
        Unsupported: torch cannot use CUDA in this process, or is older than 2.8; or the device cannot give
            memory to other processes.
    """
    import torch

    index = _index_of(torch, device)
    _check_device(index)
    with torch.cuda.use_mem_pool(_pool(torch, index), device=torch.device("cuda", index)):
        yield _pools[index]


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
    """What the allocator would have to say with nothing but a null pointer is an exception here."""
    _core.empty(1, "uint8", f"cuda:{index}")


def _pool(torch: Any, index: int) -> Any:
    with _making:
        if index not in _pools:
            with torch.cuda.device(index):
                _pools[index] = torch.cuda.MemPool(_allocator(torch).allocator())
        return _pools[index]


@functools.cache
def _allocator(torch: Any) -> Any:
    return torch.cuda.memory.CUDAPluggableAllocator(
        _core.__file__, "onecopy_cuda_allocate", "onecopy_cuda_free"
    )
