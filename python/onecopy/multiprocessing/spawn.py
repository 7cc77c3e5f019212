# SPDX-License-Identifier: Apache-2.0
"""torch.multiprocessing's spawn and start_processes: their arguments travel by handle, too."""

from __future__ import annotations

from . import patches

if patches.has_torch():
    from torch.multiprocessing.spawn import (
        ENV_VAR_PARALLEL_START,
        ProcessContext,
        ProcessException,
        ProcessExitedException,
        ProcessRaisedException,
        SpawnContext,
        spawn,
        start_processes,
    )

    __all__ = [
        "ENV_VAR_PARALLEL_START",
        "ProcessContext",
        "ProcessException",
        "ProcessExitedException",
        "ProcessRaisedException",
        "SpawnContext",
        "spawn",
        "start_processes",
    ]
else:
    __all__ = ["spawn", "start_processes"]

    _NEEDS_TORCH = "it is a function of PyTorch: install torch, or use Process or Pool"

    def spawn(fn, args=(), nprocs=1, join=True, daemon=False, start_method="spawn"):
        """Needs PyTorch."""
        raise ImportError(f"onecopy.multiprocessing.spawn: {_NEEDS_TORCH}")

    def start_processes(fn, args=(), nprocs=1, join=True, daemon=False, start_method="spawn"):
        """Needs PyTorch."""
        raise ImportError(f"onecopy.multiprocessing.start_processes: {_NEEDS_TORCH}")
