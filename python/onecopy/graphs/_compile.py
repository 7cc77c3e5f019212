# SPDX-License-Identifier: Apache-2.0
"""The backend for torch.compile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from ..errors import InvalidArgument, Unsupported
from ._arena import Arena, Arenas
from ._code import Options, cuda_code, host_code
from ._eager import EagerFunction
from ._function import Function
from ._in_place import write_in_place
from ._operators import reads_storage

_CODEGENS = ("aot", "inductor")
_ON_THE_CPU = 'inductor plans the memory of its own code for the CPU; use codegen="aot" for graphs'


def backend(
    arena: Arena | Arenas | None = None,
    *,
    codegen: str = "aot",
    inputs: str = "copy",
    outputs: str = "copy",
    limit: int = 64,
    one_arena_a_graph: bool = False,
) -> Backend:
    """Returns a backend for ``torch.compile`` that captures one graph for each shape, and replays it.

    All graphs of one arena share their scratch memory, which is as large as the largest graph needs. Use the backend
    under ``torch.no_grad()`` or ``torch.inference_mode()``: graphs with gradients run eagerly, which ``report()``
    counts.

    Args:
        arena: the arena, which other functions may share; None for a new one on each device.
        codegen: ``"aot"`` runs the operators of torch one by one; ``"inductor"`` runs kernels of torch's compiler.
            With ``"inductor"``, a graph on the CPU (e.g. a piece between two graph breaks) is not captured, which
            ``report()`` counts.
        inputs: ``"copy"`` copies them into the arena; ``"place"`` uses them in place, and captures again if they move.
            Parameters, buffers and inputs that the function changes are always used in place.
        outputs: ``"copy"`` returns new tensors from each call; ``"view"`` returns tensors in the arena, and moves
            those that are still held before a later call overwrites them (torch 2.12 and later; older versions raise
            ``OutputInUse``); ``"private"`` allocates memory for the outputs of each graph.
        limit: the maximum number of shapes of one function; the most recently used ones are kept.
        one_arena_a_graph: gives each graph its own arena, so that nothing is shared.

    Raises:
        InvalidArgument, Unsupported: an option is invalid; the message says what it may be.
    """
    if arena is not None and not isinstance(arena, (Arena, Arenas)):
        raise InvalidArgument(
            f"arena is {arena!r}, which is not a pool of graphs; use onecopy.graphs.arena() or graph_pool_handle()"
        )
    if codegen not in _CODEGENS:
        raise InvalidArgument(f"codegen is {codegen!r}; it must be one of {', '.join(_CODEGENS)}")
    return Backend(Options(arena, inputs, outputs, limit, one_arena_a_graph), codegen)


class Backend:
    """A backend for ``torch.compile``, made by ``backend()``.

    An unpickled backend uses a new arena.
    """

    def __init__(self, options: Options, codegen: str) -> None:
        self._options = options
        self._codegen = codegen

    def __call__(self, graph: torch.fx.GraphModule, examples: list[Any], **_: Any) -> Any:
        device = _device_of(graph, examples)
        self._options.arena_of(device)  # raises before anything is compiled
        by = _by_inductor if self._codegen == "inductor" else _by_operators
        return by(graph, examples, device, self._options)

    def __reduce__(self) -> tuple[Any, ...]:
        o = self._options
        return _backend_without_arena, (self._codegen, o.inputs, o.outputs, o.limit, o.one_arena_a_graph)


def _backend_without_arena(codegen: str, inputs: str, outputs: str, limit: int, one_arena_a_graph: bool) -> Backend:
    return Backend(Options(None, inputs, outputs, limit, one_arena_a_graph), codegen)


def _by_operators(graph: torch.fx.GraphModule, examples: list[Any], device: torch.device, options: Options) -> Any:
    from torch._dynamo.backends.common import aot_autograd

    def eager(traced: torch.fx.GraphModule, _: Any) -> EagerFunction:
        return EagerFunction(lambda boxed: list(traced(*boxed)), options.arena_of(device))

    def captured(traced: torch.fx.GraphModule, _: Any) -> Function:
        write_in_place(traced)
        whole = reads_storage(traced)
        code = host_code(traced) if device.type == "cpu" else cuda_code(traced, device)
        static, mutated = _inputs_in_place()
        return Function(code, static, mutated | _written(traced), options, whole)

    return aot_autograd(fw_compiler=eager, inference_compiler=captured, keep_inference_input_mutations=True)(
        graph, examples
    )


def _by_inductor(graph: torch.fx.GraphModule, examples: list[Any], device: torch.device, options: Options) -> Any:
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner
    from torch._inductor.utils import BoxedBool

    def inner(traced: torch.fx.GraphModule, inputs: Sequence[Any], **settings: Any) -> Any:
        settings["cudagraphs"] = BoxedBool(False)  # the capture is made here
        whole = reads_storage(traced)
        compiled = compile_fx_inner(traced, inputs, **settings)
        run = lambda boxed: list(compiled(boxed))  # noqa: E731
        if not settings.get("is_inference"):
            return EagerFunction(run, options.arena_of(device))
        if device.type == "cpu":
            return EagerFunction(run, options.arena_of(device), _ON_THE_CPU)
        static = set(settings.get("static_input_idxs") or ())
        mutated = set(compiled.mutated_input_idxs or ())
        return Function(cuda_code(traced, device, run), static, mutated, options, whole)

    return compile_fx(graph, examples, inner_compile=inner)


def _device_of(graph: torch.fx.GraphModule, examples: Sequence[Any]) -> torch.device:
    """Returns the one card of the graph, or the CPU. Raises Unsupported if the graph uses several cards."""
    tensors = [e for e in examples if isinstance(e, torch.Tensor)]
    for node in graph.graph.nodes:
        value = node.meta.get("example_value", node.meta.get("val"))
        tensors += [v for v in (value if isinstance(value, (tuple, list)) else (value,)) if isinstance(v, torch.Tensor)]
    devices = {tensor.device for tensor in tensors if tensor.device.type not in ("cpu", "meta")}
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise Unsupported(f"a graph runs on one device, and this one uses {names}; compile the parts apart")
    return devices.pop() if devices else torch.device("cpu")


def _inputs_in_place() -> tuple[set[int], set[int]]:
    """Returns two sets of inputs of the graph under compilation: parameters and buffers, and changed inputs."""
    context = torch._guards.TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    if metadata is None:
        return set(), set()
    changed = {i for i, info in enumerate(metadata.input_info) if info.mutates_data}
    return set(metadata.static_input_indices or ()), changed


def _written(traced: torch.fx.GraphModule) -> set[int]:
    """Returns the inputs that an operator of the graph writes into."""
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
    """Captures ``function`` for the shapes of ``examples``, and returns a function that replays it.

    Another shape is captured at its first call. ``options`` go to ``backend()``. The capture runs the function once on
    the examples, and so changes tensors that the function writes into.

    Raises:
        Unsupported: torch cannot trace the whole function, or graphs do not run on its device.
    """
    compiled = torch.compile(function, backend=backend(**options), fullgraph=True, dynamic=False)
    with torch.no_grad():
        compiled(*examples)

    def replay(*arguments: Any, **named: Any) -> Any:
        with torch.no_grad():
            return compiled(*arguments, **named)

    return replay
