# SPDX-License-Identifier: Apache-2.0
"""The element types of tensors."""

from __future__ import annotations

_ITEMSIZE = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "uint16": 2,
    "int16": 2,
    "uint32": 4,
    "int32": 4,
    "uint64": 8,
    "int64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
}


class DType(str):
    """The name of an element type, e.g. ``"float32"``, as a ``str`` that also has an ``itemsize``.

    The types are bool, uint8 to uint64, int8 to int64, float16, bfloat16, float32, float64, complex64,
    complex128, float8_e4m3fn, float8_e4m3fnuz, float8_e5m2, float8_e5m2fnuz and float8_e8m0fnu.

    Raises:
        ValueError: onecopy has no element type of that name.
    """

    __slots__ = ()

    def __new__(cls, name: str) -> DType:
        if name not in _ITEMSIZE:
            raise ValueError(f"{name!r} is not an element type; the types are {', '.join(_ITEMSIZE)}")
        return super().__new__(cls, name)

    @property
    def itemsize(self) -> int:
        """The size of one element in bytes."""
        return _ITEMSIZE[self]

    def __repr__(self) -> str:
        return f"onecopy.DType({str(self)!r})"
