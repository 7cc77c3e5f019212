# SPDX-License-Identifier: Apache-2.0
"""Makes a graph write into its inputs in place again.

AOT Autograd turns ``index_copy_`` into ``index_copy`` and a copy back into the input at the graph's end: a cache would
be copied twice in each step. If nothing reads the old content afterwards, the operator can write into the input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from ._operators import may_view, origins_of

_aten = torch.ops.aten


def write_in_place(graph: torch.fx.GraphModule) -> int:
    """Rewrites the graph. Returns the number of copies that it has removed."""
    waiting = [node for node in graph.graph.nodes if node.target is _aten.copy_.default]
    saved = 0
    while waiting:
        write = _Write.find(waiting.pop())
        if write is not None and write.is_safe():
            waiting += write.apply()
            saved += 1
    if saved:
        graph.graph.lint()
        graph.recompile()
    return saved


class _Write:
    """A node ``copy_(to, chain[-1])``. Each node of the chain is an operator on the node before; the first one is an
    operator on ``to``."""

    def __init__(self, copy: torch.fx.Node, to: torch.fx.Node, chain: list[torch.fx.Node]) -> None:
        self._copy = copy
        self._to = to
        self._chain = chain
        self._position = {node: at for at, node in enumerate(copy.graph.nodes)}

    @classmethod
    def find(cls, copy: torch.fx.Node) -> _Write | None:
        to, value = copy.args[:2]
        chain: list[torch.fx.Node] = []
        while isinstance(value, torch.fx.Node) and isinstance(to, torch.fx.Node):
            if chain and _is_same_view(value, to):
                return cls(copy, value, chain[::-1])
            if not _can_write(value) or not _is_alike(value, to):
                return None
            chain.append(value)
            value = value.args[0]
        return None

    def is_safe(self) -> bool:
        """Returns whether no reader can observe that the operators write in place."""
        written = _views_of(origins_of([self._to]))
        begin = self._position[self._chain[0]]
        own = {*self._chain, self._copy}
        if any(self._position[u] > begin and u not in own for u in _readers_of(written)):
            return False
        for node, following in zip(self._chain, [*self._chain[1:], None], strict=True):
            values = _views_of({node})
            if any(origins_of([argument]) & (written | values) for argument in _others_of(node)):
                return False
            for reader in _readers_of(values):
                is_late = following is not None and self._position[reader] > self._position[following]
                if reader.op == "output" or (is_late and reader not in own):
                    return False
        return True

    def apply(self) -> list[torch.fx.Node]:
        """Makes the chain write in place. Returns new writes, which may be rewritten in turn."""
        graph, more = self._copy.graph, []
        graph.erase_node(self._copy)
        for node in self._chain:
            node.replace_all_uses_with(self._to)
            node.update_arg(0, self._to)
            view = _SCATTERS.get(node.target)
            if view is None:
                node.target = _writer_of(node.target)
                continue
            with graph.inserting_before(node):
                part = graph.call_function(view, (self._to, *node.args[2:]), dict(node.kwargs))
                part.meta["val"] = node.args[1].meta.get("val") if isinstance(node.args[1], torch.fx.Node) else None
                more.append(graph.call_function(_aten.copy_.default, (part, node.args[1])))
            graph.erase_node(node)
        return more


_SCATTERS: dict[Any, Any] = {
    _aten.slice_scatter.default: _aten.slice.Tensor,
    _aten.select_scatter.default: _aten.select.int,
}
"""Maps an operator that writes a part of a tensor to the operator that returns a view of the part."""

_PARTS = {
    "aten::index_copy", "aten::index_put", "aten::index_add", "aten::index_fill", "aten::scatter", "aten::scatter_add",
    "aten::scatter_reduce", "aten::masked_fill", "aten::masked_scatter", "aten::copy",
}  # fmt: skip


def _can_write(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and (node.target in _SCATTERS or _writer_of(node.target) is not None)


def _writer_of(operator: Any) -> Any:
    """Returns the operator that does the same in place, or None."""
    if not isinstance(operator, torch._ops.OpOverload) or operator._schema.is_mutable:
        return None
    name = operator._schema.name
    is_pointwise = torch.Tag.pointwise in operator.tags and torch.Tag.nondeterministic_seeded not in operator.tags
    if not name.startswith("aten::") or (name not in _PARTS and not is_pointwise):
        return None
    packet = getattr(_aten, f"{operator._opname}_", None)
    writer = getattr(packet, operator._overloadname, None)
    if writer is None:
        return None
    arguments, others = operator._schema.arguments, writer._schema.arguments
    is_same = [(a.name, str(a.type)) for a in arguments] == [(a.name, str(a.type)) for a in others]
    return writer if is_same and others[0].is_write and not any(a.is_write for a in others[1:]) else None


def _is_same_view(a: Any, b: Any) -> bool:
    """Returns whether both are the same node, or the same view of one node."""
    if a is b:
        return True
    if not isinstance(a, torch.fx.Node) or not isinstance(b, torch.fx.Node) or not a.args or not b.args:
        return False
    is_like = a.op == b.op == "call_function" and a.target is b.target and may_view(a.target)
    return is_like and a.args[1:] == b.args[1:] and a.kwargs == b.kwargs and _is_same_view(a.args[0], b.args[0])


def _is_alike(a: torch.fx.Node, b: torch.fx.Node) -> bool:
    """Returns whether both have the same dtype and layout, as far as torch has determined them."""
    one, other = a.meta.get("val"), b.meta.get("val")
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    return one.dtype == other.dtype and _layout(one) == _layout(other)


def _layout(tensor: torch.Tensor) -> list[str]:
    """Returns sizes and strides as texts, since comparing symbolic sizes would make them constant."""
    return [str(number) for number in (*tensor.shape, *tensor.stride())]


def _views_of(nodes: set[torch.fx.Node]) -> set[torch.fx.Node]:
    """Returns the nodes, and all nodes that may be views of them."""
    seen: set[torch.fx.Node] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting += [u for u in node.users if u.op == "call_function" and may_view(u.target)]
    return seen


def _readers_of(values: set[torch.fx.Node]) -> list[torch.fx.Node]:
    """Returns the users of the values, except users that only make views."""
    return [u for value in values for u in value.users if u not in values or _is_mutable(u)]


def _is_mutable(node: torch.fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _others_of(node: torch.fx.Node) -> Sequence[torch.fx.Node]:
    """Returns the arguments of the node except for the first."""
    found: list[torch.fx.Node] = []
    torch.fx.node.map_arg((node.args[1:], node.kwargs), found.append)
    return found
