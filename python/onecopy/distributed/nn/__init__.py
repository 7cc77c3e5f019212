# SPDX-License-Identifier: Apache-2.0
"""Modules in other processes, and the collective functions of torch: the names of ``torch.distributed.nn``."""

from __future__ import annotations

from typing import Any

from .api.remote_module import RemoteModule

__all__ = ["RemoteModule"]

_OF_TORCH = (
    *("all_gather", "all_reduce", "all_to_all", "all_to_all_single", "broadcast", "gather", "reduce"),
    *("reduce_scatter", "scatter", "functional", "group", "ReduceOp"),
)


def __getattr__(name: str) -> Any:
    """Returns a name of torch's that has nothing to do with rpc."""
    if name not in _OF_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import torch.distributed.nn

    return getattr(torch.distributed.nn, name)
