# SPDX-License-Identifier: Apache-2.0
"""The names of TorchAir that its guide to memory reuse among graphs uses.

A program imports them with ``import onecopy.compat.torchair as torchair``.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import InvalidArgument, Unsupported
from ..graphs import Arena, backend, graph_pool_handle

__all__ = ["CompilerConfig", "get_npu_backend", "graph_pool_handle"]


_LARGEST = 2**63 - 1


_MODES = ("max-autotune", "reduce-overhead")

# What an option may be, and the words for it.
_SWITCH = (lambda value: isinstance(value, bool), "it must be True or False")
_LIMIT = (
    lambda value: isinstance(value, int) and 1 <= value <= _LARGEST,
    f"it must be a number of graphs from 1 to {_LARGEST}",
)
_MODE = (lambda value: value in _MODES, f"it must be one of {', '.join(map(repr, _MODES))}")
_POOL = (
    lambda value: value is None or isinstance(value, Arena),
    "it is not a pool of graphs; use graph_pool_handle()",
)
_OFF = (lambda value: value is False, "onecopy supports only the default, False")
_GROUP = (lambda value: False, "it is a group of options; set the options in it")


class _Options:
    """Attributes with defaults that are checked when they are set, as TorchAir checks them.

    Setting an unknown name or an invalid value raises InvalidArgument, which is a ValueError.

    Args:
        known: maps a name to its default and what it may be; the default of a group is what the group knows.
    """

    def __init__(self, known: dict[str, tuple[Any, tuple[Callable[[Any], bool], str]]]) -> None:
        object.__setattr__(self, "_known", known)
        for name, (default, check) in known.items():
            object.__setattr__(self, name, _Options(default) if check is _GROUP else default)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._known:
            near = difflib.get_close_matches(name, self._known, 1)
            hint = f"did you mean {near[0]}?" if near else f"the options are {', '.join(self._known)}"
            raise InvalidArgument(f"there is no option {name}; {hint}")
        is_valid, words = self._known[name][1]
        if not is_valid(value):
            raise InvalidArgument(f"{name} is {value!r}; {words}")
        object.__setattr__(self, name, value)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


_ACLGRAPH_DEBUG = {
    "disable_mempool_reuse_in_same_fx": (False, _SWITCH),
    "clone_input": (True, _SWITCH),
    "enable_output_clone": (False, _SWITCH),
    "static_capture_size_limit": (64, _LIMIT),
    "remove_cat_ops": (False, _OFF),
}
_KNOWN = {
    "mode": ("max-autotune", _MODE),
    "aclgraph_config": ({"use_custom_pool": (None, _POOL)}, _GROUP),
    "debug": ({"aclgraph": (_ACLGRAPH_DEBUG, _GROUP), "run_eagerly": (False, _OFF)}, _GROUP),
    "experimental_config": ({"frozen_parameter": (False, _OFF)}, _GROUP),
}


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

    def __init__(self) -> None:
        super().__init__(_KNOWN)


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
