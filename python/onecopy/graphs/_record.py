# SPDX-License-Identifier: Apache-2.0
"""One run of a graph by the book, which records the steps that make memory and those that only view it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from ._plan import Memory


class NotReplayable(Exception):
    """The reason why a graph has to run eagerly."""


@dataclasses.dataclass(frozen=True)
class Laid:
    """The layout of a tensor in a storage. ``offset`` counts elements."""

    memory: Memory | None
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, tensor: torch.Tensor, memory: Memory | None) -> Laid:
        return cls(memory, tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset())

    @property
    def is_dense(self) -> bool:
        """Returns whether the layout is row-major, as most operators need for their results."""
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True


@dataclasses.dataclass(frozen=True)
class Step:
    """A node of the graph.

    ``kind``: ``given`` and ``slot`` are inputs, in place and copied; ``constant`` depends on the key alone;
    ``view`` looks at memory that another node has; ``make`` is one tensor in new memory, ``many`` several results;
    ``mutate`` writes into its arguments.
    """

    node: torch.fx.Node
    kind: str
    laid: tuple[Laid | None, ...] = ()
    value: Any = None


@dataclasses.dataclass
class Recording:
    steps: list[Step]
    memories: list[Memory]
    outputs: list[Laid | Any]
    """Of tensors how they lie; other values as they are."""


_NUMBERS = {"int", "float", "bool", "number", "Scalar", "SymInt", "SymFloat", "SymBool"}
_SIZES = {"aten::sym_size", "aten::sym_stride", "aten::sym_numel", "aten::sym_storage_offset"}


def record(graph: torch.fx.GraphModule, arguments: Sequence[Any], in_place: set[int]) -> tuple[Recording, list[Any]]:
    """Runs the graph on the arguments; returns what it saw, and the results.

    Raises:
        NotReplayable: before anything has run.
    """
    _check(graph)
    recorder = _Recorder(graph, list(arguments), in_place)
    return recorder.run()


def _check(graph: torch.fx.GraphModule) -> None:
    """Raises for a step whose replay would differ from eager execution."""
    for node in graph.graph.nodes:
        if node.op == "get_attr" and not isinstance(getattr(graph, str(node.target), None), torch.Tensor):
            raise NotReplayable(f"{node.target} is a part of the graph that decides by itself what runs")
        if node.op != "call_function":
            if node.op in ("call_method", "call_module"):
                raise NotReplayable(f"{node.target} is no operator")
            continue
        operator = node.target
        if not isinstance(operator, torch._ops.OpOverload):
            if getattr(operator, "__module__", "") not in ("_operator", "operator", "math", "builtins"):
                raise NotReplayable(f"{operator} is no operator of torch")
            continue
        tags = operator.tags
        if torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags:
            raise NotReplayable(f"{operator} depends on what a tensor contains")
        if operator._schema.name not in _SIZES and any(str(r.type) in _NUMBERS for r in operator._schema.returns):
            raise NotReplayable(f"{operator} makes a number of a tensor")


class _Recorder:
    def __init__(self, graph: torch.fx.GraphModule, arguments: list[Any], in_place: set[int]) -> None:
        self._graph = graph
        self._arguments = arguments
        self._in_place = in_place
        self._nodes = list(graph.graph.nodes)
        position = {node: at for at, node in enumerate(self._nodes)}
        self._last_use = {n: max((position[u] for u in n.users), default=position[n]) for n in self._nodes}
        self._values: dict[torch.fx.Node, Any] = {}
        self._memory_of: dict[torch.fx.Node, tuple[Memory | None, ...]] = {}
        self._living: dict[int, Memory] = {}  # by the address of storages that a value keeps
        self._users: Counter[int] = Counter()  # values of each of those
        self._memories: list[Memory] = []
        self._steps: list[Step] = []

    def run(self) -> tuple[Recording, list[Any]]:
        ending: dict[int, list[torch.fx.Node]] = {}
        for node, at in self._last_use.items():
            ending.setdefault(at, []).append(node)
        results: list[Any] = []
        outputs: list[Any] = []
        for at, node in enumerate(self._nodes):
            if node.op == "output":
                results, outputs = self._finish(node, at)
                break
            self._steps.append(self._step(node, at))
            for used in ending.get(at, ()):
                self._let_go(used)
        return Recording(self._steps, self._memories, outputs), results

    def _step(self, node: torch.fx.Node, at: int) -> Step:
        if node.op == "placeholder":
            return self._input(node, at)
        if node.op == "get_attr":
            value = getattr(self._graph, str(node.target))
            self._keep(node, value, at, given=True)
            return Step(node, "constant", value=value)
        operator: Any = node.target
        arguments, named = self._real(node.args), self._real(node.kwargs)
        for used in node.all_input_nodes:
            self._touch(used, at)
        value = operator(*arguments, **named)
        return self._call(node, value, at)

    def _input(self, node: torch.fx.Node, at: int) -> Step:
        index = sum(step.node.op == "placeholder" for step in self._steps)
        value = self._arguments[index]
        if not isinstance(value, torch.Tensor) or value.untyped_storage().nbytes() == 0:
            self._keep(node, value, at, given=True)
            return Step(node, "constant", value=value)
        if index in self._in_place or _overlaps_itself(value):
            laid = self._keep(node, value, at, given=True)
            return Step(node, "given", laid, index)
        memory = Memory(_extent(value), -1, at)
        self._memories.append(memory)
        self._enter(node, value, (memory,))
        return Step(node, "slot", (dataclasses.replace(Laid.of(value, memory), offset=0),), index)

    def _call(self, node: torch.fx.Node, value: Any, at: int) -> Step:
        operator: Any = node.target
        if isinstance(operator, torch._ops.OpOverload) and operator._schema.is_mutable:
            return Step(node, "mutate", self._keep(node, value, at))
        if isinstance(value, torch.Tensor):
            known = self._living.get(_address(value))
            laid = self._keep(node, value, at)
            if laid[0] is None or laid[0].memory is None:
                return Step(node, "constant", value=value)  # without elements
            return Step(node, "make" if known is None else "view", laid)
        if isinstance(value, (tuple, list)):
            tensors = [v for v in value if isinstance(v, torch.Tensor) and _address(v)]
            is_look = bool(tensors) and all(_address(v) in self._living for v in tensors)
            laid = self._keep(node, value, at)
            return Step(node, "view" if is_look else "many", laid, list(value))
        self._values[node] = value
        return Step(node, "constant", value=value)

    def _keep(self, node: torch.fx.Node, value: Any, at: int, given: bool = False) -> tuple[Laid | None, ...]:
        """Notes the memory of a value, new memory as made here."""
        parts = value if isinstance(value, (tuple, list)) else (value,)
        memories: list[Memory | None] = []
        for part in parts:
            memories.append(self._memory(part, at, given))
        self._enter(node, value, tuple(memories))
        return tuple(
            Laid.of(part, memory) if isinstance(part, torch.Tensor) else None
            for part, memory in zip(parts, memories, strict=True)
        )

    def _memory(self, part: Any, at: int, given: bool) -> Memory | None:
        if not isinstance(part, torch.Tensor) or not _address(part):
            return None
        known = self._living.get(_address(part))
        if known is not None:
            known.live_until = max(known.live_until, at)
            return known
        memory = Memory(part.untyped_storage().nbytes(), at, at, given)
        if not given:
            self._memories.append(memory)
        self._living[_address(part)] = memory  # for other parts of this value
        return memory

    def _enter(self, node: torch.fx.Node, value: Any, memories: tuple[Memory | None, ...]) -> None:
        self._values[node] = value
        self._memory_of[node] = memories
        for part, memory in zip(value if isinstance(value, (tuple, list)) else (value,), memories, strict=True):
            if memory is not None:
                self._living[_address(part)] = memory
                self._users[_address(part)] += 1

    def _touch(self, node: torch.fx.Node, at: int) -> None:
        for memory in self._memory_of.get(node, ()):
            if memory is not None:
                memory.live_until = max(memory.live_until, at)

    def _let_go(self, node: torch.fx.Node) -> None:
        """Frees what no later step needs: recording takes no more memory than eager execution."""
        value = self._values.pop(node, None)
        for part, memory in zip(
            value if isinstance(value, (tuple, list)) else (value,), self._memory_of.get(node, ()), strict=False
        ):
            if memory is None:
                continue
            self._users[_address(part)] -= 1
            if self._users[_address(part)] == 0:
                del self._living[_address(part)], self._users[_address(part)]

    def _finish(self, node: torch.fx.Node, at: int) -> tuple[list[Any], list[Any]]:
        results = list(self._real(node.args[0]))
        outputs: list[Any] = []
        for name, value in zip(node.args[0], results, strict=True):
            if isinstance(name, torch.fx.Node):
                self._touch(name, at)
            memory = self._living.get(_address(value)) if isinstance(value, torch.Tensor) else None
            outputs.append(Laid.of(value, memory) if isinstance(value, torch.Tensor) else value)
        return results, outputs

    def _real(self, arguments: Any) -> Any:
        return torch.fx.node.map_arg(arguments, lambda node: self._values[node])


def _address(tensor: torch.Tensor) -> int:
    """Returns the address of the tensor's storage, or 0 if it has no bytes."""
    storage = tensor.untyped_storage()
    return storage.data_ptr() if storage.nbytes() else 0


def _extent(tensor: torch.Tensor) -> int:
    """Bytes from its first element to behind its last."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size() if tensor.numel() else 0


def _overlaps_itself(tensor: torch.Tensor) -> bool:
    """As an expanded tensor does: nothing can be copied into such a layout."""
    return any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
