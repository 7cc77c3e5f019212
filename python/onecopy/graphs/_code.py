# SPDX-License-Identifier: Apache-2.0
"""The code of a function, and the options by which graphs of it are made."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from ..errors import InvalidArgument
from ._arena import Arena, Arenas
from ._cuda_run import CudaRun
from ._host import HostRun
from ._numbers import PassingNumbers

INPUTS = ("copy", "place")
OUTPUTS = ("copy", "view", "private")
Boxed = Callable[[list[Any]], list[Any]]
"""A function that takes its arguments in one list, and may empty the list."""


class Options:
    """The options of ``backend()``. The constructor checks them, and raises InvalidArgument."""

    def __init__(
        self, arena: Arena | Arenas | None, inputs: str, outputs: str, limit: int, one_arena_a_graph: bool
    ) -> None:
        if inputs not in INPUTS:
            raise InvalidArgument(f"inputs is {inputs!r}; it must be one of {', '.join(INPUTS)}")
        if outputs not in OUTPUTS:
            raise InvalidArgument(f"outputs is {outputs!r}; it must be one of {', '.join(OUTPUTS)}")
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise InvalidArgument(f"limit is {limit!r}; it must be a number of graphs, at least 1")
        self._arena = arena if arena is not None else Arenas()
        self.inputs = inputs
        self.outputs = outputs
        self.limit = limit
        self.one_arena_a_graph = one_arena_a_graph

    def arena_of(self, device: torch.device) -> Arena:
        """Returns the arena for the device.

        Raises InvalidArgument if the given arena is on another device, Unsupported if graphs do not run there.
        """
        if isinstance(self._arena, Arenas):
            return self._arena.of(device)
        self._arena.bind(device)
        return self._arena


class Code:
    """The code of a function, with the means to run it and to capture a graph of it.

    ``start(arguments, in_place, arena, mutated)`` runs the code once eagerly, and returns a HostRun or CudaRun: its
    ``results`` go to the caller, and its ``make(arguments, outputs)`` returns the graph. ``start`` raises
    NotReplayable before anything has run if no graph can be made.
    """

    def __init__(
        self, name: str, device: torch.device, run: Boxed, start: Callable[..., Any], numbers: PassingNumbers
    ) -> None:
        self.name = name
        self.numbers = numbers
        self.device = device
        self.run = run
        self.start = start


def host_code(graph: torch.fx.GraphModule) -> Code:
    """Returns the code of a graph on the CPU, which runs torch's operators one by one."""
    run = lambda boxed: list(graph(*boxed))  # noqa: E731
    start = functools.partial(HostRun, graph)
    return Code(_name_of(graph), torch.device("cpu"), run, start, PassingNumbers(graph))


def cuda_code(graph: torch.fx.GraphModule, device: torch.device, run: Boxed | None = None) -> Code:
    """Returns the code of a graph on a card. ``run`` is its compiled code; None runs its operators one by one."""
    if run is None:
        graph.graph.set_codegen(torch.fx.graph._BoxedCodeGen())  # releases inputs after their last use
        graph.recompile()
        run = lambda boxed: list(graph(boxed))  # noqa: E731
    return Code(_name_of(graph), device, run, functools.partial(CudaRun, run), PassingNumbers(graph))


def _name_of(graph: torch.fx.GraphModule) -> str:
    return getattr(graph, "_get_name", lambda: "graph")()
