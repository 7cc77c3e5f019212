# SPDX-License-Identifier: Apache-2.0
"""Imports torch, or raises an error that says what to install. Packages that need torch import this module first."""

from __future__ import annotations

from ..errors import _missing_package

try:
    import torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise _missing_package("torch", "each of onecopy.rpc, onecopy.graphs and onecopy.distributed", "") from error

__all__ = ["torch"]
