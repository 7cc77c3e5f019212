# SPDX-License-Identifier: Apache-2.0
"""The names of TorchAir that its guide to memory reuse among graphs uses.

``import onecopy.compat.torchair as torchair`` and ``from onecopy.compat.torchair import graph_pool_handle``.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any, ClassVar

from ..errors import InvalidArgument, Unsupported
from ..graphs import Arena, backend, graph_pool_handle

__all__ = ["CompilerConfig", "get_npu_backend", "graph_pool_handle"]


class _Options:
    """Attributes with defaults; others are an error that names the nearest."""

    _known: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        for name, default in self._known.items():
            object.__setattr__(self, name, default() if isinstance(default, type) else default)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._known:
            near = difflib.get_close_matches(name, self._known, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(self._known)}"
            raise AttributeError(f"there is no option {name}; {hint}")
        object.__setattr__(self, name, value)


class _DebugAclgraph(_Options):
    _known: ClassVar = {
        "disable_mempool_reuse_in_same_fx": False,
        "clone_input": True,
        "enable_output_clone": False,
        "static_capture_size_limit": 64,
    }


class _Debug(_Options):
    _known: ClassVar = {"aclgraph": _DebugAclgraph}


class _Aclgraph(_Options):
    _known: ClassVar = {"use_custom_pool": None}


class CompilerConfig(_Options):
    """The part of TorchAir's configuration that concerns graphs sharing memory.

    ``mode`` must be ``"reduce-overhead"``. ``aclgraph_config.use_custom_pool`` is a ``graph_pool_handle()``: all
    functions with it share one arena, and ``debug.aclgraph.disable_mempool_reuse_in_same_fx`` is off then.
    ``debug.aclgraph`` has ``clone_input`` (copies of inputs; False: used in place, and compared at each call),
    ``enable_output_clone`` (True: tensors of its own for each call; False: where they lie, and moved before they would
    be overwritten) and ``static_capture_size_limit`` (graphs of one function; those used last are kept).
    """

    _known: ClassVar = {"mode": "max-autotune", "aclgraph_config": _Aclgraph, "debug": _Debug}


def get_npu_backend(*, compiler_config: CompilerConfig | None = None) -> Callable[..., Any]:
    """A backend for ``torch.compile``.

    Raises:
        Unsupported: another mode than ``"reduce-overhead"``.
        InvalidArgument: a pool that is none.
    """
    config = compiler_config if compiler_config is not None else CompilerConfig()
    if config.mode != "reduce-overhead":  # type: ignore[attr-defined]
        raise Unsupported(
            f'config.mode is {config.mode!r}; only "reduce-overhead", the mode with captured graphs, is here'  # type: ignore[attr-defined]
        )
    debug = config.debug.aclgraph  # type: ignore[attr-defined]
    pool = config.aclgraph_config.use_custom_pool  # type: ignore[attr-defined]
    if pool is not None and not isinstance(pool, Arena):
        raise InvalidArgument(f"use_custom_pool is {pool!r}, which is no pool; use graph_pool_handle()")
    return backend(
        pool,
        inputs="copy" if debug.clone_input else "place",
        outputs="copy" if debug.enable_output_clone else "view",
        limit=debug.static_capture_size_limit,
        one_arena_a_graph=pool is None and debug.disable_mempool_reuse_in_same_fx,
    )
