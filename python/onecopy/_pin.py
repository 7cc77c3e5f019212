# SPDX-License-Identifier: Apache-2.0
"""Memory of the host that cards copy at the speed of the link: existing memory is pinned in place."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from . import _core
from .errors import InvalidArgument

TYPE_CHECKING = False  # typing would be another import
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


def pin(value: Any, device: Any = None) -> Any:
    """Pins memory for the cards of this process: copies of it run at the speed of the link, and
    keep no caller waiting.

    ``tensor.is_pinned()`` of torch is true then, and ``tensor.to("cuda", non_blocking=True)``
    returns at once. Other processes pin the same memory for themselves; nothing is copied. A torch
    tensor that is not in shared memory moves there first, as with ``share()``. Dropped memory is
    used again only once the cards have done their work of that moment. Memory is pinned in pieces
    of 64 MiB, and stays so for the tensors that come after, until ``unpin()``, ``trim()``, or until
    the limit needs the room.

    Args:
        value: a tensor of onecopy or torch, a Bundle, a dict, list or tuple of such, or a
            ``torch.nn.Module``. Tensors in it that are on devices are left as they are.
        device: the card for which it is pinned first, as "cuda:1"; None for one that this process
            uses already. Every card has a use of it.

    Returns:
        The value.

    Raises:
        TypeError: value is nothing with memory.
        InvalidArgument: memory of another library or of a device.
        Unsupported: this process sees no card, or its driver cannot pin such memory.
        OutOfMemory: beyond ``ONECOPY_PIN_LIMIT``, which is half of the memory where it is not set.
    """
    found = False
    for tensor in _tensors(value, "value"):
        _core._pin(tensor, device)
        found = True
    if not found:
        raise InvalidArgument("value has no tensor on the cpu that could be pinned")
    return value


def unpin(value: Any) -> None:
    """Ends ``pin()``, unless this process has other tensors beside those: such memory stays pinned.
    Waits for the cards' work. No thread may copy the tensors meanwhile."""
    for tensor in _tensors(value, "value"):
        _core._unpin(tensor)


def is_pinned(value: Any) -> bool:
    """Returns whether onecopy has pinned ``value`` in this process: each of its tensors if it has many."""
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
        return _core.torch_share_block(value.untyped_storage())[0]
    if hasattr(value, "__dlpack__"):
        return _core.from_dlpack(value)
    raise TypeError(
        f"{place} must be a tensor of onecopy or torch, a Bundle, a dict, list or tuple of such, or a "
        f"torch.nn.Module, not {type(value).__name__}"
    )


def _is_module(value: Any) -> bool:
    nn = getattr(sys.modules.get("torch"), "nn", None)
    return nn is not None and isinstance(value, nn.Module)
