# SPDX-License-Identifier: Apache-2.0
"""Pins existing memory of the host in place, so that cards copy it at the speed of the link."""

from __future__ import annotations

from . import _core
from .errors import InvalidArgument

TYPE_CHECKING = False  # importing typing would cost time
if TYPE_CHECKING:
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
        value: a tensor of onecopy or torch, a Bundle, a ``torch.nn.Module``, or a mapping, list or
            tuple of them. Tensors in it that are on devices are left as they are.
        device: the card whose driver pins the memory, e.g. "cuda:1"; None for a card that this
            process uses already. Every card can use the pinned memory.

    Returns:
        The value.

    Raises:
        InvalidArgument: value is or contains an object without memory, and the error is a TypeError,
            too; or the memory belongs to another library or a device.
        Unsupported: a tensor of torch has no memory of its own, this process sees no card, or the
            driver cannot pin this memory.
        OutOfMemory: the limit ``ONECOPY_PIN_LIMIT``, by default half of the machine's memory, is
            reached.
    """
    if not _core._pin(value, device):
        raise InvalidArgument("value contains no tensor on the cpu that could be pinned")
    return value


def unpin(value: Any) -> None:
    """Undoes ``pin()`` for the tensors of ``value``. Memory that other tensors of this process share stays
    pinned. Waits for the cards' work. No other thread may copy the tensors during the call."""
    _core._unpin(value)


def is_pinned(value: Any) -> bool:
    """Returns whether onecopy has pinned ``value``, or every tensor that it contains, in this process."""
    return _core._is_pinned(value)
