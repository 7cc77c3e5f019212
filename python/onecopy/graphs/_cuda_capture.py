# SPDX-License-Identifier: Apache-2.0
"""The capture of a call on a CUDA device: where the graph has its inputs and results, and the nodes that copy them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ._arena import Arena
from ._captures import recording
from ._layout import Inputs, Source, extent_of, lay_out
from ._pool import CapturePool

Boxed = Callable[[list[Any]], Any]
"""A function that takes its arguments in one list, and may empty the list."""


@dataclasses.dataclass
class Captured:
    """The result of a capture. `copied_inputs`: the index, address and size in bytes of each, and an example tensor."""

    results: list[Any] = dataclasses.field(default_factory=list)
    outputs: list[Any] = dataclasses.field(default_factory=list)
    sources: list[Source] = dataclasses.field(default_factory=list)
    copied_inputs: list[tuple[int, int, int, Any]] = dataclasses.field(default_factory=list)
    gather: list[int] = dataclasses.field(default_factory=list)
    scatter: list[int] = dataclasses.field(default_factory=list)


def capture(
    function: Boxed,
    arguments: Sequence[Any],
    in_place: set[int],
    arena: Arena,
    graph: torch.cuda.CUDAGraph,
    pool: CapturePool,
    gathers: bool,
    scatters: bool,
) -> Captured:
    """Captures a call of the function into the graph, whose memory is the pool's.

    With ``gathers``, the first nodes of the graph copy the inputs; with ``scatters``, the last ones copy the results.
    """
    begin, inputs, done = pool.window.base, Inputs(), Captured()
    with recording(graph, pool, arena.stream):
        boxed, done.copied_inputs = _boxed(arguments, in_place, inputs)
        if gathers and done.copied_inputs:
            done.gather = arena.copy_nodes([(at, nbytes) for _, at, nbytes, _ in done.copied_inputs])
        done.results = resolved(function(boxed))
        boxed.clear()
        done.outputs, done.sources = lay_out(done.results, inputs, begin, begin + pool.window.used)
        if scatters and done.sources:
            done.scatter = arena.copy_nodes([source.copied() for source in done.sources])
    return done


def _boxed(
    arguments: Sequence[Any], in_place: set[int], inputs: Inputs
) -> tuple[list[Any], list[tuple[int, int, int, Any]]]:
    """Returns the arguments, with a tensor of the window in place of each copied input; and the copied inputs.

    Only the returned list references the tensors of the window, so the capture reuses their memory after the last
    operator that reads them.
    """
    boxed: list[Any] = []
    copied_inputs = []
    for index, argument in enumerate(arguments):
        if index not in in_place and isinstance(argument, torch.Tensor) and _can_be_copied(argument):
            copy = torch.empty_strided(argument.shape, argument.stride(), dtype=argument.dtype, device=argument.device)
            copied_inputs.append((index, copy.data_ptr(), extent_of(copy), argument))
            argument = copy
            del copy
        if isinstance(argument, torch.Tensor):
            inputs.add(index, argument)
        boxed.append(argument)
    return boxed, copied_inputs


def resolved(results: Any) -> list[Any]:
    """Resolves lazy conjugation and negation, so that the bytes in memory are the values."""
    return [r.resolve_conj().resolve_neg() if isinstance(r, torch.Tensor) else r for r in results]


def _can_be_copied(tensor: torch.Tensor) -> bool:
    """Returns whether a copy node can copy the tensor: it is on a card, and not empty, and no elements overlap."""
    if not tensor.is_cuda or tensor.numel() == 0:
        return False
    return all(size <= 1 or stride > 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def are_plain(arguments: Sequence[Any]) -> bool:
    """Returns whether bytes can be copied in all calls: a copy would lose torch's lazy conjugation and negation."""
    return not any(isinstance(a, torch.Tensor) and (a.is_complex() or a.is_neg()) for a in arguments)
