# SPDX-License-Identifier: Apache-2.0
"""Captured graphs that share their memory.

>>> import torch
>>> from onecopy import graphs
>>> pool = graphs.arena("cpu")
>>> model = torch.compile(module, backend=graphs.backend(pool), dynamic=True)
>>> with torch.no_grad():
...     model(x)  # the first call of a shape captures it, later ones replay it
>>> print(graphs.report(pool))

An engine that captures a graph for each batch size needs as much memory as the largest, not the sum. Outputs that
are held stay right after any later replay.
"""

from __future__ import annotations

from typing import Any

from .. import _with_torch as _with_torch
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
    """Returns new memory for graphs to share.

    Args:
        device: ``"cpu"``, or a CUDA device such as ``"cuda:0"``.
        limit: the most bytes of it; None: no limit.

    Raises:
        Unsupported: for a device of another kind, or a driver that cannot show one memory at two addresses.
        InvalidArgument: the limit is not above 0.
    """
    return Arena(device, limit)


_default = Arenas()


def default_arena(device: Any = "cpu") -> Arena:
    """The arena of ``torch.compile(..., backend="onecopy")``: one for each device and all such functions of the
    process."""
    return _default.of(device)


def compile_in_default_arena(graph: Any, examples: list[Any], **options: Any) -> Any:
    """The backend that torch.compile finds by the name ``"onecopy"``. ``options`` are those of ``backend()``."""
    return backend(_default, **options.get("options", {}))(graph, examples)


def graph_pool_handle() -> Arena:
    """A new arena, by the name that torch and TorchAir have for it. It is on the device of its first graph."""
    return Arena()
