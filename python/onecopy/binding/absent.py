# SPDX-License-Identifier: Apache-2.0
"""Answers for attributes that tensors of torch have, or bundles, and a onecopy.Tensor does not."""

from __future__ import annotations

from .._core import Tensor


class _Absent:
    """An attribute that does not exist. The error for it says what to use instead."""

    def __init__(self, name: str, instead: str) -> None:
        self._text = f"a onecopy.Tensor has no attribute {name!r}: {instead}"

    def __get__(self, instance: object, kind: object = None) -> None:
        raise AttributeError(self._text)


def register() -> None:
    """Makes the answers part of Tensor. Type checkers see no such attributes."""
    for name, instead in (
        ("cuda", 'use .to("cuda"), or .torch().cuda() for a tensor of torch'),
        ("load_into", "onecopy.Bundle has it; share the module or its state_dict() to get a bundle"),
    ):
        setattr(Tensor, name, _Absent(name, instead))
