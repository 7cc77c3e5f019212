# SPDX-License-Identifier: Apache-2.0
"""Describes how the results of a graph lie in memory."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch


def address_of(tensor: torch.Tensor) -> int:
    """Returns the address of the tensor's storage, or 0 if it has no bytes."""
    storage = tensor.untyped_storage()
    return storage.data_ptr() if storage.nbytes() else 0


def offset_of(tensor: torch.Tensor) -> int:
    """Returns the tensor's offset in its storage, in bytes."""
    return int(tensor.storage_offset()) * tensor.element_size()


def extent_of(tensor: torch.Tensor) -> int:
    """Returns the number of bytes from the beginning of the first element to the end of the last."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size() if tensor.numel() else 0


def laid(storage: Any, dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int], offset: int) -> torch.Tensor:
    """Returns a tensor in a storage. ``offset`` is in bytes, ``strides`` are in elements."""
    tensor = torch.empty(0, dtype=dtype, device=storage.device)
    return tensor.set_(storage, offset // dtype.itemsize, shape, strides)


@dataclasses.dataclass(frozen=True)
class Output:
    """A result of a graph.

    ``kind`` is ``"made"`` for a result in the source with the index ``at``, ``"input"`` for a view of the input with
    the index ``at``, ``"constant"``, or ``"empty"`` for a tensor without elements.
    """

    kind: str
    at: int
    constant: torch.Tensor | None
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    """The number of bytes from the source's first byte, or from the input's first element."""

    @property
    def is_whole(self) -> bool:
        """Returns whether the elements are contiguous from the source's first byte on, in any order of dimensions."""
        if self.offset:
            return False
        expected = 1
        for size, stride in sorted(zip(self.shape, self.strides, strict=True), key=lambda pair: pair[1]):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True

    def is_all_of(self, tensor: torch.Tensor) -> bool:
        """Returns whether the result has the layout of the tensor, and begins where the tensor does."""
        same = (self.dtype, self.shape, self.strides) == (tensor.dtype, tuple(tensor.shape), tensor.stride())
        return same and self.offset == 0


@dataclasses.dataclass
class Source:
    """A storage in the window that holds results."""

    address: int
    nbytes: int
    users: list[Output] = dataclasses.field(default_factory=list)

    @property
    def only(self) -> Output | None:
        """The only result in the source, if the source can be copied as this result; else None."""
        return self.users[0] if len(self.users) == 1 and self.users[0].is_whole else None

    def copied(self) -> tuple[int, int]:
        """Returns the address and size of the bytes to copy out: the whole source, or the bytes of its only result."""
        if self.only is None:
            return self.address, self.nbytes
        return self.address, math.prod(self.only.shape) * self.only.dtype.itemsize

    def whole(self, memory: torch.Tensor) -> torch.Tensor:
        """Returns the source's memory in the layout of its only result, or as bytes if there are several."""
        only = self.only
        if only is None:
            return memory
        return laid(memory.untyped_storage(), only.dtype, only.shape, only.strides, 0)


class Inputs:
    """Finds the inputs of a capture by the addresses of their storages. Inputs that were freed are not found."""

    def __init__(self) -> None:
        self._at: dict[int, tuple[int, int, Any]] = {}

    def add(self, index: int, tensor: torch.Tensor) -> None:
        """Adds an input, without keeping it alive."""
        if address_of(tensor):
            weak = torch.multiprocessing.reductions.StorageWeakRef(tensor.untyped_storage())
            self._at.setdefault(address_of(tensor), (index, offset_of(tensor), weak))

    def find(self, result: torch.Tensor) -> tuple[int, int] | None:
        """Returns the index of the input whose storage contains the result, and the offset in bytes from the input's
        first element to the result's, or None."""
        found = self._at.get(address_of(result))
        if found is None:
            return None
        index, begins, weak = found
        return None if weak.expired() else (index, offset_of(result) - begins)


def lay_out(results: Sequence[Any], inputs: Inputs, begin: int, end: int) -> tuple[list[Any], list[Source]]:
    """Returns the results, with an ``Output`` in place of each tensor, and the sources that hold them.

    ``begin`` and ``end`` are the addresses of the window.
    """
    sources: dict[int, Source] = {}
    order: list[Source] = []
    outputs: list[Any] = []
    for result in results:
        if not isinstance(result, torch.Tensor):
            outputs.append(result)
            continue
        at = address_of(result)
        given = inputs.find(result) if at else None
        looks = (result.dtype, tuple(result.shape), result.stride())
        if not at or not result.numel():
            outputs.append(Output("empty", 0, None, *looks, 0))
        elif given is not None:
            outputs.append(Output("input", given[0], None, *looks, given[1]))
        elif not begin <= at < end:
            outputs.append(Output("constant", 0, result, *looks, 0))
        else:
            if at not in sources:
                sources[at] = Source(at, result.untyped_storage().nbytes())
                order.append(sources[at])
            output = Output("made", order.index(sources[at]), None, *looks, offset_of(result))
            sources[at].users.append(output)
            outputs.append(output)
    return outputs, order


def _layout_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.device


class StaticInput:
    """The address and layout of an input in place at the capture. A graph does not keep the tensor: the address of each
    call's own tensor is compared before a replay (I3)."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.address = tensor.data_ptr()
        self.layout = _layout_of(tensor)

    def is_of(self, tensor: torch.Tensor) -> bool:
        return tensor.data_ptr() == self.address and _layout_of(tensor) == self.layout
