# SPDX-License-Identifier: Apache-2.0
"""Whole values to a card and back, and weights from files straight to a card."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from . import _core
from ._pin import pin as _pin

TYPE_CHECKING = False  # typing would be another import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def to_device(value: Any, device: Any, stream: Any = None) -> Any:
    """A copy of all tensors of a value on a device, in memory that other processes can open::

        weights = onecopy.open(handle, framework="torch", pin=True)
        on_card = onecopy.to_device(weights, "cuda:0")

    Neighbouring tensors are one copy, at the speed of the link if the memory is pinned: memory of
    32 MiB and more is pinned on the way, see ``pin()``. From a card to ``"cpu"`` the copies lie in
    pinned memory, and are there on return.

    Args:
        value: a tensor of onecopy or torch, a Bundle, a dict, list or tuple of such. Plain values
            stay as they are.
        device: "cuda:0", "npu:0", "cpu", or a ``torch.device``.
        stream: in whose order they are copied, a stream of torch or cupy or its number; None for
            the current one.

    Returns:
        The value with tensors on the device, each of the library that it came from; a dict for a
        Bundle.

    Raises:
        TypeError: value has an object in it that is no tensor and no plain value.
        InvalidArgument: memory of another library, or of another card.
        Unsupported: there is no such device.
        OutOfMemory: on the device.
    """
    found: list[tuple[_core.Tensor, int | None]] = []
    shape = _take(value, found, "value")
    made = _core._to_device([tensor for tensor, _ in found], device, stream)
    return _put(shape, [_as_before(one, flags) for one, (_, flags) in zip(made, found, strict=True)])


def load(
    path: Any,
    device: Any = "cpu",
    *,
    pin: bool = False,
    framework: Any = None,
    progress: Callable[[int, int], object] | None = None,
) -> dict[str, Any]:
    """All tensors of a safetensors file, or of a directory of them, by name, in shared memory of a
    device.

    To a card they go by way of a small ring of pinned memory. Threads fill it from the page cache,
    or past it by direct reads, while the card copies. No other memory of the host is needed, and
    other processes open the result by its handles.

    Args:
        path: as of ``load_safetensors()``, which this is for the cpu.
        device: "cpu", "cuda:0", "npu:0", or a ``torch.device``.
        pin: of the cpu: pins the memory for cards, see ``pin()``.
        framework: of the tensors: None for onecopy's, "torch", "numpy".
        progress: called from time to time with the bytes done and the bytes in all. Its exceptions
            end the loading, and so do those of a signal's handler: Ctrl-C ends it at once.

    Raises:
        BadFile, FileNotFoundError, InvalidArgument, Unsupported, System: as of
            ``load_safetensors()``.
        OutOfMemory: on the device, or beyond the limit of ``pin()``.
    """
    tensors: dict[str, Any] = _core._load(path, device, framework, progress)
    return _pin(tensors) if pin and tensors and str(device) == "cpu" else tensors


class _Leaf:
    def __init__(self, number: int) -> None:
        self.number = number


def _take(value: Any, found: list[tuple[_core.Tensor, int | None]], place: str) -> Any:
    """The value with a _Leaf for each tensor, which is added to `found`."""
    if isinstance(value, (_core.Bundle, Mapping)):
        return {name: _take(value[name], found, f"{place}[{name!r}]") for name in value}
    if isinstance(value, (list, tuple)):
        return _rebuilt(value, [_take(one, found, f"{place}[{at}]") for at, one in enumerate(value)])
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return value
    found.append(_tensor(value, place))
    return _Leaf(len(found) - 1)


def _rebuilt(value: Any, items: list[Any]) -> Any:
    """A list or tuple like `value`; a namedtuple takes its fields one by one."""
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)


def _tensor(value: Any, place: str) -> tuple[_core.Tensor, int | None]:
    if isinstance(value, _core.Tensor):
        return value, None
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        shared = _core.torch_share(value)
        if shared is not None:
            return shared
    raise TypeError(
        f"{place} must be a dense tensor of onecopy or torch, a Bundle, a dict, list or tuple of such, or a plain "
        f"value, not {type(value).__name__}"
    )


def _as_before(tensor: _core.Tensor, flags: int | None) -> Any:
    return tensor if flags is None else _core.torch_open(tensor, flags)


def _put(shape: Any, made: list[Any]) -> Any:
    if isinstance(shape, _Leaf):
        return made[shape.number]
    if isinstance(shape, dict):
        return {name: _put(one, made) for name, one in shape.items()}
    if isinstance(shape, (list, tuple)):
        return _rebuilt(shape, [_put(one, made) for one in shape])
    return shape
