# SPDX-License-Identifier: Apache-2.0
"""The backend for torch.compile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from ..errors import InvalidArgument, Unsupported
from ._arena import Arena, _core_unsupported
from ._function import EagerFunction, Function, Options

_CODEGENS = ("aot",)


def backend(
    arena: Arena | None = None,
    *,
    codegen: str = "aot",
    inputs: str = "copy",
    outputs: str = "copy",
    limit: int = 64,
    one_arena_a_graph: bool = False,
) -> Callable[[torch.fx.GraphModule, list[Any]], Any]:
    """A backend for ``torch.compile`` that captures one graph for each shape, and replays it.

    All graphs of one arena share their scratch memory: it takes as much as the largest of them. Use it under
    ``torch.no_grad()`` or ``torch.inference_mode()``: graphs with gradients run eagerly, which ``report()`` counts.

    Args:
        arena: shared with other functions; None: one for all graphs of this backend.
        codegen: ``"aot"``, the operators of torch as they are.
        inputs: ``"copy"`` copies them into the arena; ``"place"`` uses them where they are, and notices when they move.
            Parameters, buffers and inputs that the function changes are always used where they are.
        outputs: ``"copy"`` gives each call tensors of its own; ``"view"`` gives them where they lie, and moves those that
            are still held before the next call overwrites them (torch 2.12 and later; else ``OutputInUse``);
            ``"private"`` gives each graph memory of its own for them.
        limit: graphs of one function; of more shapes those used last are kept.
        one_arena_a_graph: nothing is shared.

    Raises:
        InvalidArgument, Unsupported: an option; the message says what it may be.
    """
    if arena is not None and not isinstance(arena, Arena):
        raise InvalidArgument(
            f"arena is {arena!r}, which is no pool of graphs; use onecopy.graphs.arena() or graph_pool_handle()"
        )
    if codegen not in _CODEGENS:
        raise Unsupported(f"codegen is {codegen!r}; on the CPU it is one of {', '.join(_CODEGENS)}")
    options = Options(arena, inputs, outputs, limit, one_arena_a_graph)

    def compile_graph(graph: torch.fx.GraphModule, examples: list[Any], **_: Any) -> Any:
        _check_devices(examples)
        from torch._dynamo.backends.common import aot_autograd

        return aot_autograd(
            fw_compiler=lambda traced, _: EagerFunction(traced, options.arena),
            inference_compiler=lambda traced, _: _function(traced, options),
            keep_inference_input_mutations=True,
        )(graph, examples)

    return compile_graph


def _check_devices(examples: Sequence[Any]) -> None:
    for example in examples:
        if isinstance(example, torch.Tensor) and example.device.type not in ("cpu", "meta"):
            raise _core_unsupported(example.device)


def _function(traced: torch.fx.GraphModule, options: Options) -> Function:
    context = torch._guards.TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    static = set(metadata.static_input_indices or ()) if metadata is not None else set()
    mutated = {i for i, info in enumerate(metadata.input_info) if info.mutates_data} if metadata is not None else set()
    return Function(traced, static, mutated | _written(traced), options)


def _written(traced: torch.fx.GraphModule) -> set[int]:
    """Inputs that an operator of the graph writes into."""
    inputs = {node: index for index, node in enumerate(n for n in traced.graph.nodes if n.op == "placeholder")}
    written = set()
    for node in traced.graph.nodes:
        operator = node.target
        if not isinstance(operator, torch._ops.OpOverload) or not operator._schema.is_mutable:
            continue
        for at, argument in enumerate(operator._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = node.args[at] if at < len(node.args) else node.kwargs.get(argument.name)
            written |= {inputs[v] for v in (value if isinstance(value, (tuple, list)) else (value,)) if v in inputs}
    return written


def capture(function: Callable[..., Any], *examples: Any, **options: Any) -> Callable[..., Any]:
    """Captures ``function`` for the shapes of ``examples``, and returns what replays it.

    Other shapes are captured when they come. ``options`` are those of ``backend()``. The function runs once, on the
    examples: what it changes in place is changed.

    Raises:
        Unsupported: torch cannot trace it whole, or it uses a device that graphs do not run on.
    """
    compiled = torch.compile(function, backend=backend(**options), fullgraph=True, dynamic=False)
    with torch.no_grad():
        compiled(*examples)

    def replay(*arguments: Any, **named: Any) -> Any:
        with torch.no_grad():
            return compiled(*arguments, **named)

    return replay
