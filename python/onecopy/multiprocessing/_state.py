# SPDX-License-Identifier: Apache-2.0
"""Holds whether the patches are installed, and the functions of torch that they replace.

Thread safety: install() and uninstall() write under their own lock; all functions may be called concurrently.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable
from typing import Any

from . import _torch_names

__all__ = ["disabled", "has_torch", "installed", "originals", "set_installed"]

_installed = False


@functools.cache
def has_torch() -> bool:
    """Returns whether PyTorch can be imported."""
    return importlib.util.find_spec("torch") is not None


def disabled() -> bool:
    """Returns whether ``ONECOPY_DISABLE=1`` is set in the environment."""
    return os.environ.get("ONECOPY_DISABLE", "") not in ("", "0")


def installed() -> bool:
    """Returns whether tensors are sent by handle: after install() and before uninstall()."""
    return _installed


def set_installed(value: bool) -> None:
    """Sets the result of installed()."""
    global _installed
    _installed = value


class TorchOriginals:
    """The original functions of torch, for devices and storages that onecopy does not handle."""

    reduce_tensor: Callable[[Any], tuple[Any, ...]]
    reduce_storage: Callable[[Any], tuple[Any, ...]]
    rebuild_tensor: Callable[..., Any]
    rebuild_cuda_tensor: Callable[..., Any]
    rebuild_storage_fd: Callable[..., Any]
    rebuild_storage_filename: Callable[..., Any]
    set_sharing_strategy: Callable[[str], None]
    is_shared: Callable[[Any], bool]
    share_memory_: Callable[[Any], Any]
    new_shared: Callable[..., Any]
    pin_memory: Callable[..., Any]
    pin_memory_loop: Callable[..., None]

    def __getattr__(self, name: str) -> Any:
        return _torch_names.of_reductions(name)  # raises, since install() did not find the name either


originals: TorchOriginals = TorchOriginals()
