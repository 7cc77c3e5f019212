# SPDX-License-Identifier: Apache-2.0
"""What a graph is captured for: the part of a call's arguments that another graph is needed for if it differs."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import Any

import torch

MAX_KEYED_ELEMENTS = 8
"""Elements of a CPU tensor that are compared by value, where a graph runs on a card."""


class Keys:
    """Makes the key of a call. Keys are compared in full (I6).

    Args:
        static: parameters and buffers, which are compared by the graph.
        whole: inputs of which the graph reads the storage, and not only the elements.
        passing: numbers that the graph does not use.
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
            return float, argument.hex()  # 0.0 and -0.0 are two, and nan is one
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
    """A capture on a card bakes in the content of small tensors on the CPU."""
    if tensor.device.type != "cpu" or tensor.numel() > MAX_KEYED_ELEMENTS:
        return None
    return tuple(tensor.flatten().tolist())
