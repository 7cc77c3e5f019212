# SPDX-License-Identifier: Apache-2.0
"""The key of a call: the properties of its arguments that need another graph if they differ."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import Any

import torch

MAX_KEYED_ELEMENTS = 8
"""The maximum number of elements of a CPU tensor that is compared by value, for a graph on a card."""


class Keys:
    """Makes the keys of calls. Keys are compared in full (I6).

    Args:
        static: the indices of parameters and buffers. They are not in the key: a graph compares their addresses itself.
        whole: the indices of inputs whose storage the graph reads beyond their elements, as by as_strided().
        passing: the indices of numbers that the graph does not use.
        on_card: whether the graph runs on a card.
    """

    def __init__(
        self, static: Collection[int], whole: Collection[int], passing: Collection[int], on_card: bool
    ) -> None:
        self._static = static
        self._passing = passing
        self._whole = whole
        self._on_card = on_card

    def is_keyed(self, index: int, argument: Any) -> bool:
        if index in self._passing:
            return False
        return index not in self._static or index in self._whole or (self._on_card and is_on_cpu(argument))

    def of(self, arguments: Sequence[Any]) -> tuple[Hashable, ...]:
        return tuple(self._part(index, a) for index, a in enumerate(arguments) if self.is_keyed(index, a))

    def _part(self, index: int, argument: Any) -> Hashable:
        if isinstance(argument, float):
            return float, argument.hex()  # tells 0.0 from -0.0, and makes nan equal to itself
        if not isinstance(argument, torch.Tensor):
            return type(argument), argument
        more: tuple[Hashable, ...] = (argument.is_conj(), argument.is_neg())
        if index in self._whole:
            more = (*more, argument.storage_offset(), argument.untyped_storage().nbytes())
        if self._on_card:
            more = (*more, _content(argument))
        return argument.dtype, argument.shape, argument.stride(), more


def is_on_cpu(argument: Any) -> bool:
    return isinstance(argument, torch.Tensor) and argument.device.type == "cpu"


def _content(tensor: torch.Tensor) -> tuple[Any, ...] | None:
    """Returns the content of a small CPU tensor, which a capture on a card makes constant, or None for other
    tensors."""
    if tensor.device.type != "cpu" or tensor.numel() > MAX_KEYED_ELEMENTS:
        return None
    return tuple(tensor.flatten().tolist())
