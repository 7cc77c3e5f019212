# SPDX-License-Identifier: Apache-2.0
"""CPU memory that GPUs use, and copies to GPUs and back. Private: import the names from ``onecopy``."""

from __future__ import annotations

from .. import _core
from ..errors import InvalidArgument

TYPE_CHECKING = False  # importing typing would cost time
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def pin(value: Any, device: Any = None) -> Any:
    """Pins CPU memory for the GPUs of this process: copies of it run at the speed of the link, and
    do not block the caller.

    Torch's ``tensor.is_pinned()`` is true then, and ``tensor.to("cuda", non_blocking=True)``
    returns at once. Other processes pin the same memory for themselves; nothing is copied. A torch
    tensor outside shared memory moves there first, as with ``share()``. Released memory is reused
    only after the GPUs have finished the work that was queued at that time. Memory is pinned in
    pieces of 64 MiB, and stays pinned for later tensors until ``unpin()``, ``trim()``, or until
    the limit needs the room.

    Args:
        value: a tensor of onecopy or torch, a Bundle, a ``torch.nn.Module``, or a mapping, list or
            tuple of them. Tensors in it that are on devices are left as they are.
        device: the GPU whose driver pins the memory, e.g. "cuda:1"; None for a GPU that this
            process uses already. Every GPU can use the pinned memory.

    Returns:
        The value.

    Raises:
        InvalidArgument: value is or contains an object without memory, and the error is a TypeError,
            too; or the memory belongs to another library or a device.
        Unsupported: a tensor of torch has no memory of its own, this process sees no GPU, or the
            driver cannot pin this memory.
        OutOfMemory: the limit ``ONECOPY_PIN_LIMIT``, by default half of the machine's memory, is
            reached.
    """
    if not _core._pin(value, device):
        raise InvalidArgument("value contains no tensor on the cpu that could be pinned")
    return value


_pin = pin  # load() has an argument of this name


def unpin(value: Any) -> None:
    """Undoes ``pin()`` for the tensors of ``value``. Memory that other tensors of this process share stays
    pinned. Waits for the GPUs' work. No other thread may copy the tensors during the call."""
    _core._unpin(value)


def is_pinned(value: Any) -> bool:
    """Returns whether onecopy has pinned ``value``, or every tensor that it contains, in this process."""
    return _core._is_pinned(value)


def to_device(value: Any, device: Any, stream: Any = None) -> Any:
    """Copies all tensors of a value to a device, into memory that other processes can open::

        weights = onecopy.open(handle, framework="torch", pin=True)
        there = onecopy.to_device(weights, "cuda:0")

    Neighbouring tensors are copied together, at the speed of the link if the memory is pinned.
    Memory of 32 MiB or more is pinned by this call, see ``pin()``; memory of a stored version that
    cannot be pinned in place goes through a ring of pinned memory. Copies from a GPU to ``"cpu"``
    lie in pinned memory, and are complete on return.

    Args:
        value: a tensor of onecopy or torch, a Bundle, or a mapping, list or tuple of them. Plain
            values are returned unchanged.
        device: "cuda:0", "npu:0", "cpu", or a ``torch.device``.
        stream: the stream that orders the copies: a stream of torch or cupy, or its number; None
            for the current stream.

    Returns:
        The value with its tensors on the device. Each tensor belongs to the same library as before;
        a mapping becomes a dict.

    Raises:
        InvalidArgument: value is or contains an object that is neither a tensor nor a plain value, and
            the error is a TypeError, too; or the memory belongs to another library or to another GPU.
        Unsupported: a tensor of torch is not dense or its elements are not plain numbers, or this
            process sees no such device.
        OutOfMemory: the device has too little memory.
    """
    return _core._to_device(value, device, stream)[0]


def load(
    path: Any,
    device: Any = "cpu",
    *,
    pin: bool = False,
    framework: Any = None,
    progress: Callable[[int, int], object] | None = None,
    store: str | None = None,
) -> dict[str, Any]:
    """Loads all tensors of a safetensors file, or of a directory of files, into shared memory of a device.

    A load to a GPU goes through a small ring of pinned memory: threads fill the ring from the page
    cache, or by direct reads, while the GPU copies. No other CPU memory is used.

    Args:
        path: the file or directory, as in ``load_safetensors()``, which does the work for the cpu.
        device: "cpu", "cuda:0", "npu:0", or a ``torch.device``.
        pin: pins the memory for GPUs, see ``pin()``; for the cpu only.
        framework: None for tensors of onecopy, or "torch" or "numpy".
        progress: called from time to time with the bytes done and the bytes in all. Its exceptions
            end the loading, and so do those of a signal handler: Ctrl-C ends it at once.
        store: the name of an object of ``onecopy.store``, from which the tensors are opened,
            read-only. The first process reads the files and publishes them, and so does the first
            one after a file has changed.

    Returns:
        The tensors by name. ``share()`` makes handles of them for other processes.

    Raises:
        BadFile, FileNotFoundError, InvalidArgument, Unsupported, System: as in
            ``load_safetensors()``.
        OutOfMemory: the device has too little memory, or the limit of ``pin()`` is reached.
    """
    if store is not None:
        return _load_from_store(store, path, device, pin, framework, progress)
    tensors: dict[str, Any] = _core._load(path, device, framework, progress)
    return _pin(tensors) if pin and tensors and str(device) == "cpu" else tensors


def _load_from_store(
    name: str, path: Any, device: Any, pin: bool, framework: Any, progress: Callable[[int, int], object] | None
) -> dict[str, Any]:
    from .. import store

    if pin:
        raise InvalidArgument("memory of the store is not pinned; leave out pin= or store=")
    keeper = store.connect(framework=framework or "onecopy")
    key = {"files": _state_of(path), "device": str(device)}
    version = keeper.open_or_publish(name, lambda: _core._load(path, device, None, progress), key=key)
    return dict(version)


def _state_of(path: Any) -> str:
    """Returns a text that changes when the file, or a safetensors file of the directory, changes."""
    import os
    import pathlib

    place = pathlib.Path(os.fsdecode(path)).resolve()
    files = sorted(place.glob("*.safetensors")) if place.is_dir() else [place]
    times = (f"{file.name} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files)
    return "\n".join([str(place), *times])


def view_on(value: Any, device: Any) -> Any:
    """Returns tensors of a GPU that use the CPU memory of ``value``. The GPU reads and writes the
    memory over the link, and nothing is copied::

        experts = onecopy.open(handle, framework="torch")
        y = x @ onecopy.view_on(experts["expert.7"], "cuda:0")

    Use it for tensors that are read once or seldom, or that do not fit on the GPU. The call pins
    memory that is not pinned. A view keeps the memory alive. After the last view is released, the
    memory is reused only when the GPU has finished the work that was queued at that time. Each side
    sees the other's writes after it has synchronized. A view cannot be shared: share the tensor that
    it is a view of.

    Args:
        value: a tensor of onecopy or torch, a Bundle, or a mapping, list or tuple of them, on the cpu.
            Plain values are returned unchanged.
        device: "cuda:0", "npu:0", or a ``torch.device``.

    Returns:
        The value with tensors on the device, without gradients. Each tensor belongs to the same
        library as before; a mapping becomes a dict.

    Raises:
        InvalidArgument: value is or contains an object that is neither a tensor nor a plain value, and
            the error is a TypeError, too; or the memory belongs to another library or to a GPU, or
            there is no such device.
        Unsupported: a tensor of torch is not dense or its elements are not plain numbers, this process
            sees no GPU, or its GPU cannot access CPU memory.
        OutOfMemory: the limit of ``pin()`` is reached.
    """
    return _core._view_on(value, device)
