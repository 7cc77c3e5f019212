# SPDX-License-Identifier: Apache-2.0
"""The functions that pickles of tensors and handles call when they are loaded."""

from __future__ import annotations

from . import _core

TYPE_CHECKING = False  # importing typing would cost time
if TYPE_CHECKING:
    from typing import Any, Literal


def tensor(data: bytes, access: Literal["readwrite", "read"]) -> _core.Tensor:
    """Opens the tensor of a pickled handle."""
    opened: _core.Tensor = _core.open(data, access=access)
    return opened


def saved(dtype: str, shape: tuple[int, ...], device: str, elements: Any) -> _core.Tensor:
    """Returns a new tensor with the elements that a pickle contains."""
    made = _core.empty(shape, dtype, device)
    made.reshape(-1).view("uint8").copy_from(elements)
    return made


def storage(data: bytes) -> Any:
    """Opens the torch.UntypedStorage of a pickled handle."""
    return _core.torch_open_storage(_core.open(data))


def handle(data: bytes) -> _core.Handle:
    """Returns a pickled handle."""
    return _core.Handle.from_bytes(data)
