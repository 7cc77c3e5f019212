# SPDX-License-Identifier: Apache-2.0
"""How tensors and storages are pickled for another process: as a handle, never as their bytes.

The functions have the names and results of ``torch.multiprocessing.reductions``: each gives
``(rebuild, arguments)``, where ``rebuild(*arguments)`` makes the object in the other process, on the same
memory. The arguments may be taken apart and sent by any means; they can be rebuilt once, while this process
lives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from .. import _core
from .._holds import held, held_object, let_last, tie_to_child
from ..errors import InvalidArgument, Unsupported
from . import _torch_names
from ._state import has_torch, installed, originals
from .strategies import get_sharing_strategy

if TYPE_CHECKING:
    import torch

__all__ = [
    "SharedStorage",
    "rebuild_cpu_tensor",
    "rebuild_event",
    "rebuild_lazy_tensor",
    "rebuild_meta_tensor",
    "rebuild_nested_tensor",
    "rebuild_shared_tensor",
    "rebuild_sparse_compressed_tensor",
    "rebuild_sparse_coo_tensor",
    "rebuild_storage",
    "rebuild_storage_empty",
    "rebuild_typed_storage",
    "rebuild_typed_storage_child",
    "rebuild_unusual_tensor",
    "reduce_event",
    "reduce_nested_tensor",
    "reduce_sparse_tensor",
    "reduce_storage",
    "reduce_tensor",
    "reduce_typed_storage",
    "reduce_typed_storage_child",
]

# Devices whose memory travels by handle from any allocator, and those where it must be onecopy's.
_CARRIED = ("cpu", "cuda")
_CARRIED_IF_OURS = ("npu",)

# The message is torch's own: programs look for it.
_NON_LEAF = (
    "Cowardly refusing to serialize non-leaf tensor which requires_grad, "
    "since autograd does not support crossing process boundaries.  "
    "If you just want to transfer the data, call detach() on the tensor "
    "before serializing (e.g., putting it on the queue)."
)


def __getattr__(name: str) -> Any:
    """The rest of torch.multiprocessing.reductions, as it is."""
    if name.startswith("__") or not has_torch():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from torch.multiprocessing import reductions

    return getattr(reductions, name)


# --- tensors ----------------------------------------------------------------------------------------


def reduce_tensor(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Names a tensor for another process.

    Returns:
        ``(rebuild, arguments)``. For strided tensors of devices these are at least 15, in the order of torch's CUDA
        tensors: class, size, stride, offset (elements), storage class, dtype, device ordinal, handle,
        storage size and offset in its block (bytes), requires_grad, and four that torch needs for its own bookkeeping.
        torch's rebuild_cuda_tensor() takes them, too, if none of ``is_conj()`` and ``is_neg()`` holds.
        ``arguments[6]`` is the device to open on, as the opener numbers them, or its UUID as a str; left as it is,
        the memory is opened where it is, whatever number that has there. For tensors of the CPU they are three, as
        torch's are, so that programs that look at index 6 leave them alone: class, handle, and the rest.

    Raises:
        RuntimeError: the tensor is part of an autograd graph.
        onecopy.OutOfMemory: its storage is not shared yet and there is no room for it.
        onecopy.Unsupported: it lies in a block of onecopy, in the middle of an element.
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
        return reduce_nested_tensor(tensor)
    if tensor.layout not in (torch.strided, torch.jagged):
        return reduce_sparse_tensor(tensor)
    if tensor.layout is torch.jagged or tensor.is_quantized:
        return tensor.__reduce_ex__(2)  # made of tensors and storages, which come back here
    if tensor.device.type == "meta":
        return _reduce_meta_tensor(tensor)
    if not _is_carried(tensor.device, tensor.untyped_storage):
        return originals.reduce_tensor(tensor)
    return _reduce_shared_tensor(tensor)


def _is_carried(device: torch.device, storage: Callable[[], torch.UntypedStorage]) -> bool:
    """Does it travel by handle? Other tensors go torch's own way."""
    if device.type in _CARRIED_IF_OURS:
        return _core.torch_is_shared(storage())
    return device.type in _CARRIED


def _reduce_shared_tensor(tensor: torch.Tensor) -> tuple[Any, ...]:
    storage = tensor.untyped_storage()
    handle, begin = _block_handle(storage, tensor.dtype)
    bits = (tensor.is_conj(), tensor.is_neg())
    if tensor.device.type == "cpu":
        metadata = (tensor.storage_offset(), tensor.size(), tensor.stride(), tensor.requires_grad, tensor.dtype, *bits)
        return rebuild_unusual_tensor, (type(tensor), (handle, storage.nbytes(), begin), metadata)
    arguments = _device_arguments(tensor, handle, begin)
    if any(bits):
        return rebuild_lazy_tensor, arguments + bits
    return rebuild_shared_tensor, arguments


def _device_arguments(tensor: torch.Tensor, handle: bytes | None, begin: int) -> tuple[Any, ...]:
    """Returns arguments of rebuild_shared_tensor(), in the order of torch's rebuild_cuda_tensor()."""
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
    """The tensor of the CPU that reduce_tensor() named, on the same memory. Raises as rebuild_shared_tensor()."""
    del tensor_cls  # the flags say it: a Parameter or a Tensor
    return _core.torch_open(_core.open(handle), flags)


def rebuild_unusual_tensor(tensor_cls: type, storage: tuple[Any, ...], metadata: tuple[Any, ...]) -> Any:
    """As rebuild_cpu_tensor(), for subclasses, tensors with hooks, and dtypes that handles have no number for."""
    handle, size_bytes, begin = storage
    offset, size, stride, requires_grad, dtype, conj, neg = metadata
    offset += begin // dtype.itemsize
    opened = _open_storage(handle, size_bytes, "cpu" if handle is None else None)
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
    """The tensor that reduce_tensor() named, on the same memory.

    Raises:
        onecopy.StaleHandle: it was rebuilt before, or collect() gave it up, and its memory is free.
        onecopy.OwnerDied: the process that named it is gone and no other process holds the memory.
        onecopy.Unsupported: the memory cannot be opened on that device, or torch cannot use it here.
    """
    del storage_cls, ref_counter_handle, event_handle, event_sync_required
    device = _device_asked(storage_handle, storage_device, named=ref_counter_offset)
    storage = _open_storage(storage_handle, storage_size_bytes, device)
    offset = storage_offset_bytes // dtype.itemsize + tensor_offset
    tensor = _on_storage(storage, dtype, offset, tensor_size, tensor_stride)
    return _finish(tensor, tensor_cls, requires_grad)


def _device_asked(handle: bytes | None, asked: int | str, named: int) -> str | None:
    """Returns the device to open on; None: the device of the memory, which the sender numbered `named`."""
    ordinal = _ordinal_of(asked) if isinstance(asked, str) else asked
    if handle is None:  # no elements, so not onecopy's memory: one of _CARRIED
        return f"cuda:{ordinal}"
    if asked == named:
        return None
    return f"{_core.Handle.from_bytes(handle).device_type}:{ordinal}"


def _ordinal_of(uuid: str) -> int:
    """Returns this process's number of a card. Engines write its UUID to index 6 where numbers differ."""
    import torch

    for ordinal in range(torch.cuda.device_count()):
        if str(torch.cuda.get_device_properties(ordinal).uuid) == uuid.removeprefix("GPU-"):
            return ordinal
    raise Unsupported(f"no CUDA device of this process has the UUID {uuid}; CUDA_VISIBLE_DEVICES may hide it")


def rebuild_lazy_tensor(*arguments: Any) -> Any:
    """A tensor whose elements are to be read conjugated or negated: 15 arguments and the two bits."""
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
        # Its constructor wants to know: integers can have no gradient, and its default is that they have.
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    tensor.requires_grad = requires_grad
    return tensor


def _reduce_meta_tensor(tensor: torch.Tensor) -> tuple[Any, ...]:
    return rebuild_meta_tensor, (
        type(tensor),
        tensor.size(),
        tensor.stride(),
        tensor.storage_offset(),
        tensor.dtype,
        tensor.untyped_storage().size(),
        tensor.requires_grad,
    )


def rebuild_meta_tensor(
    tensor_cls: type,
    tensor_size: Sequence[int],
    tensor_stride: Sequence[int],
    tensor_offset: int,
    dtype: torch.dtype,
    storage_size_bytes: int,
    requires_grad: bool,
) -> Any:
    """A tensor without elements."""
    import torch

    storage = torch.UntypedStorage(storage_size_bytes, device="meta")
    tensor = _on_storage(storage, dtype, tensor_offset, tensor_size, tensor_stride)
    return _finish(tensor, tensor_cls, requires_grad)


# --- tensors made of tensors ------------------------------------------------------------------------


def reduce_nested_tensor(nt: torch.Tensor) -> tuple[Any, ...]:
    """A nested tensor (strided layout) as its buffer and three tensors that describe the parts."""
    return rebuild_nested_tensor, _reduce_all(_torch_names.nested_parts(nt))


def rebuild_nested_tensor(*reduced: Any) -> Any:
    """A nested tensor from the arguments of reduce_nested_tensor()."""
    return _torch_names.nested_tensor(_rebuild_all(reduced))


def reduce_sparse_tensor(sparse: torch.Tensor) -> tuple[Any, ...]:
    """A sparse tensor as its indices and values; layouts: coo, csr, csc, bsr, bsc."""
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
    """A sparse tensor of layout coo from the arguments of reduce_sparse_tensor()."""
    import torch

    *reduced, shape, is_coalesced = arguments
    indices, values = _rebuild_all(reduced)
    # The sender has chosen whether to check. The argument is explicit, or torch warns.
    return torch.sparse_coo_tensor(indices, values, shape, is_coalesced=is_coalesced, check_invariants=False)


def rebuild_sparse_compressed_tensor(*arguments: Any) -> Any:
    """A sparse tensor of a compressed layout from the arguments of reduce_sparse_tensor()."""
    import torch

    *reduced, shape, layout = arguments
    return torch.sparse_compressed_tensor(*_rebuild_all(reduced), shape, layout=layout, check_invariants=False)


def _reduce_all(tensors: Iterable[torch.Tensor]) -> tuple[Any, ...]:
    """Functions and arguments of several tensors, one after the other."""
    return tuple(item for tensor in tensors for item in reduce_tensor(tensor))


def _rebuild_all(reduced: Sequence[Any]) -> list[Any]:
    return [rebuild(*arguments) for rebuild, arguments in zip(reduced[::2], reduced[1::2])]


# --- storages ---------------------------------------------------------------------------------------


def reduce_storage(storage: torch.UntypedStorage) -> tuple[Any, ...]:
    """Names a whole storage for another process.

    Returns:
        ``(rebuild, arguments)``: as many arguments as torch gives, three with the strategy ``file_descriptor`` and
        four with ``file_system``, so that torch's rebuild_storage_fd() and rebuild_storage_filename() take them.

    Raises:
        RuntimeError: it lies on ``meta`` or on a device that onecopy does not know.
    """
    if not installed():
        from torch.multiprocessing.reductions import reduce_storage

        return reduce_storage(storage)
    if not _is_carried(storage.device, lambda: storage):
        return originals.reduce_storage(storage)
    if storage.nbytes() == 0:
        return rebuild_storage_empty, (type(storage),)
    handle = StorageHandle(held(_core.torch_share_storage(storage)))
    no_manager = (b"",) if get_sharing_strategy() == "file_system" else ()
    return rebuild_storage, (type(storage), *no_manager, handle, storage.nbytes())


def rebuild_storage(storage_cls: type, *named: Any) -> Any:
    """The storage that reduce_storage() named; the same object for the same memory in this process."""
    del storage_cls
    *_, handle, size_bytes = named
    return _open_storage(bytes(handle), size_bytes)


def rebuild_storage_empty(cls: Callable[[], Any]) -> Any:
    """A storage of no bytes: there is nothing to share."""
    return cls()


def reduce_typed_storage(storage: torch.TypedStorage) -> tuple[Any, ...]:
    """A storage that knows its dtype."""
    return rebuild_typed_storage, (_torch_names.untyped_storage(storage), storage.dtype)


def rebuild_typed_storage(storage: torch.UntypedStorage, dtype: torch.dtype) -> Any:
    """A storage that knows its dtype, on the same memory."""
    import torch

    return _torch_names.typed_storage(torch.TypedStorage, storage, dtype=dtype)


def reduce_typed_storage_child(storage: torch.TypedStorage) -> tuple[Any, ...]:
    """A storage of one of the old classes, such as torch.FloatStorage."""
    return rebuild_typed_storage_child, (_torch_names.untyped_storage(storage), type(storage))


def rebuild_typed_storage_child(storage: torch.UntypedStorage, storage_type: type) -> Any:
    """A storage of one of the old classes, on the same memory."""
    return _torch_names.typed_storage(storage_type, storage)


# --- torch's own rebuild functions, given our arguments ---------------------------------------------

_MAGIC = b"1COPY\0"  # the first bytes of a handle


def _rebuild(name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Stands in for torch's function of that name: opens onecopy's arguments, and passes others to torch."""
    rebuild = _ours_for(name, arguments) or getattr(originals, name)
    return rebuild(*arguments, **named)


def _ours_for(name: str, arguments: tuple[Any, ...]) -> Callable[..., Any] | None:
    """Returns onecopy's function if the arguments have a handle in place of torch's storages, descriptors and names."""
    place = _PLACES[name]
    named = arguments[place] if len(arguments) > place else None
    if isinstance(named, tuple) and named and (named[0] is None or _is_handle(named[0])):
        return rebuild_unusual_tensor
    return _REBUILDERS[name] if _is_handle(named) else None


_PLACES = {"rebuild_tensor": 1, "rebuild_cuda_tensor": 7, "rebuild_storage_fd": 1, "rebuild_storage_filename": 2}
_REBUILDERS: dict[str, Callable[..., Any]] = {
    "rebuild_tensor": rebuild_cpu_tensor,
    "rebuild_cuda_tensor": rebuild_shared_tensor,
    "rebuild_storage_fd": rebuild_storage,
    "rebuild_storage_filename": rebuild_storage,
}


def _is_handle(value: Any) -> bool:
    return isinstance(value, bytes) and value.startswith(_MAGIC)


class SharedStorage:
    """The storage class among the arguments of a tensor of a device, where torch has ``TypedStorage``.

    torch's rebuild_cuda_tensor() has it open the handle, also in a process that has not imported this package: the
    class is pickled by its name, so that unpickling the arguments imports the package. Without onecopy over there
    unpickling them raises ModuleNotFoundError.
    """

    @staticmethod
    def _new_shared_cuda(
        device: int | str,
        handle: bytes,
        size_bytes: int,
        offset_bytes: int,
        _ref_counter_handle: bytes,
        named: int,
        *_event: Any,
    ) -> Any:
        """A storage that begins where the sender's does; rebuild_shared_tensor() takes the whole block's instead."""
        block = _core.open(handle, _device_asked(handle, device, named))
        if offset_bytes == 0:
            return _core.torch_open_storage(block)
        import torch

        return torch.from_dlpack(block[offset_bytes : offset_bytes + size_bytes]).untyped_storage()

    @staticmethod
    def _release_ipc_counter(*_arguments: Any, **_named: Any) -> None:
        """Does nothing: torch found the storage in its cache, and there is no counter to release."""


class StorageHandle(bytes):
    """The bytes of a handle where torch has a descriptor or a name: its own functions cannot open it and say so."""

    def detach(self) -> int:
        """Raises Unsupported. torch's rebuild_storage_fd() calls it first."""
        raise Unsupported(_NOT_INSTALLED)

    def __hash__(self) -> int:
        """Raises Unsupported. torch's rebuild_storage_filename() calls it first."""
        raise Unsupported(_NOT_INSTALLED)


_NOT_INSTALLED = (
    "this storage was sent by onecopy: import onecopy.multiprocessing in the process that opens it, without "
    "ONECOPY_DISABLE, or call the function that came with the arguments"
)


def _block_handle(storage: torch.UntypedStorage, dtype: torch.dtype) -> tuple[bytes | None, int]:
    """The whole block that a storage lies in, and the byte where the storage begins in there."""
    if not storage.nbytes():
        return None, 0
    block, begin = _core.torch_share_block(storage)
    if begin % dtype.itemsize:
        raise Unsupported(
            f"this tensor begins in the middle of an element of {dtype}, {begin} bytes into a block of onecopy, "
            "where torch can open none; share a clone() of it"
        )
    return held(block), begin


def _open_storage(handle: bytes | None, size: int, device: str | None = None) -> torch.UntypedStorage:
    if handle is None:
        import torch

        return torch.UntypedStorage(size, device=device)
    return _core.torch_open_storage(_core.open(handle, device))


# --- other things -----------------------------------------------------------------------------------


def reduce_event(event: torch.cuda.Event) -> tuple[Any, ...]:
    """An event made with ``interprocess=True``. It is kept until it is rebuilt."""
    if not installed():
        return _torch_names.of_reductions("reduce_event")(event)
    handle = event.ipc_handle()
    return rebuild_event, (event.device, handle, held_object(event), type(event))


def rebuild_event(device: Any, handle: bytes, hold: bytes | None = None, event_cls: Any = None) -> Any:
    """The event that another process made, which need not keep it any more; a CUDA event without a class."""
    import torch

    try:
        return (event_cls or torch.cuda.Event).from_ipc_handle(device, handle)
    finally:
        if hold is not None:
            _core._end_hold(hold)


def _reduce_own(thing: _core.Tensor | _core.Handle | _core.Queue) -> tuple[Any, ...]:
    """A handle, as channels get it, with a hold that lasts. For a child that is being started the hold ends with
    it."""
    rebuild, arguments = cast(Any, thing._reduce_handle() if isinstance(thing, _core.Tensor) else thing.__reduce__())
    let_last(arguments[0])
    return rebuild, arguments


REDUCERS = {_core.Handle: _reduce_own, _core.Tensor: _reduce_own, _core.Queue: _reduce_own}
