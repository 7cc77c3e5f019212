# SPDX-License-Identifier: Apache-2.0
"""Reduces storages to handles, and opens the storages of handles."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import _core
from ..errors import Unsupported
from ..pickling.holds import held
from . import _torch_names
from ._state import installed, originals
from .strategies import get_sharing_strategy

if TYPE_CHECKING:
    import torch

# The device types whose memory is sent by handle from any allocator, and the types that need memory of onecopy.
_CARRIED = ("cpu", "cuda")
_CARRIED_IF_OURS = ("npu",)


def is_carried(device: torch.device, storage: Callable[[], torch.UntypedStorage]) -> bool:
    """Returns whether the storage is sent by handle. torch sends the others its own way."""
    if device.type in _CARRIED_IF_OURS:
        return _core.torch_is_shared(storage())
    return device.type in _CARRIED


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
    if not is_carried(storage.device, lambda: storage):
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
    return open_storage(bytes(handle), size_bytes)


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


def device_asked(handle: bytes | None, asked: int | str, named: int) -> str | None:
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
        block = _core._open_as_lent(handle, device_asked(handle, device, named))
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


def block_handle(storage: torch.UntypedStorage, dtype: torch.dtype) -> tuple[bytes | None, int]:
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


def open_storage(handle: bytes | None, size: int, device: str | None = None) -> torch.UntypedStorage:
    if handle is None:
        import torch

        return torch.UntypedStorage(size, device=device)
    return _core.torch_open_storage(_core._open_as_lent(handle, device))
