# SPDX-License-Identifier: Apache-2.0
"""Imported first by the packages that need torch, so that a missing torch is an error that says what to install."""

from __future__ import annotations

from .errors import _missing_package

try:
    import torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise _missing_package("torch", "each of onecopy.rpc, onecopy.graphs and onecopy.distributed", "") from error

__all__ = ["torch"]
