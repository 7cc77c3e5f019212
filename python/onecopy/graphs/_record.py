# SPDX-License-Identifier: Apache-2.0
"""Runs a graph on the CPU for the first time, and records what each operator does with memory."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import torch
import torch.fx

from ._layout import extent_of, laid, offset_of
from ._operators import NotReplayable, check, may_view
from ._plan import Memory


@dataclasses.dataclass(frozen=True)
class Laid:
    """The layout of a tensor in a storage. ``offset`` and ``strides`` are in elements."""

    memory: Memory | None
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, tensor: torch.Tensor, memory: Memory | None) -> Laid:
        return cls(memory, tensor.dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))

    @property
    def is_dense(self) -> bool:
        """Returns whether the layout is row-major, as ``out=`` overloads write their results."""
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True


@dataclasses.dataclass(frozen=True)
class Step:
    """A node of the graph.

    ``kind`` is one of

    - ``given`` and ``slot``: an input that is used in place or copied; ``value`` is its index,
    - ``constant``: a value that depends on the key alone,
    - ``view``: one or several tensors in memory of other nodes,
    - ``make``: one tensor in new memory,
    - ``many``: several results in new memory; ``value`` contains the results that are not tensors,
    - ``mutate``: an operator that writes into its arguments, and returns nothing or the written arguments,
    - ``effect``: an operator without a result.
    """

    node: torch.fx.Node
    kind: str
    laid: tuple[Laid | None, ...] = ()
    value: Any = None


@dataclasses.dataclass
class Recording:
    """The record of a first run."""

    steps: list[Step]
    memories: list[Memory]
    outputs: tuple[Any, ...]
    """The results of the graph: nodes, or plain values."""
    refusal: str = ""
    """The reason, found during the run, why the graph cannot be replayed; else empty."""


def record(
    graph: torch.fx.GraphModule, arguments: Sequence[Any], in_place: Collection[int]
) -> tuple[Recording, list[Any]]:
    """Runs the graph on the arguments. Returns the record and the results.

    Raises:
        NotReplayable: the graph cannot be replayed. Nothing has run.
    """
    check(graph)
    for index, argument in enumerate(arguments):
        if isinstance(argument, torch.Tensor) and not has_plain_memory(argument):
            raise NotReplayable(f"input {index} is sparse, quantized, or lazily conjugated or negated")
    return _Recorder(graph, list(arguments), in_place).run()


def has_plain_memory(tensor: torch.Tensor) -> bool:
    """Returns whether the tensor is strided and the values in memory are its values, without lazy conjugation."""
    return tensor.layout == torch.strided and not tensor.is_conj() and not tensor.is_neg() and not tensor.is_quantized


class _Recorder:
    """Runs the nodes one by one and records their memory.

    Storages are identified by torch's objects. An input that will be copied is recorded as a separate storage, like
    its slot later, even if the caller's inputs share a storage.
    """

    def __init__(self, graph: torch.fx.GraphModule, arguments: list[Any], in_place: Collection[int]) -> None:
        self._graph = graph
        self._arguments = arguments
        self._in_place = in_place
        self._nodes = list(graph.graph.nodes)
        position = {node: at for at, node in enumerate(self._nodes)}
        self._last_use = {n: max((position[u] for u in n.users), default=position[n]) for n in self._nodes}
        self._values: dict[torch.fx.Node, Any] = {}
        self._memory_of: dict[torch.fx.Node, tuple[Memory | None, ...]] = {}
        self._living: dict[int, Memory] = {}  # by the storages that values keep alive
        self._users: Counter[int] = Counter()  # the number of values in each of these storages
        self._copied: dict[int, int] = {}  # copied inputs by the storages that stand in for them
        self._stand_ins: list[torch.Tensor] = []  # keeps these storages, so that their identities are not reused
        self._recording = Recording([], [], ())

    def run(self) -> tuple[Recording, list[Any]]:
        ending: dict[int, list[torch.fx.Node]] = {}
        for node, at in self._last_use.items():
            ending.setdefault(at, []).append(node)
        for at, node in enumerate(self._nodes):
            if node.op == "output":
                return self._recording, self._finish(node, at)
            self._recording.steps.append(self._step(node, at))
            for used in ending.get(at, ()):
                self._let_go(used)
        raise AssertionError("a graph ends with its outputs")

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
        index = sum(step.node.op == "placeholder" for step in self._recording.steps)
        value = self._arguments[index]
        if not isinstance(value, torch.Tensor) or (index not in self._in_place and not value.numel()):
            self._keep(node, value, at, given=True)
            return Step(node, "constant", value=value)
        if index in self._in_place or _overlaps_itself(value):
            laid_ = self._keep(node, value, at, given=True)
            return Step(node, "given", laid_, index)
        stand_in = _with_storage_of_its_own(value)
        self._stand_ins.append(stand_in)
        self._copied[_storage_of(stand_in)] = index
        memory = Memory(extent_of(value), -1, at)
        self._recording.memories.append(memory)
        self._enter(node, stand_in, (memory,))
        return Step(node, "slot", (Laid.of(stand_in, memory),), index)

    def _call(self, node: torch.fx.Node, value: Any, at: int) -> Step:
        operator: Any = node.target
        is_operator = isinstance(operator, torch._ops.OpOverload)
        if is_operator and operator._schema.is_mutable:
            return Step(node, "mutate", self._keep(node, value, at))
        if is_operator and not operator._schema.returns:
            self._values[node] = value
            return Step(node, "effect")
        parts = _parts(value)
        for part in parts:
            if isinstance(part, torch.Tensor) and part.layout != torch.strided:
                self._refuse(f"{operator} makes a tensor that is not strided")
        if self._recording.refusal or not any(isinstance(part, torch.Tensor) for part in parts):
            self._values[node] = value
            return Step(node, "constant", value=value)
        known = {_storage_of(part) in self._living for part in parts if _has_bytes(part)}
        laid_ = self._keep(node, value, at)
        if len(known) > 1:
            self._refuse(f"{operator} returns new tensors and views of old ones")
        if not known:  # tensors without elements
            return Step(node, "constant", value=value)
        if known.pop():
            if not may_view(operator) and operator.namespace != "aten":
                self._refuse(f"{operator} returns an argument, and does not say so")
            return Step(node, "view", laid_)
        if isinstance(value, torch.Tensor):
            return Step(node, "make", laid_)
        return Step(node, "many", laid_, [None if _has_bytes(part) else part for part in parts])

    def _refuse(self, reason: str) -> None:
        """Ends the record for this reason. The rest of the graph runs unrecorded."""
        self._recording.refusal = self._recording.refusal or reason

    def _keep(self, node: torch.fx.Node, value: Any, at: int, given: bool = False) -> tuple[Laid | None, ...]:
        """Records the memory of a value, which is made at step `at` unless it is known. Returns its layouts."""
        parts = _parts(value)
        memories = tuple(self._memory(part, at, given) for part in parts)
        self._enter(node, value, memories)
        return tuple(
            Laid.of(part, memory) if isinstance(part, torch.Tensor) else None
            for part, memory in zip(parts, memories, strict=True)
        )

    def _memory(self, part: Any, at: int, given: bool) -> Memory | None:
        if not _has_bytes(part):
            return None
        known = self._living.get(_storage_of(part))
        if known is not None:
            known.live_until = max(known.live_until, at)
            return known
        memory = Memory(part.untyped_storage().nbytes(), at, at, given)
        if not given:
            self._recording.memories.append(memory)
        self._living[_storage_of(part)] = memory  # so that other parts of this value find it
        return memory

    def _enter(self, node: torch.fx.Node, value: Any, memories: tuple[Memory | None, ...]) -> None:
        self._values[node] = value
        self._memory_of[node] = memories
        for part, memory in zip(_parts(value), memories, strict=True):
            if memory is not None:
                self._living[_storage_of(part)] = memory
                self._users[_storage_of(part)] += 1

    def _touch(self, node: torch.fx.Node, at: int) -> None:
        for memory in self._memory_of.get(node, ()):
            if memory is not None:
                memory.live_until = max(memory.live_until, at)

    def _let_go(self, node: torch.fx.Node) -> None:
        """Frees a value after its last use, so that recording takes no more memory than eager execution."""
        value = self._values.pop(node, None)
        for part, memory in zip(_parts(value), self._memory_of.get(node, ()), strict=False):
            if memory is None:
                continue
            self._users[_storage_of(part)] -= 1
            if self._users[_storage_of(part)] == 0:
                del self._living[_storage_of(part)], self._users[_storage_of(part)]

    def _finish(self, node: torch.fx.Node, at: int) -> list[Any]:
        self._recording.outputs = tuple(node.args[0])
        for name in self._recording.outputs:
            if isinstance(name, torch.fx.Node):
                self._touch(name, at)
        return [self._handed_out(value) for value in self._real(list(self._recording.outputs))]

    def _handed_out(self, value: Any) -> Any:
        """Returns a result for the caller. A view of an input's stand-in becomes a view of the input."""
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided or not _has_bytes(value):
            return value
        index = self._copied.get(_storage_of(value))
        return value if index is None else view_of_input(self._arguments[index], value)

    def _real(self, arguments: Any) -> Any:
        return torch.fx.node.map_arg(arguments, lambda node: self._values[node])


def view_of_input(argument: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
    """Returns the view of an input that corresponds to ``view``, a view of the input's stand-in.

    The storage of the stand-in begins with the input's first element.
    """
    at = offset_of(argument) + offset_of(view)
    made = laid(argument.untyped_storage(), view.dtype, tuple(view.shape), view.stride(), at)
    return with_marks_of(made, view)


def with_marks_of(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Returns a view of the tensor with the lazy conjugation and negation of ``like``."""
    if like.is_conj() != tensor.is_conj():
        tensor = torch._conj(tensor)
    return torch._neg_view(tensor) if like.is_neg() != tensor.is_neg() else tensor


def _with_storage_of_its_own(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor on the same memory, in a new storage that does not own the memory."""
    storage = torch._C._construct_storage_from_data_pointer(tensor.data_ptr(), tensor.device, extent_of(tensor))
    return laid(storage, tensor.dtype, tuple(tensor.shape), tensor.stride(), 0)


def _parts(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (tuple, list)) else (value,)


def _storage_of(tensor: torch.Tensor) -> int:
    """Returns the identity of the tensor's storage, which is unique while the storage lives."""
    return tensor.untyped_storage()._cdata


def _has_bytes(part: Any) -> bool:
    return isinstance(part, torch.Tensor) and part.layout == torch.strided and part.untyped_storage().nbytes() > 0


def _overlaps_itself(tensor: torch.Tensor) -> bool:
    """Returns whether elements overlap, as in an expanded tensor. Nothing can be copied into this layout."""
    return any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
