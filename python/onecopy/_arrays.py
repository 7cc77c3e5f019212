# SPDX-License-Identifier: Apache-2.0
"""Tensors made of arrays, of numbers, and with the shape of another tensor."""

from __future__ import annotations

from . import _core
from .errors import InvalidArgument

TYPE_CHECKING = False  # typing would be another import
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_CODES = {
    "int8": "b", "uint8": "B", "int16": "h", "uint16": "H", "int32": "i", "uint32": "I", "int64": "q", "uint64": "Q",
    "float32": "f", "float64": "d",
}  # fmt: skip

_DLPACK_CUDA = 2


def asarray(obj: Any, dtype: Any = None, device: Any = None, *, copy: bool | None = None) -> _core.Tensor:
    """An array, or nested lists of numbers, as a tensor in memory that other processes can open.

    Memory of onecopy is not copied, nor is a torch tensor, whose storage moves into shared memory as
    with ``share()``: the tensor is on the same memory. Arrays of other libraries are copied once.

    Args:
        obj: an array of onecopy, torch, numpy or another library, a number, or lists of numbers.
        dtype: None for that of the array; of numbers it is "bool", "int64", "float32" or "complex64".
        device: None for where the array is; numbers go to the cpu.
        copy: True always makes a new tensor, False refuses to.

    Raises:
        TypeError: obj is no array and no number, or has some in a list, which must be stacked first.
        InvalidArgument: rows of different lengths; or copy=False, where a copy is needed.
        OverflowError: a number does not fit into the dtype.
    """
    wanted = None if dtype is None else _core._dtype(dtype)
    found = _core._as_tensor(obj, copy is True)
    if found is None:
        _check_copy(copy, "numbers have no memory of onecopy")
        return _of_numbers(obj, wanted).to("cpu" if device is None else device)
    tensor, is_new = found
    if is_new and copy is False:
        _check_copy(copy, "this array lies in memory of another library")
    if wanted is not None and wanted != tensor.dtype:
        _check_copy(copy, f"elements of {tensor.dtype} become {wanted}")
        tensor = _converted(tensor, wanted)
    there = tensor if device is None else tensor.to(device)
    if there is not tensor:
        _check_copy(copy, f"the array is on {tensor.device}")
    return there


def array(obj: Any, dtype: Any = None, device: Any = None, *, copy: bool = True) -> _core.Tensor:
    """A new tensor of an array, or of nested lists of numbers: ``asarray()`` with ``copy=True``.

    >>> onecopy.array([[1, 2], [3, 4]]).tolist()
    [[1, 2], [3, 4]]
    """
    return asarray(obj, dtype, device, copy=copy or None)


def from_numpy(ndarray: Any) -> _core.Tensor:
    """A numpy array as a tensor on the same memory, as ``torch.from_numpy()`` has it.

    Memory of numpy cannot be opened by others, so ``share()`` copies it; ``asarray()`` copies it at
    once. An array on memory of onecopy is that memory again.

    Raises:
        TypeError: it is no numpy array.
    """
    kind = type(ndarray)
    if kind.__name__ != "ndarray" or kind.__module__ != "numpy":
        raise TypeError(f"ndarray must be a numpy.ndarray, not {kind.__name__}; asarray() takes other arrays")
    return _core.from_dlpack(ndarray)


def ones(shape: Any, dtype: Any = "float32", device: Any = "cpu", pin: bool = False) -> _core.Tensor:
    """``empty()``, filled with ones."""
    return _core.full(shape, 1, dtype, device, pin)


def empty_like(x: Any, dtype: Any = None, device: Any = None, pin: bool = False) -> _core.Tensor:
    """``empty()`` with the shape of ``x``, an array of any library; its dtype and device if none is given."""
    return _core.empty(*_like(x, dtype, device), pin)


def zeros_like(x: Any, dtype: Any = None, device: Any = None, pin: bool = False) -> _core.Tensor:
    """``zeros()`` with the shape of ``x``, an array of any library; its dtype and device if none is given."""
    return _core.zeros(*_like(x, dtype, device), pin)


def ones_like(x: Any, dtype: Any = None, device: Any = None, pin: bool = False) -> _core.Tensor:
    """``ones()`` with the shape of ``x``, an array of any library; its dtype and device if none is given."""
    return ones(*_like(x, dtype, device), pin)


def _like(x: Any, dtype: Any, device: Any) -> tuple[tuple[int, ...], Any, Any]:
    if not hasattr(x, "shape") or not hasattr(x, "dtype"):
        raise TypeError(f"x must be an array, with a shape and a dtype, not {type(x).__name__}; asarray() makes one")
    return tuple(x.shape), x.dtype if dtype is None else dtype, _device_of(x) if device is None else device


def _device_of(x: Any) -> Any:
    if isinstance(x, _core.Tensor) or type(x).__module__.startswith("torch"):
        return x.device
    kind, ordinal = x.__dlpack_device__() if hasattr(x, "__dlpack_device__") else (1, 0)
    return f"cuda:{int(ordinal)}" if kind == _DLPACK_CUDA else "cpu"


def _check_copy(copy: bool | None, why: str) -> None:
    if copy is False:
        raise InvalidArgument(f"copy=False, but {why}: only a copy of it can be shared")


def _converted(tensor: _core.Tensor, dtype: str) -> _core.Tensor:
    made = _core.empty(tensor.shape, dtype, tensor.device)
    made[...] = tensor.cpu().numpy()
    return made


# --- numbers ----------------------------------------------------------------------------------------


def _of_numbers(obj: Any, dtype: str | None) -> _core.Tensor:
    shape = tuple(_sizes(obj))
    numbers = list(_flat(obj, shape))
    tensor = _core.empty(shape, dtype or _kind(numbers))
    row = tensor.reshape(-1)
    if (code := _CODES.get(tensor.dtype)) is not None:
        import array

        row.copy_from(array.array(code, numbers))
        return tensor
    for at, number in enumerate(numbers):
        row[at] = number
    return tensor


def _sizes(obj: Any) -> Iterator[int]:
    while isinstance(obj, (list, tuple)):
        yield len(obj)
        if not obj:
            return
        obj = obj[0]


def _flat(obj: Any, shape: tuple[int, ...]) -> Iterator[Any]:
    if not shape:
        yield _number(obj)
        return
    if not isinstance(obj, (list, tuple)) or len(obj) != shape[0]:
        raise InvalidArgument(f"obj must have rows of one length; one has {shape[0]}, and another is {obj!r:.60}")
    for part in obj:
        yield from _flat(part, shape[1:])


def _number(obj: Any) -> Any:
    if isinstance(obj, (bool, int, float, complex)):
        return obj
    if getattr(obj, "shape", None) == () and hasattr(obj, "item"):
        return obj.item()
    if hasattr(obj, "shape"):
        raise TypeError("obj has arrays in a list; stack them first, as numpy.stack() and torch.stack() do")
    if isinstance(obj, (list, tuple)):
        raise InvalidArgument(f"obj must have rows of one length; one is a number, and another is {obj!r:.60}")
    raise TypeError(f"obj must be an array, a number, or lists of numbers; {obj!r:.60} is none of them")


def _kind(numbers: list[Any]) -> str:
    kinds = set(map(type, numbers))
    if kinds == {bool}:
        return "bool"
    if kinds and kinds <= {bool, int}:
        return "int64"
    return "complex64" if complex in kinds else "float32"
