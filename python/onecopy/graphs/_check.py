# SPDX-License-Identifier: Apache-2.0
"""Compares a graph's first replay with the run that was recorded."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch

from ._layout import laid, offset_of
from ._operators import NotReplayable


class Trial:
    """Repeats the first run of a shape by a replay that leaves the caller's tensors alone.

    Inputs that the function changes are copied, and the replay changes the copies. The replay draws the same random
    numbers as the run; afterwards the generator is in the state in which the run left it.

    REQUIRES: the object is made before the run.
    """

    def __init__(self, arguments: Sequence[Any], in_place: Collection[int], mutated: Collection[int]) -> None:
        self.arguments = _with_copies(arguments, in_place, mutated)
        """The arguments of the replay."""
        self._caller = list(arguments)
        self.has_copies = any(a is not b for a, b in zip(self.arguments, arguments, strict=True))
        """Whether some arguments of the replay are copies."""
        self._mutated = [index for index in mutated if isinstance(arguments[index], torch.Tensor)]
        self._before = torch.get_rng_state()
        self._after = self._before

    def end_of_run(self) -> None:
        """Records the state of the random generator at the end of the first run."""
        self._after = torch.get_rng_state()

    @contextlib.contextmanager
    def as_the_run(self) -> Iterator[None]:
        """Makes the block draw the random numbers of the run."""
        is_random = not torch.equal(self._before, self._after)
        if is_random:
            torch.set_rng_state(self._before)
        try:
            yield
        finally:
            if is_random:
                torch.set_rng_state(self._after)

    def compare(self, results: Sequence[Any], wanted: Sequence[Any]) -> None:
        """Raises NotReplayable if the results, or the changed inputs, differ from the run."""
        for at, (got, want) in enumerate(zip(results, wanted, strict=True)):
            if not agree(got, want):
                raise NotReplayable(f"result {at} of its first replay differs from its first run")
        for index in self._mutated:
            if not agree(self.arguments[index], self._caller[index]):
                raise NotReplayable(f"its first replay writes other numbers into input {index} than its first run")


def _with_copies(arguments: Sequence[Any], in_place: Collection[int], mutated: Collection[int]) -> list[Any]:
    """Returns the arguments with a copy of each input in place whose storage the function changes."""
    given = {i: a for i in in_place if isinstance(a := arguments[i], torch.Tensor) and a.layout == torch.strided}
    changed = {given[i].untyped_storage()._cdata: given[i].untyped_storage() for i in mutated if i in given}
    copies = {at: storage.clone() for at, storage in changed.items()}
    replaced = list(arguments)
    for index, tensor in given.items():
        copy = copies.get(tensor.untyped_storage()._cdata)
        if copy is not None:
            replaced[index] = laid(copy, tensor.dtype, tuple(tensor.shape), tensor.stride(), offset_of(tensor))
    return replaced


def agree(got: Any, want: Any) -> bool:
    """Returns whether two results are equal up to rounding, since sums may be taken in another order."""
    if not isinstance(want, torch.Tensor) or not isinstance(got, torch.Tensor):
        return type(got) is type(want) and repr(got) == repr(want)  # nan is nan
    if got.dtype != want.dtype or got.shape != want.shape or got.stride() != want.stride():
        return False
    if want.layout != torch.strided or not want.numel():
        return want.layout == got.layout
    got, want = got.resolve_conj().resolve_neg(), want.resolve_conj().resolve_neg()
    if want.is_floating_point() and want.itemsize == 1:
        got, want = got.float(), want.float()
    if torch.equal(got, want):
        return True
    if not want.is_floating_point() and not want.is_complex():
        return False
    tolerance = torch.finfo(want.dtype).eps ** 0.5
    largest = want.abs().nan_to_num(0.0, 0.0, 0.0).amax().item()
    return torch.allclose(got, want, rtol=tolerance, atol=tolerance * float(largest), equal_nan=True)
