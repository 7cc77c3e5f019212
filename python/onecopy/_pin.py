# SPDX-License-Identifier: Apache-2.0
"""Pins existing memory of the host in place, so that cards copy it at the speed of the link."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from . import _core
from .errors import InvalidArgument

TYPE_CHECKING = False  # importing typing would cost time
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


def pin(value: Any, device: Any = None) -> Any:
    """Pins memory for the cards of this process: copies of it run at the speed of the link, and do
    not block the caller.

    Torch's ``tensor.is_pinned()`` is true then, and ``tensor.to("cuda", non_blocking=True)``
    returns at once. Other processes pin the same memory for themselves; nothing is copied. A torch
    tensor outside shared memory moves there first, as with ``share()``. Released memory is reused
    only after the cards have finished the work that was queued at that time. Memory is pinned in
    pieces of 64 MiB, and stays pinned for later tensors until ``unpin()``, ``trim()``, or until
    the limit needs the room.

    Args:
        value: a tensor of onecopy or torch, a Bundle, a ``torch.nn.Module``, or a dict, list or
            tuple of them. Tensors in it that are on devices are left as they are.
        device: the card whose driver pins the memory, e.g. "cuda:1"; None for a card that this
            process uses already. Every card can use the pinned memory.

    Returns:
        The value.

    Raises:
        TypeError: value contains an object without memory.
        InvalidArgument: the memory belongs to another library or a device.
        Unsupported: this process sees no card, or the driver cannot pin this memory.
        OutOfMemory: the limit ``ONECOPY_PIN_LIMIT``, by default half of the machine's memory, is
            reached.
    """
    found = False
    for tensor in _tensors(value, "value"):
        _core._pin(tensor, device)
        found = True
    if not found:
        raise InvalidArgument("value contains no tensor on the cpu that could be pinned")
    return value


def unpin(value: Any) -> None:
    """Undoes ``pin()`` for the tensors of ``value``. Memory that other tensors of this process share stays
    pinned. Waits for the cards' work. No other thread may copy the tensors during the call."""
    for tensor in _tensors(value, "value"):
        _core._unpin(tensor)


def is_pinned(value: Any) -> bool:
    """Returns whether onecopy has pinned ``value``, or every tensor that it contains, in this process."""
    return all([_core._is_pinned(tensor) for tensor in _tensors(value, "value")] or [False])


def _tensors(value: Any, place: str) -> Iterator[_core.Tensor]:
    if isinstance(value, (_core.Bundle, Mapping)):
        for name in value:
            yield from _inside(value[name], f"{place}[{name!r}]")
    elif isinstance(value, (list, tuple)):
        for at, one in enumerate(value):
            yield from _inside(one, f"{place}[{at}]")
    elif _is_module(value):
        for name, one in [*value.named_parameters(), *value.named_buffers()]:
            yield from _inside(one, f"{place}.{name}")
    else:
        yield _tensor(value, place)


def _inside(value: Any, place: str) -> Iterator[_core.Tensor]:
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return
    if str(getattr(value, "device", "cpu")) == "cpu":
        yield from _tensors(value, place)


def _tensor(value: Any, place: str) -> _core.Tensor:
    if isinstance(value, _core.Tensor):
        return value
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        if _core._is_stored(value.data_ptr()):
            raise InvalidArgument(f"{place} is memory of the store: open an arena with pin=True, or pin a copy")
        return _core.torch_share_block(value.untyped_storage())[0]
    if hasattr(value, "__dlpack__"):
        return _core.from_dlpack(value)
    raise TypeError(
        f"{place} must be a tensor of onecopy or torch, a Bundle, a torch.nn.Module, or a dict, list or tuple of "
        f"them, not {type(value).__name__}"
    )


def _is_module(value: Any) -> bool:
    nn = getattr(sys.modules.get("torch"), "nn", None)
    return nn is not None and isinstance(value, nn.Module)
