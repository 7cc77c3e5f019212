# SPDX-License-Identifier: Apache-2.0
"""Sends the tensors that C++ does not copy by itself.

C++ copies row-major tensors of the CPU and of cards with a target (see python/src/value/object_writer.cpp). The
functions below handle all other tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

import onecopy

from .. import _core

COPY, BORROW, MOVE = "copy", "borrow", "move"
_REQUIRES_GRAD, _PARAMETER = 2, 4  # flags of tensors
_SMALL = 8192  # bytes of storage that are sent whole, to keep strides
_COMPRESSED = {torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}


# --- tensors that are lent or given away


class MarkedTensor:
    """An argument or a result that is lent or given away in one call."""

    __slots__ = ("mode", "tensor")
    tensor: torch.Tensor
    mode: str

    def __init__(self, tensor: torch.Tensor, mode: str) -> None:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{mode}() takes a tensor, not a {type(tensor).__name__}")
        if tensor.layout != torch.strided:
            raise TypeError(f"{mode}() takes a dense tensor: parts of a {tensor.layout} one cross as copies")
        self.tensor, self.mode = tensor, mode

    def finish(self) -> None:
        """Empties a tensor that was given away. Called after the message was sent."""
        if self.mode == MOVE:
            self.tensor.data = torch.empty(0, dtype=self.tensor.dtype, device=self.tensor.device)


def borrow(tensor: torch.Tensor) -> MarkedTensor:
    """Lends a tensor, as an argument or a result, without a copy. Both processes use the same memory and see each
    other's writes.

    The first call moves a tensor of the CPU into shared memory. The receiver keeps the memory while it holds a
    reference."""
    return MarkedTensor(tensor, BORROW)


def move(tensor: torch.Tensor) -> MarkedTensor:
    """Gives a tensor away without a copy. The tensor is empty in this process after the call was sent.

    Raises TypeError for a tensor that requires gradients, since the graph of this process needs the tensor."""
    marked = MarkedTensor(tensor, MOVE)
    if tensor.requires_grad:
        raise TypeError("move() takes a tensor that needs no gradient: borrow() it, or move(tensor.detach())")
    return marked


def unmarked(value: Any, depth: int = 32) -> Any:
    """Returns a value with the tensors in place of their marks, for a call within this process."""
    if isinstance(value, MarkedTensor):
        return value.tensor
    if depth and type(value) in (list, tuple):
        return type(value)(unmarked(item, depth - 1) for item in value)
    if depth and type(value) is dict:
        return {key: unmarked(item, depth - 1) for key, item in value.items()}
    return value


def check_far(info: object) -> None:
    """Raises TypeError: the tensor is lent to a member on another host."""
    raise TypeError(
        f"borrow() lends memory of this host, and {info} is on another: give the call the tensor itself, "
        "which is copied, or move() it"
    )


# --- crossing


def reduce_tensor(tensor: torch.Tensor) -> tuple[Any, ...] | None:
    """Returns the parts of a tensor that C++ does not copy, as (kind, part, ...), or None for a tensor that can only be
    pickled."""
    if tensor.requires_grad or type(tensor) is torch.nn.Parameter:
        return ("leaf", tensor.detach(), _leaf_flags(tensor))
    giving: Any = _core._rpc_giving()
    plain = tensor.detach()
    if tensor.layout == torch.sparse_coo:
        giving.count("parts")
        return ("sparse", plain._indices(), plain._values(), tuple(plain.shape), plain.is_coalesced())
    if tensor.layout in _COMPRESSED:
        giving.count("parts")
        rows = tensor.layout in (torch.sparse_csr, torch.sparse_bsr)
        outer, inner = (
            (plain.crow_indices(), plain.col_indices()) if rows else (plain.ccol_indices(), plain.row_indices())
        )
        return ("compressed", tensor.layout, outer, inner, plain.values(), tuple(plain.shape))
    if tensor.is_quantized:
        return _quantized_parts(plain)
    if tensor.dtype == torch.complex32:  # onecopy has no name for it
        return ("complex32", torch.view_as_real(plain.resolve_conj().resolve_neg()))
    if tensor.layout != torch.strided:
        return None
    if _core._why_refused(tensor):
        giving.agent.target_of(tensor, giving.receiver, giving.is_result)  # says more of a device without a way
        return None
    return _shared_parts(giving, _copy(plain), tensor, "copy")


def reduce_marked(marked: MarkedTensor) -> tuple[Any, ...]:
    """Returns the parts of a tensor that is lent or given away. Raises TypeError for a tensor that cannot be lent."""
    giving: Any = _core._rpc_giving()
    member = giving.agent.member(giving.receiver)
    if member.is_far and marked.mode == BORROW:
        check_far(member.info)
    route = "lease" if marked.mode == BORROW else "move"
    parts = _shared_parts(giving, marked.tensor.detach(), marked.tensor, route)
    if parts is None:
        raise TypeError(f"{marked.mode}() takes a tensor of the host or of a card, not of {marked.tensor.device}")
    if marked.mode == MOVE:
        giving.move(marked)
    return parts


def _shared_parts(giving: Any, shared: torch.Tensor, given: torch.Tensor, route: str) -> tuple[Any, ...] | None:
    agent = giving.agent
    goes_to = agent.target_of(given, giving.receiver, giving.is_result)
    found: Any = _core._share_tensor(shared)
    if found is None:
        return None
    giving.count(route)
    shared_tensor, flags = found
    return ("tensor", shared_tensor, flags | _leaf_flags(given), goes_to)


def _leaf_flags(tensor: torch.Tensor) -> int:
    """Returns the flags of a copy of the tensor, which is a leaf: see torch::Flags."""
    return tensor.requires_grad * _REQUIRES_GRAD | (type(tensor) is torch.nn.Parameter) * _PARAMETER


def _make_leaf(tensor: torch.Tensor, flags: int) -> torch.Tensor:
    """Returns the tensor with the flags of a leaf. REQUIRES: the tensor has no graph."""
    if flags & _PARAMETER:
        return torch.nn.Parameter(tensor, bool(flags & _REQUIRES_GRAD))
    return tensor.requires_grad_() if flags & _REQUIRES_GRAD else tensor


def _quantized_parts(tensor: torch.Tensor) -> tuple[Any, ...] | None:
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return ("quantized", tensor.int_repr(), tensor.q_scale(), tensor.q_zero_point(), tensor.dtype)
    return None


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a copy with memory of its own. Keeps the strides if the storage is small or mostly used."""
    storage = tensor.untyped_storage().nbytes()
    is_plain = not (tensor.is_conj() or tensor.is_neg())
    whole = (
        is_plain and not tensor.is_contiguous() and storage > 0 and (storage < _SMALL or 2 * tensor.nbytes >= storage)
    )
    if not whole:
        return _fresh(tensor.shape, tensor).copy_(tensor)
    flat = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage())
    return _fresh(flat.shape, flat).copy_(flat).as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


def _fresh(shape: Iterable[int], like: torch.Tensor) -> torch.Tensor:
    """Returns an empty tensor, on the CPU in shared memory, so that sending the copy needs no second copy."""
    shape = tuple(shape)
    if like.device.type != "cpu" or 0 in shape:
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    made: torch.Tensor = onecopy.empty(shape, str(like.dtype).removeprefix("torch.")).torch()
    return made


def to_target(tensor: torch.Tensor, goes_to: str) -> torch.Tensor:
    """Returns the tensor on its target."""
    if str(tensor.device) == goes_to:
        return tensor
    received["staged" if "cpu" in (tensor.device.type, goes_to) else "pull"] += 1
    return tensor.to(goes_to)


received: dict[str, int] = {"pull": 0, "staged": 0}  # tensors that this process has copied, by route


def _make_tensor(tensor: Any, flags: int, goes_to: str) -> torch.Tensor:
    if not isinstance(tensor, onecopy.Tensor):
        raise TypeError(f"a message holds a {type(tensor).__name__} for a tensor, which no sender puts there")
    of_leaf = flags & (_REQUIRES_GRAD | _PARAMETER)
    return _make_leaf(to_target(_core._open_tensor(tensor, flags & ~of_leaf), goes_to), of_leaf)


def _make_sparse(indices: torch.Tensor, values: torch.Tensor, shape: Any, is_coalesced: bool) -> torch.Tensor:
    # On the CPU, indices out of range would cause reads out of range.
    return torch.sparse_coo_tensor(
        indices, values, shape, is_coalesced=is_coalesced, check_invariants=indices.device.type == "cpu"
    )


def _make_compressed(
    layout: Any, outer: torch.Tensor, inner: torch.Tensor, values: torch.Tensor, shape: Any
) -> torch.Tensor:
    if layout not in _COMPRESSED:
        raise TypeError(f"{layout} is not a layout of a compressed sparse tensor")
    return torch.sparse_compressed_tensor(outer, inner, values, shape, layout=layout, check_invariants=True)


def _make_quantized(elements: torch.Tensor, scale: float, zero_point: int, dtype: torch.dtype) -> torch.Tensor:
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"a quantized tensor has the dtype {dtype!r}")
    return torch._make_per_tensor_quantized_tensor(elements, scale, zero_point)


def _make_complex32(halves: torch.Tensor) -> torch.Tensor:
    if halves.dtype != torch.float16 or halves.shape[-1:] != (2,):
        raise TypeError(f"elements of complex32 came as {halves.dtype} of shape {tuple(halves.shape)}")
    halves = halves.contiguous()
    made = torch.empty(0, dtype=torch.complex32, device=halves.device)
    return made.set_(halves.untyped_storage(), halves.storage_offset() // 2, halves.shape[:-1])


MAKERS: dict[str, Callable[..., Any]] = {
    "tensor": _make_tensor,
    "leaf": _make_leaf,
    "sparse": _make_sparse,
    "compressed": _make_compressed,
    "quantized": _make_quantized,
    "complex32": _make_complex32,
}


# --- the order of streams


def points_behind(tensors: Iterable[torch.Tensor]) -> list[Any]:
    """Returns events after all work so far in this thread's streams of the tensors' cards."""
    cards = {tensor.device for tensor in tensors}
    return [torch.cuda.current_stream(card).record_event() for card in cards if card.type == "cuda"]


def wait_for(points: Iterable[Any]) -> None:
    """Makes this thread's streams wait for the events, without blocking the host."""
    for event in points:
        torch.cuda.current_stream(event.device).wait_event(event)
