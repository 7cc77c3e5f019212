# SPDX-License-Identifier: Apache-2.0
"""The changes of importing onecopy.multiprocessing in torch and in the standard library, and their undoing.

docs/reference/patches.md lists every change. Functions that other libraries may have imported by name are changed in
place (their ``__code__``), so the order of imports does not matter.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import threading
import types
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

from .. import _core
from ..errors import Unsupported
from . import _torch_names

__all__ = ["install", "installed", "uninstall"]

_lock = threading.RLock()
_undo: list[Callable[[], None]] = []
_installed = False


@functools.cache
def has_torch() -> bool:
    """Whether PyTorch is there to be imported."""
    return importlib.util.find_spec("torch") is not None


if has_torch():  # before anything is changed
    _torch_names.check_version()


def disabled() -> bool:
    """Whether the environment asks us to leave everything as it is."""
    return os.environ.get("ONECOPY_DISABLE", "") not in ("", "0")


def installed() -> bool:
    """Whether tensors travel by handle: install() was called and uninstall() was not."""
    return _installed


def install() -> bool:
    """Makes torch and the standard library carry tensors by handle; a second call changes nothing.

    Returns:
        False, and says so in the log, when the environment has ``ONECOPY_DISABLE=1``.
    """
    global _installed
    if disabled():
        logging.getLogger("onecopy").warning(
            "ONECOPY_DISABLE is set: onecopy.multiprocessing behaves as torch.multiprocessing"
        )
        return False
    with _lock:
        if not _installed:
            try:
                _register_reducers()
                if has_torch():
                    _patch_torch()
            except BaseException:
                uninstall()
                raise
            _installed = True
    return True


def uninstall() -> None:
    """Puts back everything that install() changed; tensors that are shared already stay usable.

    torch does not know the memory of those as shared: sending one again copies it.
    """
    global _installed
    with _lock:
        _installed = False
        while _undo:
            _undo.pop()()


def _register_reducers() -> None:
    from . import reductions

    for type_, reduce in reductions.REDUCERS.items():
        _register_reducer(type_, reduce)


def _register_reducer(type_: type, reduce: Callable[[Any], tuple]) -> None:
    known = ForkingPickler._extra_reducers
    before = known.get(type_)

    def undo() -> None:
        if known.get(type_) is not reduce:
            _leave_as_it_is(f"the reducer of {type_.__name__}")
        elif before is None:
            del known[type_]
        else:
            known[type_] = before

    ForkingPickler.register(type_, reduce)
    _undo.append(undo)


def _leave_as_it_is(what: str) -> None:
    logging.getLogger("onecopy").warning("%s was replaced after us and is left as it is", what)


def _set(owner: Any, name: str, value: Any) -> None:
    """Sets an attribute of a class or module until uninstall()."""
    inherited = name not in vars(owner)
    before = vars(owner).get(name)

    def undo() -> None:
        if vars(owner).get(name) is not value:
            _leave_as_it_is(f"{owner.__name__}.{name}")
        elif inherited:
            delattr(owner, name)
        else:
            setattr(owner, name, before)

    setattr(owner, name, value)
    _undo.append(undo)


def _replace(function: types.FunctionType, ours: types.FunctionType) -> types.FunctionType:
    """Gives `function` our code until uninstall(), for all importers; returns the old one.

    `ours` runs with the globals of `function`: it takes the arguments of `function`, and may use nothing but those
    and its own imports.
    """
    before = function.__code__
    old = types.FunctionType(
        before, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    old.__kwdefaults__ = function.__kwdefaults__
    code = ours.__code__

    def undo() -> None:
        if function.__code__ is not code:
            _leave_as_it_is(f"{function.__module__}.{function.__qualname__}")
        else:
            function.__code__ = before

    function.__code__ = code
    _undo.append(undo)
    return old


# --- torch ------------------------------------------------------------------------------------------


class TorchOriginals:
    """torch's own functions, for devices that onecopy does not carry, and for storages that it does not know."""

    reduce_tensor: Callable[[Any], tuple]
    reduce_storage: Callable[[Any], tuple]
    rebuild_tensor: Callable[..., Any]
    rebuild_cuda_tensor: Callable[..., Any]
    rebuild_storage_fd: Callable[..., Any]
    rebuild_storage_filename: Callable[..., Any]
    set_sharing_strategy: Callable[[str], None]
    is_shared: Callable[[Any], bool]
    share_memory_: Callable[[Any], Any]
    new_shared: Callable[..., Any]
    pin_memory: Callable[..., Any]
    pin_memory_loop: Callable[..., None]

    def __getattr__(self, name: str) -> Any:
        return _torch_names.of_reductions(name)  # which raises: it is one that was not found


originals = TorchOriginals()


def _patch_torch() -> None:
    import torch
    import torch.multiprocessing as torch_mp

    _replace_reductions()
    _patch_storage(torch.UntypedStorage)
    _patch_loader(torch.Tensor)
    originals.set_sharing_strategy = _replace(torch_mp.set_sharing_strategy, _set_sharing_strategy)
    _follow(torch_mp.get_sharing_strategy())


# These stay torch's if this torch lacks a function of the known name.
_REDUCERS = {
    "reduce_tensor": "what the standard library pickles has torch's own copies of tensors",
    "reduce_storage": "storages that are sent by themselves are torch's to carry",
    "reduce_typed_storage": "storages that know their dtype are torch's to carry",
    "reduce_typed_storage_child": "storages of the old classes are torch's to carry",
    "reduce_event": "CUDA events are torch's to keep",
}
_REBUILDERS = ("rebuild_tensor", "rebuild_cuda_tensor", "rebuild_storage_fd", "rebuild_storage_filename")


def _replace_reductions() -> None:
    for name, otherwise in _REDUCERS.items():
        _replace_reduction(name, otherwise)
    for name in _REBUILDERS:
        _replace_reduction(name, "no program can call it with our arguments either")


def _replace_reduction(name: str, otherwise: str) -> None:
    try:
        function = _torch_names.of_reductions(name)
    except Unsupported as error:
        logging.getLogger("onecopy").warning("%s: %s", error, otherwise)
        return
    setattr(originals, name, _replace(function, globals()[f"_{name}"]))


def _reduce_tensor(tensor):
    from onecopy.multiprocessing import reductions

    return reductions.reduce_tensor(tensor)


def _reduce_storage(storage):
    from onecopy.multiprocessing import reductions

    return reductions.reduce_storage(storage)


def _reduce_typed_storage(storage):
    from onecopy.multiprocessing import reductions

    return reductions.reduce_typed_storage(storage)


def _reduce_typed_storage_child(storage):
    from onecopy.multiprocessing import reductions

    return reductions.reduce_typed_storage_child(storage)


def _reduce_event(event):
    from onecopy.multiprocessing import reductions

    return reductions.reduce_event(event)


def _rebuild_tensor(*arguments, **named):
    from onecopy.multiprocessing import reductions

    return reductions._rebuild("rebuild_tensor", arguments, named)


def _rebuild_cuda_tensor(*arguments, **named):
    from onecopy.multiprocessing import reductions

    return reductions._rebuild("rebuild_cuda_tensor", arguments, named)


def _rebuild_storage_fd(*arguments, **named):
    from onecopy.multiprocessing import reductions

    return reductions._rebuild("rebuild_storage_fd", arguments, named)


def _rebuild_storage_filename(*arguments, **named):
    from onecopy.multiprocessing import reductions

    return reductions._rebuild("rebuild_storage_filename", arguments, named)


def _set_sharing_strategy(new_strategy):
    from onecopy.multiprocessing import patches  # noqa: PLW0406

    patches.originals.set_sharing_strategy(new_strategy)
    patches._follow(new_strategy)


def _follow(strategy: str) -> None:
    _core.set_strategy(strategy)


def _patch_storage(untyped_storage: type) -> None:
    originals.is_shared = untyped_storage.is_shared
    originals.share_memory_ = untyped_storage.share_memory_
    originals.new_shared = untyped_storage.__dict__.get("_new_shared") or untyped_storage._new_shared
    _set(untyped_storage, "is_shared", _is_shared)
    _set(untyped_storage, "share_memory_", _share_memory_)
    _set(untyped_storage, "_new_shared", classmethod(_new_shared))


def _is_shared(self) -> bool:
    """Whether the storage lies in shared memory, ours or torch's; true for devices."""
    return _core.torch_is_shared(self) or originals.is_shared(self)


def _share_memory_(self, *args, **kwargs):
    """Moves the storage into memory of onecopy, in place; without effect where it is shared already."""
    if self.device.type != "cpu" or not self.nbytes():
        return originals.share_memory_(self, *args, **kwargs)
    if not _is_shared(self):
        _core.torch_share_storage(self)
    return self


def _new_shared(cls, size, *, device="cpu"):
    """A new storage of `size` bytes in memory of onecopy, uninitialised."""
    import torch

    device = torch.device(device)
    if device.type != "cpu" or not size:
        return cls(size, device=device)
    return _core.torch_new_shared(size)


_pinning = threading.local()  # .card: the CUDA device of a DataLoader whose pinning thread this is


def _patch_loader(tensor: type) -> None:
    from torch.utils.data._utils import pin_memory

    originals.pin_memory = tensor.pin_memory
    originals.pin_memory_loop = pin_memory._pin_memory_loop
    _set(tensor, "pin_memory", _pin_memory)
    _set(pin_memory, "_pin_memory_loop", _pin_memory_loop)


def _pin_memory_loop(in_queue: Any, out_queue: Any, device_id: int, *args: Any, **named: Any) -> None:
    """torch's own loop; batches in memory of onecopy are pinned where they are."""
    _pinning.card = device_id
    originals.pin_memory_loop(in_queue, out_queue, device_id, *args, **named)


def _pin_memory(self: Any, *args: Any, **named: Any) -> Any:
    """A copy in pinned memory. In a DataLoader's pinning thread, a tensor in memory of onecopy is pinned and
    returned itself."""
    card = getattr(_pinning, "card", None)
    if card is not None and _core._pin_batch(self, card):
        return self
    return originals.pin_memory(self, *args, **named)
