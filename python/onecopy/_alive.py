# SPDX-License-Identifier: Apache-2.0
"""A block of torch's own memory on a device, for as long as the tensor object that was shared.

On the CPU a shared tensor lies in the block and keeps it; on a device the block only names torch's memory.
"""

from __future__ import annotations

from typing import Any

from . import _core

_blocks: Any = None


def keep_with(tensor: Any, block: _core.Tensor) -> None:
    """Keeps `block` until torch's object `tensor` is gone, so that pickled handles stay valid that long."""
    global _blocks
    if _blocks is None:
        from torch.utils.weak import WeakTensorKeyDictionary

        _blocks = WeakTensorKeyDictionary()
    _blocks[tensor] = block
