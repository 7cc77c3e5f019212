# SPDX-License-Identifier: Apache-2.0
"""What pickles of tensors and handles call."""

from __future__ import annotations

from typing import Literal

from . import _core


def tensor(data: bytes, access: Literal["readwrite", "read"]) -> _core.Tensor:
    """Open the tensor that a pickled handle names."""
    opened: _core.Tensor = _core.open(data, access=access)
    return opened


def handle(data: bytes) -> _core.Handle:
    """Read a pickled handle."""
    return _core.Handle.from_bytes(data)
