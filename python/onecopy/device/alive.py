# SPDX-License-Identifier: Apache-2.0
"""Keeps a block as long as the torch tensor on a device that it was made for.

On the CPU a shared tensor lies in the block and owns it. On a device the block only refers to torch's memory, so
something else must own the block.
"""

from __future__ import annotations

from typing import Any

from .. import _core

_blocks: Any = None


def keep_with(tensor: Any, block: _core.Tensor) -> None:
    """Keeps `block` until the torch object `tensor` is destroyed, so that pickled handles stay valid until then."""
    global _blocks
    if _blocks is None:
        from torch.utils.weak import WeakTensorKeyDictionary

        _blocks = WeakTensorKeyDictionary()
    _blocks[tensor] = block
