# SPDX-License-Identifier: Apache-2.0
"""Pickles tensors and storages for another process: as a handle, never as their bytes.

The functions have the names and results of ``torch.multiprocessing.reductions``: each returns ``(rebuild, arguments)``,
where ``rebuild(*arguments)`` makes the object in the other process, on the same memory. The arguments may be sent by
any means. The object can be rebuilt once, while this process lives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from .. import _core
from ..errors import InvalidArgument, Unsupported
from ..pickling.holds import held, held_object, let_last, tie_to_child
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
    "rebuild_shared_tensor",
    "rebuild_sparse_compressed_tensor",
    "rebuild_sparse_coo_tensor",
    "rebuild_storage",
    "rebuild_storage_empty",
    "rebuild_typed_storage",
    "rebuild_typed_storage_child",
    "rebuild_unusual_tensor",
    "reduce_event",
    "reduce_sparse_tensor",
    "reduce_storage",
    "reduce_tensor",
    "reduce_typed_storage",
    "reduce_typed_storage_child",
]

# The device types whose memory is sent by handle from any allocator, and the types that need memory of onecopy.
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
    """Returns the other names of torch.multiprocessing.reductions."""
    if name.startswith("__") or not has_torch():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from torch.multiprocessing import reductions

    return getattr(reductions, name)


# --- tensors ----------------------------------------------------------------------------------------


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
    if not _is_carried(tensor.device, tensor.untyped_storage):
        return originals.reduce_tensor(tensor)
    return _reduce_shared_tensor(tensor)


def _is_carried(device: torch.device, storage: Callable[[], torch.UntypedStorage]) -> bool:
    """Returns whether the storage is sent by handle. torch sends the others its own way."""
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
    """Returns the tensor that reduce_tensor() reduced, on the same memory.

    Raises:
        onecopy.StaleHandle: the tensor was rebuilt before, or collect() ended its hold, and its memory was freed.
        onecopy.OwnerDied: the process that reduced it has ended, and no other process holds the memory.
        onecopy.Unsupported: the memory cannot be opened on this device, or torch cannot use it in this process.
    """
    del storage_cls, ref_counter_handle, event_handle, event_sync_required
    device = _device_asked(storage_handle, storage_device, named=ref_counter_offset)
    storage = _open_storage(storage_handle, storage_size_bytes, device)
    offset = storage_offset_bytes // dtype.itemsize + tensor_offset
    tensor = _on_storage(storage, dtype, offset, tensor_size, tensor_stride)
    return _finish(tensor, tensor_cls, requires_grad)


def _device_asked(handle: bytes | None, asked: int | str, named: int) -> str | None:
    """Returns the device to open on, or None for the device of the memory, to which the sender gave the number
    `named`."""
    ordinal = _ordinal_of(asked) if isinstance(asked, str) else asked
    if handle is None:  # an empty tensor on a device, which is CUDA
        return f"cuda:{ordinal}"
    if asked == named:
        return None
    return f"{_core.Handle.from_bytes(handle).device_type}:{ordinal}"


def _ordinal_of(uuid: str) -> int:
    """Returns the number of a card in this process. Engines write a UUID to index 6 if processes number cards
    differently."""
    import torch

    for ordinal in range(torch.cuda.device_count()):
        if str(torch.cuda.get_device_properties(ordinal).uuid) == uuid.removeprefix("GPU-"):
            return ordinal
    raise Unsupported(f"no CUDA device of this process has the UUID {uuid}; CUDA_VISIBLE_DEVICES may hide it")


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


# --- tensors made of tensors ------------------------------------------------------------------------


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


# --- storages ---------------------------------------------------------------------------------------


def reduce_storage(storage: torch.UntypedStorage) -> tuple[Any, ...]:
    """Reduces a whole storage to a handle for another process.

    Returns:
        ``(rebuild, arguments)``. There are three arguments with the strategy ``file_descriptor`` and four with
        ``file_system``, as with torch, so that torch's rebuild_storage_fd() and rebuild_storage_filename() accept them.

    Raises:
        RuntimeError: the storage lies on ``meta`` or on a device that onecopy does not support.
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
    """Returns the storage that reduce_storage() reduced. The same memory yields the same object in this process."""
    del storage_cls
    *_, handle, size_bytes = named
    return _open_storage(bytes(handle), size_bytes)


def rebuild_storage_empty(cls: Callable[[], Any]) -> Any:
    """Returns an empty storage, for which there is nothing to share."""
    return cls()


def reduce_typed_storage(storage: torch.TypedStorage) -> tuple[Any, ...]:
    """Reduces a typed storage to its untyped storage and its dtype."""
    return rebuild_typed_storage, (_torch_names.untyped_storage(storage), storage.dtype)


def rebuild_typed_storage(storage: torch.UntypedStorage, dtype: torch.dtype) -> Any:
    """Returns a typed storage on the same memory."""
    import torch

    return _torch_names.typed_storage(torch.TypedStorage, storage, dtype=dtype)


def reduce_typed_storage_child(storage: torch.TypedStorage) -> tuple[Any, ...]:
    """Reduces a storage of an old typed class, e.g. torch.FloatStorage."""
    return rebuild_typed_storage_child, (_torch_names.untyped_storage(storage), type(storage))


def rebuild_typed_storage_child(storage: torch.UntypedStorage, storage_type: type) -> Any:
    """Returns a storage of an old typed class on the same memory."""
    return _torch_names.typed_storage(storage_type, storage)


# --- torch's own rebuild functions, called with onecopy's arguments ---------------------------------

_MAGIC = b"1COPY\0"  # the first bytes of a handle


def _rebuild(name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Replaces torch's function `name`: rebuilds from onecopy's arguments, and passes other arguments to torch."""
    rebuild = _ours_for(name, arguments) or getattr(originals, name)
    return rebuild(*arguments, **named)


def _ours_for(name: str, arguments: tuple[Any, ...]) -> Callable[..., Any] | None:
    """Returns onecopy's function if the arguments contain a handle in place of a storage, descriptor or file name."""
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
    """The storage class among the arguments of a tensor on a device, in place of torch's ``TypedStorage``.

    torch's rebuild_cuda_tensor() calls the class to open the handle, also in a process that has not imported onecopy:
    unpickling the class imports the package, or raises ModuleNotFoundError if onecopy is not installed.
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
        """Returns a storage that begins where the sender's does. rebuild_shared_tensor() opens the whole block."""
        block = _core.open(handle, _device_asked(handle, device, named))
        if offset_bytes == 0:
            return _core.torch_open_storage(block)
        import torch

        return torch.from_dlpack(block[offset_bytes : offset_bytes + size_bytes]).untyped_storage()

    @staticmethod
    def _release_ipc_counter(*_arguments: Any, **_named: Any) -> None:
        """Does nothing. torch calls it for a storage in its cache, but onecopy has no counter to release."""


class StorageHandle(bytes):
    """The bytes of a handle in place of a descriptor or file name. Functions of torch that open a StorageHandle raise
    Unsupported."""

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
    """Returns a handle of the block that contains a storage, and the storage's offset in the block in bytes."""
    if not storage.nbytes():
        return None, 0
    block, begin = _core.torch_share_block(storage)
    if begin % dtype.itemsize:
        raise Unsupported(
            f"this tensor begins {begin} bytes into a block of onecopy, in the middle of an element of {dtype}, and "
            "torch cannot open it; share a clone() of it"
        )
    return held(block), begin


def _open_storage(handle: bytes | None, size: int, device: str | None = None) -> torch.UntypedStorage:
    if handle is None:
        import torch

        return torch.UntypedStorage(size, device=device)
    return _core.torch_open_storage(_core.open(handle, device))


# --- other things -----------------------------------------------------------------------------------


def reduce_event(event: torch.cuda.Event) -> tuple[Any, ...]:
    """Reduces an event made with ``interprocess=True``, and keeps the event until it is rebuilt."""
    if not installed():
        return _torch_names.of_reductions("reduce_event")(event)
    handle = event.ipc_handle()
    return rebuild_event, (event.device, handle, held_object(event), type(event))


def rebuild_event(device: Any, handle: bytes, hold: bytes | None = None, event_cls: Any = None) -> Any:
    """Returns the event of another process, and lets the other process release it. The default class is CUDA's."""
    import torch

    try:
        return (event_cls or torch.cuda.Event).from_ipc_handle(device, handle)
    finally:
        if hold is not None:
            _core._end_hold(hold)


def _reduce_own(thing: _core.Tensor | _core.Handle | _core.Queue) -> tuple[Any, ...]:
    """Reduces an object of onecopy to a handle whose hold lasts until it is opened, or until a child being started has
    ended."""
    rebuild, arguments = cast(Any, thing._reduce_handle() if isinstance(thing, _core.Tensor) else thing.__reduce__())
    let_last(arguments[0])
    return rebuild, arguments


REDUCERS: dict[type, Callable[[Any], Any]] = dict.fromkeys((_core.Handle, _core.Tensor, _core.Queue), _reduce_own)
