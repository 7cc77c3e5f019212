# SPDX-License-Identifier: Apache-2.0
"""The functions that pickles of tensors and handles call."""

from __future__ import annotations

from . import _core

TYPE_CHECKING = False  # typing would be another import
if TYPE_CHECKING:
    from typing import Any, Literal


def tensor(data: bytes, access: Literal["readwrite", "read"]) -> _core.Tensor:
    """Opens the tensor that a pickled handle names."""
    opened: _core.Tensor = _core.open(data, access=access)
    return opened


def saved(dtype: str, shape: tuple[int, ...], device: str, elements: Any) -> _core.Tensor:
    """A new tensor of the elements that a pickle has."""
    made = _core.empty(shape, dtype, device)
    made.reshape(-1).view("uint8").copy_from(elements)
    return made


def storage(data: bytes) -> Any:
    """Opens the torch.UntypedStorage that a pickled handle names."""
    return _core.torch_open_storage(_core.open(data))


def handle(data: bytes) -> _core.Handle:
    """Reads a pickled handle."""
    return _core.Handle.from_bytes(data)
