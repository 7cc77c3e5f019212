# SPDX-License-Identifier: Apache-2.0
"""The first call of a shape on a CUDA device: an eager run in memory of the arena."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..errors import OutOfMappings
from ._arena import Arena
from ._captures import close_dropped
from ._cuda import CudaGraph
from ._cuda_capture import Boxed, resolved
from ._key import MAX_KEYED_ELEMENTS
from ._layout import address_of, laid, offset_of
from ._operators import NotReplayable
from ._pool import CapturePool, captures_of


class CudaRun:
    """The first call of a shape: the constructor runs it eagerly in memory of the arena. The caller gets its results.

    Raises:
        NotReplayable: these arguments cannot be captured. Nothing has run.
        OutputInUse: the run would overwrite an output. Nothing has run.
        The function's exceptions.
    """

    def __init__(
        self,
        function: Boxed,
        arguments: Sequence[Any],
        in_place: set[int],
        arena: Arena,
        _mutated: object = (),  # a graph writes into its inputs in place
    ) -> None:
        _check(arguments)
        close_dropped()
        self._function = function
        self._in_place = in_place
        self._arena = arena
        assert arena.device is not None
        with captures_of(arena.device.index):
            numbers = _random_numbers(arena.device)
            self.results = _run_in(arena, function, arguments)
            self._is_random = _random_numbers(arena.device) != numbers

    def make(self, arguments: Sequence[Any], outputs: str) -> CudaGraph:
        """Captures the graph. Raises NotReplayable, OutOfMemory; then the capture is undone (I5)."""
        return CudaGraph(self._function, arguments, self._in_place, self._arena, outputs, self._is_random)


def _check(arguments: Sequence[Any]) -> None:
    for index, argument in enumerate(arguments):
        if (
            isinstance(argument, torch.Tensor)
            and argument.device.type == "cpu"
            and argument.numel() > MAX_KEYED_ELEMENTS
        ):
            raise NotReplayable(
                f"input {index} is a CPU tensor of {argument.numel()} elements, and a graph would keep its "
                "present values; pass it on the device"
            )


def _random_numbers(device: Any) -> Any:
    """Returns the offset of the device's random generator, or None if this torch does not report it."""
    generator = torch.cuda.default_generators[device.index]
    return generator.get_offset() if hasattr(generator, "get_offset") else None


def _run_in(arena: Arena, function: Boxed, arguments: Sequence[Any]) -> list[Any]:
    arena.leases.evacuate()
    pool = _pool_for_a_run(arena)
    if pool is None:
        return list(function(list(arguments)))
    with arena.lock.of(torch.cuda.current_stream(arena.device)):
        with pool.use():
            results = resolved(function(list(arguments)))
        results = _moved_out(results, arguments)
    arena.lock.wait()
    _keep_content(pool, arena)
    pool.close()
    return results


def _pool_for_a_run(arena: Arena) -> CapturePool | None:
    """Returns a pool for an eager run, or None to use torch's memory.

    A limit of the arena or a lack of addresses must not make the call fail.
    """
    if arena.limit is not None:
        return None
    try:
        return arena.open_pool()
    except OutOfMappings:
        return None


def _moved_out(results: list[Any], arguments: Sequence[Any]) -> list[Any]:
    """Copies the results out of the arena. Results that share memory still do, and inputs are returned unchanged."""
    given = {address_of(a) for a in arguments if isinstance(a, torch.Tensor)}
    moved: dict[int, torch.UntypedStorage] = {}
    out = []
    for result in results:
        if isinstance(result, torch.Tensor) and result.is_cuda and address_of(result) not in {0, *given}:
            at = address_of(result)
            if at not in moved:
                moved[at] = result.untyped_storage().clone()
            out.append(laid(moved[at], result.dtype, result.shape, result.stride(), offset_of(result)))
        else:
            out.append(result)
    return out


def _keep_content(pool: CapturePool, arena: Arena) -> None:
    """Gives tensors that the function has kept (e.g. a table that it made once) their own pages, with their content."""
    alive = pool.alive()
    if not alive:
        return
    copies = [(pool.bytes_at(*extent), pool.bytes_at(*extent).clone()) for extent in alive]
    torch.cuda.synchronize(arena.device)
    pool.window.keep_alive(alive)
    for memory, content in copies:
        memory.copy_(content)
    torch.cuda.synchronize(arena.device)
