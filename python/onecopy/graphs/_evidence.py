# SPDX-License-Identifier: Apache-2.0
"""More captures, which prove which words of a graph are addresses of its inputs in place (I4).

All are made in one way, in a window at the same addresses: one with the inputs at the graph's places, two with
stand-ins for all inputs that move, and one more like the first, so that a word differs at one place that alternates
from capture to capture. A word that differs between two at one place depends on no address; one that is equal in all
four depends on no place of an input. To make words differ that mean nothing, unset memory is painted before each
operator, in another colour each time. The graph was captured in another way; so it is compared with the first one, in
the addresses alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .. import _core
from ._arena import Arena
from ._captures import drop, first_line, new_graph
from ._layout import extent_of, laid
from ._pool import CapturePool

_COLOURS = (0x11, 0x2E, 0x47, 0x5B)
_DEEPER = 208  # bytes for each step of colour
_BELOW_PYTHON = 48 << 10  # of the stack, where frames of Python that come after the paint do not reach


def prove_moves(
    record: Callable[[torch.cuda.CUDAGraph, CapturePool, list[Any]], object],
    graph: torch.cuda.CUDAGraph,
    arguments: Sequence[Any],
    places: dict[int, int],
    arena: Arena,
) -> tuple[Any, str]:
    """A ``_MovableGraph``; or None, and why there is no proof.

    Args:
        record: captures the same work once more, for these arguments, in memory of that pool.
        graph: the one that is to be movable; it stays as it is.
        arguments: all of them; inputs that do not move are where the graph has them.
        places: the graph's addresses of inputs that move, by their places in ``arguments``.
        arena: of the graph. Its turn is the caller's.
    """
    device = str(arena.device)
    memory = [(at, extent_of(arguments[index])) for index, at in places.items()]
    try:
        stand_ins = _core._StandIns(device, memory)
    except Exception as error:
        return None, f"there are no addresses for evidence: {first_line(error)}"
    moved = dict(zip(places, map(stand_ins.at, range(len(memory))), strict=True))

    regions = [(at, moved[index], nbytes) for (index, at), (_, nbytes) in zip(places.items(), memory, strict=True)]

    def prove(*evidence: int) -> tuple[Any, str]:
        return _core._prove_relocation(device, graph.raw_cuda_graph(), evidence, regions)

    proof, reason = _with_captures(record, arguments, [places, moved, moved, places], arena, prove)
    del stand_ins
    return proof, reason


def check_moved(
    record: Callable[[torch.cuda.CUDAGraph, CapturePool, list[Any]], object],
    proof: Any,
    arguments: Sequence[Any],
    arena: Arena,
) -> str:
    """Compares the graph, which was moved to these arguments, with two captures of them: empty, or the difference."""
    device = str(arena.device)

    def compare(fresh: int, again: int) -> tuple[Any, str]:
        return None, proof.difference(device, fresh, again)

    return _with_captures(record, arguments, [{}, {}], arena, compare)[1]


def _with_captures(
    record: Any, arguments: Sequence[Any], wheres: Sequence[dict[int, int]], arena: Arena, use: Callable[..., Any]
) -> tuple[Any, str]:
    """Returns the result of ``use`` for a capture each with inputs at these addresses."""
    captures: list[tuple[torch.cuda.CUDAGraph, CapturePool]] = []
    try:
        for where, colour in zip(wheres, _COLOURS, strict=False):
            pool = captures[-1][1].again() if captures else arena.open_pool()
            captures.append((new_graph(), pool))
            _capture(record, *captures[-1], [_stand_in(a, where.get(i)) for i, a in enumerate(arguments)], colour)
            if pool.alive():
                return None, "it keeps memory of its capture"
        return use(*(g.raw_cuda_graph() for g, _ in captures))
    except Exception as error:
        return None, f"its evidence failed: {type(error).__name__}: {first_line(error)}"
    finally:
        for one in captures:
            drop(*one)


def _capture(record: Any, graph: torch.cuda.CUDAGraph, pool: CapturePool, arguments: list[Any], colour: int) -> None:
    with _Paint(colour):
        _core._call_deeper(colour * _DEEPER, lambda: record(graph, pool, arguments))


def _stand_in(argument: Any, at: int | None) -> Any:
    """A tensor like this one at that address; at its own, another object."""
    if not isinstance(argument, torch.Tensor) or not argument.is_cuda or not argument.numel():
        return argument
    if at is None:
        at = argument.data_ptr()
    bytes_ = torch.as_tensor(_Memory(at, extent_of(argument)), device=argument.device)
    return laid(bytes_.untyped_storage(), argument.dtype, argument.shape, argument.stride(), 0)


class _Memory:
    """Bytes at an address for torch.as_tensor(), which nothing keeps."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


class _Paint(TorchDispatchMode):
    """Fills unused memory of stack and heap before each operator."""

    def __init__(self, colour: int) -> None:
        super().__init__()
        self._colour = colour

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        _core._paint(self._colour)
        return _core._call_deeper(_BELOW_PYTHON, functools.partial(function, *args, **(kwargs or {})))
