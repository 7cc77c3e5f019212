# SPDX-License-Identifier: Apache-2.0
"""How a tensor crosses: copied, which is the default, lent, or given away.

A mark is an attribute of an alias, so that it goes with the tensor to where messages are made and is seen by no other."""

import torch

COPY, BORROW, MOVE = "copy", "borrow", "move"
_ATTRIBUTE = "_onecopy_rpc_mode"
_DEEPEST = 32  # levels of a value


class MarkedTensor:
    """An argument or a result with its mode. One use, in one call."""

    __slots__ = ("tensor", "mode")

    def __init__(self, tensor, mode):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{mode}() takes a tensor, not a {type(tensor).__name__}")
        if tensor.layout != torch.strided:
            raise TypeError(f"{mode}() takes a dense tensor: parts of a {tensor.layout} one cross as copies")
        self.tensor, self.mode = tensor, mode

    def alias(self):
        """The tensor that goes into the message; part of the same graph of autograd."""
        made = self.tensor.view_as(self.tensor)
        setattr(made, _ATTRIBUTE, self.mode)
        return made

    def finish(self):
        """After the message was sent: a tensor that was given away is empty here."""
        if self.mode == MOVE:
            self.tensor.data = torch.empty(0, dtype=self.tensor.dtype, device=self.tensor.device)


def borrow(tensor):
    """Lends a tensor to the callee, as an argument or a result: both have the same memory, and no byte is copied.

    A tensor of the CPU moves into shared memory at the first time. The other has it for as long as it keeps a
    reference, and each sees the other's writes."""
    return MarkedTensor(tensor, BORROW)


def move(tensor):
    """Gives a tensor away: no byte is copied, and it is empty in this process when the call has been sent.

    Throws TypeError for a tensor that requires gradients: the graph needs it here."""
    marked = MarkedTensor(tensor, MOVE)
    if tensor.requires_grad:
        raise TypeError("move() takes a tensor that needs no gradient: borrow() it, or move(tensor.detach())")
    return marked


def of(tensor):
    """The mode of a tensor in a message."""
    return getattr(tensor, _ATTRIBUTE, COPY)


def check_far(tensors, info):
    """Throws TypeError for a tensor that is lent to a member on another host."""
    if any(of(tensor) == BORROW for tensor in tensors):
        raise TypeError(
            f"borrow() lends memory of this host, and {info} is on another: give the call the tensor itself, "
            "which is copied, or move() it"
        )


def marked_in(value, depth=_DEEPEST):
    """The marked tensors in arguments: at the top, and in lists, tuples and dicts."""
    if isinstance(value, MarkedTensor):
        yield value
    elif depth and isinstance(value, (list, tuple)):
        for item in value:
            yield from marked_in(item, depth - 1)
    elif depth and isinstance(value, dict):
        for item in value.values():
            yield from marked_in(item, depth - 1)


def unmarked(value, depth=_DEEPEST):
    """Arguments without marks, for a call that crosses to no other process."""
    if isinstance(value, MarkedTensor):
        return value.tensor
    if depth and type(value) in (list, tuple):
        return type(value)(unmarked(item, depth - 1) for item in value)
    if depth and type(value) is dict:
        return {key: unmarked(item, depth - 1) for key, item in value.items()}
    return value
