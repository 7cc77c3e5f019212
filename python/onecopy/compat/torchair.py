# SPDX-License-Identifier: Apache-2.0
"""The names of TorchAir that its guide to memory reuse among graphs uses.

A program imports them with ``import onecopy.compat.torchair as torchair``.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import InvalidArgument, Unsupported
from ..graphs import Arena, backend, graph_pool_handle

__all__ = ["CompilerConfig", "get_npu_backend", "graph_pool_handle"]


_LARGEST = 2**63 - 1


def _is_switch(value: Any) -> str:
    return "" if isinstance(value, bool) else "it must be True or False"


def _is_limit(value: Any) -> str:
    is_whole = isinstance(value, int) and 1 <= value <= _LARGEST
    return "" if is_whole else f"it must be a number of graphs from 1 to {_LARGEST}"


def _is_mode(value: Any) -> str:
    return "" if value in _MODES else f"it must be one of {', '.join(map(repr, _MODES))}"


def _is_pool(value: Any) -> str:
    return "" if value is None or isinstance(value, Arena) else "it is not a pool of graphs; use graph_pool_handle()"


def _is_off(value: Any) -> str:
    return "" if value is False else "onecopy supports only the default, False"


_MODES = ("max-autotune", "reduce-overhead")


class _Options:
    """Attributes with defaults that are checked when they are set, as TorchAir checks them.

    Setting an unknown name or an invalid value raises InvalidArgument, which is a ValueError.
    """

    _known: ClassVar[dict[str, tuple[Any, Callable[[Any], str] | None]]] = {}
    """Maps a name to its default and a function that says why a value is wrong, or None for a group of options."""

    def __init__(self) -> None:
        for name, (default, check) in self._known.items():
            object.__setattr__(self, name, default() if check is None else default)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._known:
            near = difflib.get_close_matches(name, self._known, 1)
            hint = f"did you mean {near[0]}?" if near else f"the options are {', '.join(self._known)}"
            raise InvalidArgument(f"there is no option {name}; {hint}")
        check = self._known[name][1]
        reason = "it is a group of options; set the options in it" if check is None else check(value)
        if reason:
            raise InvalidArgument(f"{name} is {value!r}; {reason}")
        object.__setattr__(self, name, value)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


class _DebugAclgraph(_Options):
    _known: ClassVar = {
        "disable_mempool_reuse_in_same_fx": (False, _is_switch),
        "clone_input": (True, _is_switch),
        "enable_output_clone": (False, _is_switch),
        "static_capture_size_limit": (64, _is_limit),
        "remove_cat_ops": (False, _is_off),
    }


class _Debug(_Options):
    _known: ClassVar = {"aclgraph": (_DebugAclgraph, None), "run_eagerly": (False, _is_off)}


class _Aclgraph(_Options):
    _known: ClassVar = {"use_custom_pool": (None, _is_pool)}


class _Experimental(_Options):
    _known: ClassVar = {"frozen_parameter": (False, _is_off)}


class CompilerConfig(_Options):
    """The part of TorchAir's configuration that concerns graphs sharing memory.

    ``mode`` must be ``"reduce-overhead"``. ``aclgraph_config.use_custom_pool`` is a ``graph_pool_handle()``: all
    functions with this handle share one arena, and ``debug.aclgraph.disable_mempool_reuse_in_same_fx`` is ignored.
    ``debug.aclgraph`` contains

    - ``clone_input``: True copies inputs; False uses them in place, and compares their addresses at each call,
    - ``enable_output_clone``: True returns new tensors; False returns, on a card, the tensors that the graph wrote,
      which are moved before a later replay overwrites them,
    - ``static_capture_size_limit``: the maximum number of graphs of one function; the graphs used last are kept.

    A value is checked when it is set: an invalid one raises InvalidArgument, which is a ValueError. Options that
    onecopy does not support, such as ``debug.run_eagerly``, can be read, and set to their default only.
    """

    _known: ClassVar = {
        "mode": ("max-autotune", _is_mode),
        "aclgraph_config": (_Aclgraph, None),
        "debug": (_Debug, None),
        "experimental_config": (_Experimental, None),
    }


def get_npu_backend(
    *, compiler_config: CompilerConfig | None = None, custom_decompositions: dict[Any, Any] | None = None
) -> Callable[..., Any]:
    """Returns a backend for ``torch.compile``.

    Args:
        compiler_config: the options; None for the defaults.
        custom_decompositions: must be empty; graphs run torch's own operators.

    Raises:
        Unsupported: the mode is not ``"reduce-overhead"``, or custom_decompositions is not empty.
    """
    config = compiler_config if compiler_config is not None else CompilerConfig()
    if config.mode != "reduce-overhead":
        raise Unsupported(
            f'config.mode is {config.mode!r}; onecopy supports only "reduce-overhead", the mode with captured graphs'
        )
    if custom_decompositions:
        raise Unsupported("custom_decompositions is not empty, but graphs run torch's own operators; leave it empty")
    debug = config.debug.aclgraph
    pool = config.aclgraph_config.use_custom_pool
    return backend(
        pool,
        inputs="copy" if debug.clone_input else "place",
        outputs="copy" if debug.enable_output_clone else "view",
        limit=int(debug.static_capture_size_limit),
        one_arena_a_graph=pool is None and bool(debug.disable_mempool_reuse_in_same_fx),
    )
