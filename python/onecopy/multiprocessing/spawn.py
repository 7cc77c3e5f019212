# SPDX-License-Identifier: Apache-2.0
"""torch.multiprocessing's ``spawn`` and ``start_processes``, which send tensors in arguments by handle, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from ._state import has_torch

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
if has_torch():
    from . import _torch_names

    globals().update(_torch_names.exports("torch.multiprocessing.spawn", _NAMES))
    __all__ = [name for name in _NAMES if name in globals()]
else:
    __all__ = ["spawn", "start_processes"]

    _NEEDS_TORCH = "this function needs PyTorch: install torch, or use Process or Pool"

    def spawn(
        fn: Any, args: Any = (), nprocs: int = 1, join: bool = True, daemon: bool = False, start_method: str = "spawn"
    ) -> NoReturn:
        """Needs PyTorch."""
        raise ImportError(f"onecopy.multiprocessing.spawn: {_NEEDS_TORCH}")

    def start_processes(
        fn: Any, args: Any = (), nprocs: int = 1, join: bool = True, daemon: bool = False, start_method: str = "spawn"
    ) -> NoReturn:
        """Needs PyTorch."""
        raise ImportError(f"onecopy.multiprocessing.start_processes: {_NEEDS_TORCH}")
