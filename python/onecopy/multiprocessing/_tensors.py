# SPDX-License-Identifier: Apache-2.0
"""Reduces tensors to the handle and layout of their memory, or to the tensors that they are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from .. import _core
from ..errors import InvalidArgument
from ..pickling.holds import tie_to_child
from . import _torch_names
from ._state import installed, originals
from ._storages import SharedStorage, block_handle, device_asked, is_carried, open_storage

if TYPE_CHECKING:
    import torch

# The message is torch's own: programs look for it.
_NON_LEAF = (
    "Cowardly refusing to serialize non-leaf tensor which requires_grad, "
    "since autograd does not support crossing process boundaries.  "
    "If you just want to transfer the data, call detach() on the tensor "
    "before serializing (e.g., putting it on the queue)."
)


def reduce_tensor(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Reduces a tensor to a handle and arguments for another process.

    Returns:
        ``(rebuild, arguments)``. A strided tensor on a device has at least 15 arguments, in the order of torch's CUDA
        tensors: class, size, stride, offset (elements), storage class, dtype, device ordinal, handle, storage size and
        offset in its block (bytes), requires_grad, and four arguments for torch's own bookkeeping. torch's
        rebuild_cuda_tensor() accepts them, too, unless ``is_conj()`` or ``is_neg()`` is true. ``arguments[6]`` may be
        replaced by the device to open on: its number in the receiver, or its UUID as a str. Left unchanged, the tensor
        is opened on its own device, whatever number the receiver gives to the device. A tensor on the CPU has three
        arguments, as with torch, so that programs that replace index 6 do not touch them: class, handle, and flags.

    Raises:
        RuntimeError: the tensor is part of an autograd graph.
        onecopy.OutOfMemory: its storage is not shared yet, and there is no memory to share it.
        onecopy.Unsupported: the storage begins in the middle of an element of its block.
    """
    if not installed():
        from torch.multiprocessing.reductions import reduce_tensor

        return reduce_tensor(tensor)
    core: Any = _core
    if tensor.is_cuda:
        if (plain := core._reduce_plain(tensor, SharedStorage)) is not None:
            tie_to_child(plain[7])
            return rebuild_shared_tensor, plain
    elif (plain := core._torch_reduce(tensor)) is not None:
        tie_to_child(plain[1])
        return rebuild_cpu_tensor, plain
    return _reduce_unusual_tensor(tensor)


def _reduce_unusual_tensor(tensor: torch.Tensor) -> tuple[Any, ...]:
    import torch

    if tensor.requires_grad and not tensor.is_leaf:
        raise InvalidArgument(_NON_LEAF)
    _torch_names.warn_if_has_hooks(tensor)
    if tensor.is_nested and tensor.layout is torch.strided:
        return originals.reduce_tensor(tensor)  # reduces the parts by torch's reduce_tensor(), which is ours
    if tensor.layout not in (torch.strided, torch.jagged):
        return reduce_sparse_tensor(tensor)
    if tensor.layout is torch.jagged or tensor.is_quantized:
        return tensor.__reduce_ex__(2)  # reduces it to tensors and storages, which are pickled by this module
    if not is_carried(tensor.device, tensor.untyped_storage):
        return originals.reduce_tensor(tensor)
    return _reduce_shared_tensor(tensor)


def _reduce_shared_tensor(tensor: torch.Tensor) -> tuple[Any, ...]:
    storage = tensor.untyped_storage()
    handle, begin = block_handle(storage, tensor.dtype)
    bits = (tensor.is_conj(), tensor.is_neg())
    if tensor.device.type == "cpu":
        metadata = (tensor.storage_offset(), tensor.size(), tensor.stride(), tensor.requires_grad, tensor.dtype, *bits)
        return rebuild_unusual_tensor, (type(tensor), (handle, storage.nbytes(), begin), metadata)
    arguments = _device_arguments(tensor, handle, begin)
    if any(bits):
        return rebuild_lazy_tensor, arguments + bits
    return rebuild_shared_tensor, arguments


def _device_arguments(tensor: torch.Tensor, handle: bytes | None, begin: int) -> tuple[Any, ...]:
    """Returns the arguments of rebuild_shared_tensor(), in the order of torch's rebuild_cuda_tensor()."""
    import torch

    return (
        type(tensor),
        tensor.size(),
        tensor.stride(),
        tensor.storage_offset(),
        torch.TypedStorage if handle is None else SharedStorage,
        tensor.dtype,
        tensor.get_device(),
        handle,
        tensor.untyped_storage().nbytes(),
        begin,
        tensor.requires_grad,
        b"",
        tensor.get_device(),
        b"",
        False,
    )


def rebuild_cpu_tensor(tensor_cls: type, handle: bytes, flags: int) -> Any:
    """Returns the CPU tensor that reduce_tensor() reduced, on the same memory. Raises as rebuild_shared_tensor()."""
    del tensor_cls  # the flags contain it: a Parameter or a Tensor
    return _core.torch_open(_core.open(handle), flags)


def rebuild_unusual_tensor(tensor_cls: type, storage: tuple[Any, ...], metadata: tuple[Any, ...]) -> Any:
    """Returns a CPU tensor that is a subclass, has hooks, or has a dtype that a handle cannot express."""
    handle, size_bytes, begin = storage
    offset, size, stride, requires_grad, dtype, conj, neg = metadata
    offset += begin // dtype.itemsize
    opened = open_storage(handle, size_bytes, "cpu" if handle is None else None)
    tensor = _on_storage(opened, dtype, offset, size, stride)
    return _finish(_lazy(tensor, conj, neg), tensor_cls, requires_grad)


def rebuild_shared_tensor(
    tensor_cls: type,
    tensor_size: Sequence[int],
    tensor_stride: Sequence[int],
    tensor_offset: int,
    storage_cls: type,
    dtype: torch.dtype,
    storage_device: int | str,
    storage_handle: bytes | None,
    storage_size_bytes: int,
    storage_offset_bytes: int,
    requires_grad: bool,
    ref_counter_handle: bytes,
    ref_counter_offset: int,
    event_handle: bytes,
    event_sync_required: bool,
) -> Any:
    """Returns the tensor that reduce_tensor() reduced, on the same memory.

    Raises:
        onecopy.StaleHandle: the tensor was rebuilt before, or collect() ended its hold, and its memory was freed.
        onecopy.OwnerDied: the process that reduced it has ended, and no other process holds the memory.
        onecopy.Unsupported: the memory cannot be opened on this device, or torch cannot use it in this process.
    """
    del storage_cls, ref_counter_handle, event_handle, event_sync_required
    device = device_asked(storage_handle, storage_device, named=ref_counter_offset)
    storage = open_storage(storage_handle, storage_size_bytes, device)
    offset = storage_offset_bytes // dtype.itemsize + tensor_offset
    tensor = _on_storage(storage, dtype, offset, tensor_size, tensor_stride)
    return _finish(tensor, tensor_cls, requires_grad)


def rebuild_lazy_tensor(*arguments: Any) -> Any:
    """Returns a lazily conjugated or negated tensor. The two bits follow the 15 arguments of the tensor."""
    *plain, conj, neg = arguments
    requires_grad = plain[10]
    plain[10] = False
    return _finish(_lazy(rebuild_shared_tensor(*plain), conj, neg), plain[0], requires_grad)


def _lazy(tensor: torch.Tensor, conj: bool, neg: bool) -> torch.Tensor:
    import torch

    tensor = torch.conj(tensor) if conj else tensor
    return _torch_names.neg_view(tensor) if neg else tensor


def _on_storage(
    storage: torch.UntypedStorage, dtype: torch.dtype, offset: int, size: Sequence[int], stride: Sequence[int]
) -> Any:
    import torch

    return torch.empty(0, dtype=dtype, device=storage.device).set_(storage, offset, size, stride)


def _finish(tensor: torch.Tensor, tensor_cls: type, requires_grad: bool) -> Any:
    import torch

    if tensor_cls is torch.nn.Parameter:
        # Its constructor requires a gradient by default, which integers cannot have.
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    tensor.requires_grad = requires_grad
    return tensor


def reduce_sparse_tensor(sparse: torch.Tensor) -> tuple[Any, ...]:
    """Reduces a sparse tensor (layouts coo, csr, csc, bsr and bsc) to its indices and values."""
    import torch

    if sparse.layout is torch.sparse_coo:
        return rebuild_sparse_coo_tensor, (
            *_reduce_all(_torch_names.sparse_coo_parts(sparse)),
            sparse.shape,
            sparse.is_coalesced(),
        )
    if sparse.layout in (torch.sparse_csr, torch.sparse_bsr):
        parts = (sparse.crow_indices(), sparse.col_indices(), sparse.values())
    elif sparse.layout in (torch.sparse_csc, torch.sparse_bsc):
        parts = (sparse.ccol_indices(), sparse.row_indices(), sparse.values())
    else:
        raise NotImplementedError(f"tensors of layout {sparse.layout} cannot be shared")
    return rebuild_sparse_compressed_tensor, (*_reduce_all(parts), sparse.shape, sparse.layout)


def rebuild_sparse_coo_tensor(*arguments: Any) -> Any:
    """Returns a sparse tensor of layout coo from the arguments of reduce_sparse_tensor()."""
    import torch

    *reduced, shape, is_coalesced = arguments
    indices, values = _rebuild_all(reduced)
    # The sender has checked the invariants if it wanted to. torch warns without an explicit argument.
    return torch.sparse_coo_tensor(indices, values, shape, is_coalesced=is_coalesced, check_invariants=False)


def rebuild_sparse_compressed_tensor(*arguments: Any) -> Any:
    """Returns a sparse tensor of a compressed layout from the arguments of reduce_sparse_tensor()."""
    import torch

    *reduced, shape, layout = arguments
    return torch.sparse_compressed_tensor(*_rebuild_all(reduced), shape, layout=layout, check_invariants=False)


def _reduce_all(tensors: Iterable[torch.Tensor]) -> tuple[Any, ...]:
    """Returns the functions and arguments of several tensors, one after the other."""
    return tuple(item for tensor in tensors for item in reduce_tensor(tensor))


def _rebuild_all(reduced: Sequence[Any]) -> list[Any]:
    return [rebuild(*arguments) for rebuild, arguments in zip(reduced[::2], reduced[1::2])]
