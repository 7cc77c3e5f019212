# SPDX-License-Identifier: Apache-2.0
"""Chooses how new segments of shared memory are made, by the names of torch.multiprocessing.

``file_descriptor`` makes anonymous memory; a process needs a few descriptors for any number of tensors.
``file_system`` makes files in /dev/shm, for programs that must see them. torch's functions of the same names set and
return the same value.
"""

from __future__ import annotations

from typing import Any, cast

from .. import _core
from ._state import has_torch

__all__ = ["get_all_sharing_strategies", "get_sharing_strategy", "set_sharing_strategy"]

_STRATEGIES = {"file_descriptor", "file_system"}


def set_sharing_strategy(new_strategy: str) -> None:
    """Sets the strategy for sharing CPU tensors.

    Args:
        new_strategy (str): ``"file_descriptor"`` or ``"file_system"``. It affects new segments only.

    Raises:
        AssertionError: new_strategy is not a strategy (torch raises the same error).
    """
    if has_torch():
        from torch.multiprocessing import set_sharing_strategy

        set_sharing_strategy(new_strategy)
        return
    if new_strategy not in _STRATEGIES:
        raise AssertionError(f"invalid sharing strategy {new_strategy!r}, expected one of {_STRATEGIES}")
    _core.set_strategy(cast(Any, new_strategy))


def get_sharing_strategy() -> str:
    """Returns the current strategy for sharing CPU tensors."""
    if has_torch():
        from torch.multiprocessing import get_sharing_strategy

        return get_sharing_strategy()
    return _core.strategy()


def get_all_sharing_strategies() -> set[str]:
    """Returns the sharing strategies that this system supports."""
    return set(_STRATEGIES)
