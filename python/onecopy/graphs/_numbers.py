# SPDX-License-Identifier: Apache-2.0
"""Computes the results of a graph that are plain numbers and do not depend on its tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx


class PassingNumbers:
    """The inputs and results of a graph that are numbers and that no operator on tensors uses.

    A cache that counts its length in a Python int is an example: as a part of the key, the int would need another
    graph in each step of a request. Instead these results are computed in each call, outside the graph.
    """

    def __init__(self, graph: torch.fx.GraphModule) -> None:
        nodes = list(graph.graph.nodes)
        inputs = [n for n in nodes if n.op == "placeholder"]
        outputs = nodes[-1].args[0]
        passing: set[torch.fx.Node] = set()
        for node in reversed(nodes[:-1]):
            if _is_number(node) and all(user is nodes[-1] or user in passing for user in node.users):
                passing.add(node)
        made: set[torch.fx.Node] = set()
        self._steps: list[torch.fx.Node] = []
        for node in nodes:
            if node in passing and all(argument in made for argument in node.all_input_nodes):
                made.add(node)
                if node.op == "call_function":
                    self._steps.append(node)
        self._inputs = {index: node for index, node in enumerate(inputs) if node in made}
        self._results = {at: node for at, node in enumerate(outputs) if node in made}
        self.inputs = frozenset(self._inputs)
        """The indices of these inputs. No graph depends on them."""

    def __bool__(self) -> bool:
        return bool(self._results)

    def results_of(self, arguments: Sequence[Any]) -> dict[int, Any]:
        """Returns the results for these arguments of the graph, by their indices."""
        values = {node: arguments[index] for index, node in self._inputs.items()}
        for step in self._steps:
            args, kwargs = torch.fx.node.map_arg((step.args, step.kwargs), values.__getitem__)
            values[step] = step.target(*args, **kwargs)
        return {at: values[node] for at, node in self._results.items()}


def _is_number(node: torch.fx.Node) -> bool:
    if node.op == "call_function":
        return not isinstance(node.target, torch._ops.OpOverload) and not isinstance(_value(node), torch.Tensor)
    return node.op == "placeholder" and isinstance(_value(node), (int, float, torch.SymInt, torch.SymFloat))


def _value(node: torch.fx.Node) -> Any:
    return node.meta.get("val")
