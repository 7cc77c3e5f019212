# SPDX-License-Identifier: Apache-2.0
"""Makes tensors from arrays, from numbers, and with the shape of another tensor."""

from __future__ import annotations

from .. import _core
from ..errors import InvalidArgument

TYPE_CHECKING = False  # importing typing would cost time
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_CODES = {
    "int8": "b", "uint8": "B", "int16": "h", "uint16": "H", "int32": "i", "uint32": "I", "int64": "q", "uint64": "Q",
    "float32": "f", "float64": "d",
}  # fmt: skip

_DLPACK_CUDA = 2


def asarray(obj: Any, dtype: Any = None, device: Any = None, *, copy: bool | None = None) -> _core.Tensor:
    """Returns an array, or nested lists of numbers, as a tensor that other processes can open.

    Memory of onecopy is not copied. A torch tensor is not copied either: its storage moves into
    shared memory, as with ``share()``. An array of another library is copied once.

    Args:
        obj: an array of onecopy, torch, numpy or another library, a number, or lists of numbers.
        dtype: None keeps the dtype of an array; numbers become "bool", "int64", "float32" or
            "complex64".
        device: None keeps an array on its device, and places numbers on the cpu.
        copy: True always makes a new tensor; False raises if a copy is needed.

    Raises:
        TypeError: obj is neither an array nor a number, or contains arrays in a list, which must be
            stacked first.
        InvalidArgument: rows have different lengths; or copy=False and a copy is needed.
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
    """Returns a new tensor with the content of an array or of nested lists of numbers.

    Equivalent to ``asarray()``, but always copies.

    >>> onecopy.array([[1, 2], [3, 4]]).tolist()
    [[1, 2], [3, 4]]
    """
    return asarray(obj, dtype, device, copy=copy or None)


def from_numpy(ndarray: Any) -> _core.Tensor:
    """Returns a tensor on the memory of a numpy array, as ``torch.from_numpy()`` does.

    Other processes cannot open memory of numpy, so ``share()`` copies it; ``asarray()`` copies it
    at once. An array on memory of onecopy yields a tensor on that memory.

    Raises:
        TypeError: ndarray is not a numpy.ndarray.
    """
    kind = type(ndarray)
    if kind.__name__ != "ndarray" or kind.__module__ != "numpy":
        raise TypeError(f"ndarray must be a numpy.ndarray, not {kind.__name__}; asarray() takes other arrays")
    return _core.from_dlpack(ndarray)


def ones(shape: Any, dtype: Any = "float32", device: Any = "cpu", pin: bool = False) -> _core.Tensor:
    """Returns a new tensor of ones. Takes the same arguments as ``empty()``."""
    return _core.full(shape, 1, dtype, device, pin)


def empty_like(x: Any, dtype: Any = None, device: Any = None, pin: bool = False) -> _core.Tensor:
    """Returns ``empty()`` with the shape of ``x``, an array of any library.

    ``x`` also gives the dtype and device if they are None.
    """
    return _core.empty(*_like(x, dtype, device), pin)


def zeros_like(x: Any, dtype: Any = None, device: Any = None, pin: bool = False) -> _core.Tensor:
    """Returns ``zeros()`` with the shape of ``x``, an array of any library, as ``empty_like()``."""
    return _core.zeros(*_like(x, dtype, device), pin)


def ones_like(x: Any, dtype: Any = None, device: Any = None, pin: bool = False) -> _core.Tensor:
    """Returns ``ones()`` with the shape of ``x``, an array of any library, as ``empty_like()``."""
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
        raise TypeError("obj contains arrays in a list; stack them first with numpy.stack() or torch.stack()")
    if isinstance(obj, (list, tuple)):
        raise InvalidArgument(f"obj must have rows of one length; one is a number, and another is {obj!r:.60}")
    raise TypeError(f"obj must be an array, a number, or lists of numbers, not {obj!r:.60}")


def _kind(numbers: list[Any]) -> str:
    kinds = set(map(type, numbers))
    if kinds == {bool}:
        return "bool"
    if kinds and kinds <= {bool, int}:
        return "int64"
    return "complex64" if complex in kinds else "float32"
