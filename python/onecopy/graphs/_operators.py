# SPDX-License-Identifier: Apache-2.0
"""Says what the operators of a graph do with memory, and which of them a replay can repeat."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch
import torch.fx

from ._layout import extent_of


class NotReplayable(Exception):
    """A graph cannot be replayed and must run eagerly; the message is the reason."""


_NUMBERS = {"int", "float", "bool", "number", "Scalar", "SymInt", "SymFloat", "SymBool"}
_SIZES = {"aten::sym_size", "aten::sym_stride", "aten::sym_numel", "aten::sym_storage_offset"}
_INDEXING = {"aten::index", "aten::_unsafe_index"}


def check(graph: torch.fx.GraphModule) -> None:
    """Raises NotReplayable if the graph has a step whose replay would differ from eager execution."""
    for node in graph.graph.nodes:
        if node.op == "get_attr" and not isinstance(getattr(graph, str(node.target), None), torch.Tensor):
            raise NotReplayable(f"{node.target} is a nested graph, which chooses at run time what runs")
        if node.op in ("call_method", "call_module"):
            raise NotReplayable(f"{node.target} is not an operator")
        if node.op == "call_function":
            _check_call(node)


def _check_call(node: torch.fx.Node) -> None:
    operator: Any = node.target
    if not isinstance(operator, torch._ops.OpOverload):
        module, name = getattr(operator, "__module__", ""), getattr(operator, "__name__", "")
        takes_numbers = module == "torch" and name.startswith(("sym_", "_sym_"))
        if not takes_numbers and module not in ("_operator", "operator", "math", "builtins"):
            raise NotReplayable(f"{operator} is not an operator of torch")
        return
    tags, schema = operator.tags, operator._schema
    depends = torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags
    if depends and not (schema.name in _INDEXING and _are_integers(node.args[1])):
        raise NotReplayable(f"{operator} depends on what a tensor contains")
    if schema.name not in _SIZES and any(str(r.type) in _NUMBERS for r in schema.returns):
        raise NotReplayable(f"{operator} turns a tensor into a number")
    if schema.is_mutable and not all(r.alias_info is not None and r.alias_info.is_write for r in schema.returns):
        raise NotReplayable(f"{operator} writes into its arguments and returns other tensors")


def _are_integers(indices: Any) -> bool:
    """Returns whether none of the indices is a mask, so that the result's shape depends on shapes alone."""
    for index in indices:
        value = index.meta.get("val", index.meta.get("example_value")) if isinstance(index, torch.fx.Node) else None
        if index is not None and (not isinstance(value, torch.Tensor) or value.dtype in (torch.bool, torch.uint8)):
            return False
    return True


def reads_storage(graph: torch.fx.GraphModule) -> set[int]:
    """Returns the inputs whose storage the graph reads beyond their elements.

    as_strided() and storage_offset() count from the beginning of the storage.
    """
    inputs = {node: index for index, node in enumerate(n for n in graph.graph.nodes if n.op == "placeholder")}
    read: set[int] = set()
    for node in graph.graph.nodes:
        if node.op == "call_function" and _name_of(node.target) in _READS_STORAGE:
            read |= {inputs[origin] for origin in origins_of(node.all_input_nodes) if origin in inputs}
    return read


def check_storages(arguments: Sequence[Any], copied: Collection[int]) -> None:
    """Raises NotReplayable if a copy of an input would not contain the whole storage that the function reads."""
    for index in copied:
        tensor = arguments[index]
        if isinstance(tensor, torch.Tensor) and extent_of(tensor) != tensor.untyped_storage().nbytes():
            raise NotReplayable(
                f"it reads by as_strided() the storage of input {index}, which is larger than the input; "
                "pass a clone() of the input"
            )


def origins_of(nodes: Iterable[torch.fx.Node]) -> set[torch.fx.Node]:
    """Returns the nodes, and all nodes that they may be views of."""
    seen: set[torch.fx.Node] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op == "call_function" and may_view(node.target):
            waiting += node.all_input_nodes
    return seen


def may_view(operator: Any) -> bool:
    """Returns whether a result of the operator may lie in the memory of an argument."""
    if not isinstance(operator, torch._ops.OpOverload):
        return True  # getitem
    return operator._schema.name in _UNDECLARED or any(a.alias_info is not None for a in operator._schema.arguments)


def _name_of(operator: Any) -> str:
    return operator._schema.name if isinstance(operator, torch._ops.OpOverload) else ""


_UNDECLARED = {"aten::_unsafe_view", "aten::reshape", "aten::contiguous", "aten::to"}
_READS_STORAGE = {
    "aten::as_strided", "aten::as_strided_", "aten::as_strided_copy", "aten::as_strided_scatter",
    "aten::sym_storage_offset",
}  # fmt: skip
