# SPDX-License-Identifier: Apache-2.0
"""Finds the edges along which gradients of tensors go, and makes the node that stands for tensors of another worker.

The module uses only public names of torch, except for torch's engine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge


class _Receive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, received: ReceivedTensors, *tensors: torch.Tensor) -> Any:
        ctx.received = received
        ctx.mark_dirty(*tensors)
        return tensors if len(tensors) > 1 else tensors[0]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        raise RuntimeError(
            "tensors that came by RPC get their gradients through dist_autograd.backward(), not through "
            "torch.autograd.backward()"
        )


# The node has torch's name, which programs look for.
RecvRpcBackward: Any = type("torch::distributed::autograd::RecvRpc", (_Receive,), {})
ReceiveNode = RecvRpcBackward._backward_cls
LeafNode = type(torch.zeros((), requires_grad=True).view(()).grad_fn.next_functions[0][0])

_log = logging.getLogger("torch.autograd.graph")
_run = torch.autograd.Variable._execution_engine.run_backward
# torch.autograd.grad() checks shapes before it calls this function, and imports sympy for the check, which takes two
# seconds. The engine checks the shapes, too.
_run_for_torch = getattr(torch.autograd.graph, "_engine_run_backward", _run)
_accelerator = getattr(getattr(torch, "accelerator", None), "current_accelerator", lambda: "unknown")()


def torch_engine() -> Callable[..., Any]:
    """Returns torch's engine, without its wrapper in Python if the wrapper has nothing to do: the wrapper logs, and
    passes this thread's context to the engine's threads for devices."""
    return _run if _accelerator is None and not _log.isEnabledFor(logging.DEBUG) else _run_for_torch


_ANCHOR = torch.zeros((), requires_grad=True)  # an argument of each node, whose outputs then require gradients


class _Probe(torch.autograd.Function):
    """A node that has the edges of its arguments, for sparse leaves, which have no views."""

    @staticmethod
    def forward(ctx: Any, *tensors: torch.Tensor) -> torch.Tensor:
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        raise AssertionError("nothing runs backward through a probe")


def _lose_nodes() -> bool:
    """Returns whether torch destroys a node of Python together with its tensors, even if the node is referenced, as
    torch before 2.12 does."""
    node = _Probe.apply(torch.zeros((), requires_grad=True)).grad_fn
    try:
        len(node.next_functions)
    except RuntimeError:
        return True
    return False


_NODES_ARE_LOST = _lose_nodes()


def _owner_of(tensor: torch.Tensor) -> Any:
    """Returns a node of C++ that keeps the tensor's node alive, or None if none is needed. REQUIRES: grad mode."""
    if not _NODES_ARE_LOST or not isinstance(tensor.grad_fn, torch._C._FunctionBase):
        return None
    return (tensor.view_as(tensor) if tensor.layout == torch.strided else tensor.clone()).grad_fn


def edge_of(tensor: torch.Tensor) -> GradientEdge:
    """Returns the edge along which gradients of `tensor` go. REQUIRES: grad mode."""
    node = tensor.grad_fn
    if node is not None:
        return GradientEdge(node, tensor.output_nr)
    if tensor.layout != torch.strided:
        node, number = _Probe.apply(tensor).grad_fn.next_functions[0]
        return GradientEdge(node, number)
    return get_gradient_edge(tensor)


class ReceivedTensors:
    """The tensors of a received message, as outputs of a node of this worker's graph. The node keeps this object
    alive."""

    def __init__(self, context_id: int, message_id: int, peer: int, tensors: Sequence[torch.Tensor]) -> None:
        """Makes the tensors outputs of the node, in place. REQUIRES: no tensor is a view or part of a graph."""
        self.context_id, self.message_id, self.peer = context_id, message_id, peer
        self.count = len(tensors)
        for tensor in tensors:
            tensor.requires_grad_(False)  # a leaf cannot become an output in place
        with torch.enable_grad():
            RecvRpcBackward.apply(_ANCHOR, self, *tensors)
        self.node: Any = tensors[0].grad_fn


class SentTensors:
    """The tensors of a sent message, as edges of this worker's graph, with the attributes of a node of torch."""

    def __init__(self, message_id: int, peer: int, tensors: Sequence[torch.Tensor]) -> None:
        """Takes the edges of the tensors. REQUIRES: grad mode."""
        self.message_id, self.peer = message_id, peer
        self.edges, self._owners = list(map(edge_of, tensors)), list(map(_owner_of, tensors))

    @property
    def next_functions(self) -> tuple[tuple[Any, int], ...]:
        """The nodes that the gradients go to, each with the number of its input."""
        return tuple((edge.node, edge.output_nr) for edge in self.edges)

    def name(self) -> str:
        """Returns the name of torch's node for sent tensors."""
        return "torch::distributed::autograd::SendRpcBackward"


def wrong_arguments() -> TypeError:
    """Returns the error of backward() for arguments of wrong types."""
    return TypeError("backward(): incompatible function arguments: a context's id and a list of tensors are wanted")


def edge_of_root(root: torch.Tensor) -> GradientEdge:
    """Returns the edge at which a pass begins. Raises TypeError for another type, and RuntimeError for a tensor that
    cannot be a root."""
    if not isinstance(root, torch.Tensor):
        raise wrong_arguments()
    if not root.requires_grad:
        raise RuntimeError("requires_grad not set on root")
    if root.numel() != 1:
        raise RuntimeError(f"root of shape {tuple(root.shape)} is not a scalar, all roots need to be scalar")
    node = root.grad_fn
    if node is None:
        raise RuntimeError("root does not have a valid gradient function.")
    return GradientEdge(node, root.output_nr)
