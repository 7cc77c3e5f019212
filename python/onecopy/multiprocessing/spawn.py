# SPDX-License-Identifier: Apache-2.0
"""torch.multiprocessing's spawn and start_processes: their arguments travel by handle, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import patches

_NAMES = (
    "ENV_VAR_PARALLEL_START",
    "ProcessContext",
    "ProcessException",
    "ProcessExitedException",
    "ProcessRaisedException",
    "SpawnContext",
    "spawn",
    "start_processes",
)

if TYPE_CHECKING:
    from torch.multiprocessing.spawn import (
        spawn,
        start_processes,
    )
if patches.has_torch():
    from . import _torch_names

    globals().update(_torch_names.exports("torch.multiprocessing.spawn", _NAMES))
    __all__ = [name for name in _NAMES if name in globals()]
else:
    __all__ = ["spawn", "start_processes"]

    _NEEDS_TORCH = "it is a function of PyTorch: install torch, or use Process or Pool"

    def spawn(fn, args=(), nprocs=1, join=True, daemon=False, start_method="spawn"):
        """Needs PyTorch."""
        raise ImportError(f"onecopy.multiprocessing.spawn: {_NEEDS_TORCH}")

    def start_processes(fn, args=(), nprocs=1, join=True, daemon=False, start_method="spawn"):
        """Needs PyTorch."""
        raise ImportError(f"onecopy.multiprocessing.start_processes: {_NEEDS_TORCH}")
