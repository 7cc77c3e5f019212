# SPDX-License-Identifier: Apache-2.0
"""Whole values to a card and back, and weights from files straight to a card."""

from __future__ import annotations

from collections.abc import Mapping

from . import _core
from ._pin import pin as _pin

TYPE_CHECKING = False  # typing would be another import
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
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
    copies = _core._Copies(device, stream)
    shape = _take(value, copies, ("value",))
    return _put(shape, iter(copies.end()))


def load(
    path: Any,
    device: Any = "cpu",
    *,
    pin: bool = False,
    framework: Any = None,
    progress: Callable[[int, int], object] | None = None,
) -> dict[str, Any]:
    """Loads all tensors of a safetensors file, or of a directory of them, into shared memory of a device.

    Returns them by name. Those for a card go through a small ring of pinned memory: threads fill it
    from the page cache, or past it by direct reads, while the card copies. No other memory of the
    host is needed, and other processes open the result by its handles.

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


def view_on(value: Any, device: Any) -> Any:
    """Tensors of a card on the host's memory where it is: the card reads and writes it over the link,
    and nothing is copied::

        experts = onecopy.open(handle, framework="torch")
        y = x @ onecopy.view_on(experts["expert.7"], "cuda:0")

    For tensors that are read once, or seldom, or do not fit on the card. Memory that is not pinned is
    pinned. A view keeps the memory as any tensor does, and after the last one it is used again only
    once the card has done its work of that moment. Writes of either side are seen by the other once
    it has synchronized. A view stays in this process: share the tensor that it is a view of.

    Args:
        value: a tensor of onecopy or torch, a Bundle, a dict, list or tuple of such, on the cpu. Plain
            values stay as they are.
        device: "cuda:0", "npu:0", or a ``torch.device``.

    Returns:
        The value with tensors of the device, each of the library that it came from, without
        gradients; a dict for a Bundle.

    Raises:
        TypeError: value has an object in it that is no tensor and no plain value.
        InvalidArgument: memory of another library, or of a card; there is no such device.
        Unsupported: this process sees no card, or its card does not see memory of the host in place.
        OutOfMemory: beyond the limit of ``pin()``.
    """
    views = _Views(device)
    shape = _take(value, views, ("value",))
    return _put(shape, iter(views.made))


class _Views:
    """Views of the tensors of a value, in its order."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self.made: list[Any] = []

    def add(self, objects: list[Any]) -> int:
        """As _Copies.add(): adds objects up to the first that is no tensor; how many."""
        for added, one in enumerate(objects):
            view = _core._view_on(one, self._device)
            if view is None:
                return added
            self.made.append(view)
        return len(objects)


_TENSOR = object()  # in the shape of a value, where a tensor was


def _take(value: Any, copies: _core._Copies | _Views, place: tuple[Any, ...]) -> Any:
    """The value with _TENSOR for each tensor, which `copies` gets."""
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return value
    if copies.add([value]):
        return _TENSOR
    if type(value) is dict:
        return dict(zip(value, _take_all(value, list(value.values()), copies, place), strict=True))
    if isinstance(value, (_core.Bundle, Mapping)):
        return {name: _take(value[name], copies, (place, name)) for name in value}
    if isinstance(value, (list, tuple)):
        return _rebuilt(value, _take_all(range(len(value)), list(value), copies, place))
    raise TypeError(
        f"{_named(place)} must be a dense tensor of onecopy or torch, a Bundle, a dict, list or tuple of such, or a "
        f"plain value, not {type(value).__name__}"
    )


def _take_all(
    names: Iterable[Any], values: list[Any], copies: _core._Copies | _Views, place: tuple[Any, ...]
) -> list[Any]:
    """The values in order, those at the front quickly."""
    taken = copies.add(values)
    rest = list(zip(names, values, strict=True))[taken:]
    return [_TENSOR] * taken + [_take(one, copies, (place, name)) for name, one in rest]


def _named(place: tuple[Any, ...]) -> str:
    """Returns a text such as "value['a'][3]", which only an error needs."""
    return place[0] if len(place) == 1 else f"{_named(place[0])}[{place[1]!r}]"


def _rebuilt(value: Any, items: list[Any]) -> Any:
    """A list or tuple like `value`; a namedtuple takes its fields one by one."""
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)


def _put(shape: Any, made: Iterator[Any]) -> Any:
    if shape is _TENSOR:
        return next(made)
    if isinstance(shape, dict):
        return {name: _put(one, made) for name, one in shape.items()}
    if isinstance(shape, (list, tuple)):
        return _rebuilt(shape, [_put(one, made) for one in shape])
    return shape
