# SPDX-License-Identifier: Apache-2.0
"""Captured graphs that share their scratch memory.

>>> import torch
>>> from onecopy import graphs
>>> arena = graphs.arena("cpu")
>>> model = torch.compile(module, backend=graphs.backend(arena), dynamic=True)
>>> with torch.no_grad():
...     model(x)  # the first call with a shape captures a graph, later calls replay it
>>> print(graphs.report(arena))

An engine that captures a graph for each batch size needs the scratch memory of its largest graph only, not of all of
them. Outputs that a program still holds stay valid after later replays.
"""

from __future__ import annotations

from typing import Any

from ..torch import _required as _required
from ._arena import Arena, Arenas
from ._compile import backend, capture
from ._context import graph
from ._leases import OutputInUse
from ._report import GraphRow, Report, report

__all__ = [
    "Arena", "GraphRow", "OutputInUse", "Report", "arena", "backend", "capture", "compile_in_default_arena",
    "default_arena", "graph", "graph_pool_handle", "report",
]  # fmt: skip


def arena(device: Any = "cpu", limit: int | None = None) -> Arena:
    """Returns a new arena, whose memory graphs share.

    Args:
        device: ``"cpu"``, or a CUDA device such as ``"cuda:0"``.
        limit: the maximum size in bytes; None for no limit.

    Raises:
        Unsupported: the device is of another kind, or its driver cannot map one memory at two addresses.
        InvalidArgument: the limit is not above 0.
    """
    return Arena(device, limit)


_default = Arenas()


def default_arena(device: Any = "cpu") -> Arena:
    """Returns the arena of ``torch.compile(..., backend="onecopy")``.

    A process has one default arena for each device, which all functions compiled this way share.
    """
    return _default.of(device)


def compile_in_default_arena(graph: Any, examples: list[Any], **options: Any) -> Any:
    """Compiles a graph for ``torch.compile(..., backend="onecopy")``. ``options`` go to ``backend()``."""
    return backend(_default, **options.get("options", {}))(graph, examples)


def graph_pool_handle() -> Arena:
    """Returns a new arena on the device of its first graph. torch and TorchAir use this name."""
    return Arena()
