# SPDX-License-Identifier: Apache-2.0
"""Changes torch and the standard library when onecopy.multiprocessing is imported, and undoes the changes.

docs/reference/patches.md lists every change. If other libraries may have imported a function by name, its ``__code__``
is replaced, so that the order of imports does not matter.
"""

from __future__ import annotations

import logging
import threading
import types
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

from .. import _core
from ..errors import Unsupported
from ..torch._storages import exchange_code, is_done, own_function
from . import _state, _torch_names, reductions
from ._state import disabled, has_torch, installed, originals

__all__ = ["init_reductions", "install", "installed", "originals", "uninstall"]

_lock = threading.RLock()
_undo: list[Callable[[], None]] = []


if has_torch():  # before anything is changed
    _torch_names.check_version()


def install() -> bool:
    """Makes torch and the standard library send tensors by handle. A second call has no effect.

    Returns False, after logging a warning, if ``ONECOPY_DISABLE=1`` is set.
    """
    if disabled():
        logging.getLogger("onecopy").warning(
            "ONECOPY_DISABLE is set: onecopy.multiprocessing behaves as torch.multiprocessing"
        )
        return False
    with _lock:
        if not installed():
            try:
                for type_, reduce in reductions.REDUCERS.items():
                    _register_reducer(type_, reduce)
                if has_torch():
                    _patch_torch()
            except BaseException:
                uninstall()
                raise
            _state.set_installed(True)
            _core._set_torch_keeps_storages(True)
    return True


def uninstall() -> None:
    """Undoes everything that install() changed. Tensors that are shared already stay usable, but torch does not know
    that they are shared, so sending one again copies it."""
    with _lock:
        _state.set_installed(False)
        while _undo:
            _undo.pop()()
        _core._set_torch_keeps_storages(is_done())


def init_reductions() -> None:
    """Makes ForkingPickler send tensors by handle. Importing the package has done this already."""
    if install() and has_torch():
        from torch.multiprocessing.reductions import init_reductions

        init_reductions()


def _register_reducer(type_: type, reduce: Callable[[Any], tuple[Any, ...]]) -> None:
    known: dict[type, Any] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
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
    logging.getLogger("onecopy").warning(
        "%s was replaced by other code after onecopy changed it, and is not restored", what
    )


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


def _replace(function: types.FunctionType, ours: Callable[..., Any]) -> types.FunctionType:
    """Replaces the code of `function` until uninstall(), for all importers. Returns a function with the old code.

    `ours` runs with the globals of `function`: it may use only its arguments and what it imports itself.
    """
    before = function.__code__
    old = exchange_code(function, ours)
    code: types.CodeType = ours.__code__

    def undo() -> None:
        if function.__code__ is not code:
            _leave_as_it_is(f"{function.__module__}.{function.__qualname__}")
        else:
            function.__code__ = before

    _undo.append(undo)
    return old


# --- torch ------------------------------------------------------------------------------------------


def _patch_torch() -> None:
    import torch
    import torch.multiprocessing as torch_mp

    _replace_reductions()
    _patch_storage(torch.UntypedStorage)
    _patch_loader(torch.Tensor)
    originals.set_sharing_strategy = _replace(own_function(torch_mp, "set_sharing_strategy"), _set_sharing_strategy)
    _follow(torch_mp.get_sharing_strategy())


# The functions to replace, and what happens if this torch has no function of the name.
_REDUCERS = {
    "reduce_tensor": "the standard library's queues and pipes send copies of torch tensors, as torch does",
    "reduce_storage": "storages are sent as torch does",
    "reduce_typed_storage": "typed storages are sent as torch does",
    "reduce_typed_storage_child": "storages of the old typed classes are sent as torch does",
    "reduce_event": "the sender must keep CUDA events, as with torch",
}
_REBUILDERS = ("rebuild_tensor", "rebuild_cuda_tensor", "rebuild_storage_fd", "rebuild_storage_filename")


def _replace_reductions() -> None:
    for name, otherwise in _REDUCERS.items():
        _replace_reduction(name, otherwise)
    for name in _REBUILDERS:
        _replace_reduction(name, "no program can call it with onecopy's arguments either")


def _replace_reduction(name: str, otherwise: str) -> None:
    try:
        function = _torch_names.own_of_reductions(name)
    except Unsupported as error:
        logging.getLogger("onecopy").warning("%s: %s", error, otherwise)
        return
    setattr(originals, name, _replace(function, globals()[f"_{name}"]))


def _reduce_tensor(tensor: Any) -> Any:
    from onecopy.multiprocessing import reductions

    return reductions.reduce_tensor(tensor)


def _reduce_storage(storage: Any) -> Any:
    from onecopy.multiprocessing import reductions

    return reductions.reduce_storage(storage)


def _reduce_typed_storage(storage: Any) -> Any:
    from onecopy.multiprocessing import reductions

    return reductions.reduce_typed_storage(storage)


def _reduce_typed_storage_child(storage: Any) -> Any:
    from onecopy.multiprocessing import reductions

    return reductions.reduce_typed_storage_child(storage)


def _reduce_event(event: Any) -> Any:
    from onecopy.multiprocessing import reductions

    return reductions.reduce_event(event)


def _rebuild_tensor(*arguments: Any, **named: Any) -> Any:
    from onecopy.multiprocessing import reductions

    return reductions._rebuild("rebuild_tensor", arguments, named)


def _rebuild_cuda_tensor(*arguments: Any, **named: Any) -> Any:
    from onecopy.multiprocessing import reductions

    return reductions._rebuild("rebuild_cuda_tensor", arguments, named)


def _rebuild_storage_fd(*arguments: Any, **named: Any) -> Any:
    from onecopy.multiprocessing import reductions

    return reductions._rebuild("rebuild_storage_fd", arguments, named)


def _rebuild_storage_filename(*arguments: Any, **named: Any) -> Any:
    from onecopy.multiprocessing import reductions

    return reductions._rebuild("rebuild_storage_filename", arguments, named)


def _set_sharing_strategy(new_strategy: Any) -> None:
    from onecopy.multiprocessing import patches  # noqa: PLW0406

    patches.originals.set_sharing_strategy(new_strategy)
    patches._follow(new_strategy)


def _follow(strategy: Any) -> None:
    _core.set_strategy(strategy)


def _patch_storage(untyped_storage: Any) -> None:
    originals.is_shared = untyped_storage.is_shared
    originals.share_memory_ = untyped_storage.share_memory_
    originals.new_shared = untyped_storage.__dict__.get("_new_shared") or untyped_storage._new_shared
    _set(untyped_storage, "is_shared", _is_shared)
    _set(untyped_storage, "share_memory_", _share_memory_)
    _set(untyped_storage, "_new_shared", classmethod(_new_shared))


def _is_shared(self: Any) -> bool:
    """Returns whether the storage lies in shared memory of onecopy or torch. A storage on a device always does."""
    return _core.torch_is_shared(self) or originals.is_shared(self)


def _share_memory_(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Moves the storage into memory of onecopy, in place. Has no effect if it is shared already."""
    if self.device.type != "cpu" or not self.nbytes():
        return originals.share_memory_(self, *args, **kwargs)
    if not _is_shared(self):
        _core.torch_share_storage(self)
    return self


def _new_shared(cls: Any, size: int, *, device: Any = "cpu") -> Any:
    """Returns a new, uninitialised storage of `size` bytes in memory of onecopy."""
    import torch

    device = torch.device(device)
    if device.type != "cpu" or not size:
        return cls(size, device=device)
    return _core.torch_new_shared(size)


_pinning = threading.local()  # .card: the CUDA device, in the pinning thread of a DataLoader


def _patch_loader(tensor: Any) -> None:
    from torch.utils.data._utils import pin_memory

    originals.pin_memory = tensor.pin_memory
    originals.pin_memory_loop = pin_memory._pin_memory_loop
    _set(tensor, "pin_memory", _pin_memory)
    _set(pin_memory, "_pin_memory_loop", _pin_memory_loop)


def _pin_memory_loop(in_queue: Any, out_queue: Any, device_id: int, *args: Any, **named: Any) -> None:
    """Runs torch's own loop, in which `_pin_memory` pins batches in memory of onecopy in place."""
    _pinning.card = device_id
    originals.pin_memory_loop(in_queue, out_queue, device_id, *args, **named)


def _pin_memory(self: Any, *args: Any, **named: Any) -> Any:
    """Returns a copy in pinned memory, or in the pinning thread of a DataLoader the tensor itself, pinned in place."""
    card = getattr(_pinning, "card", None)
    if card is not None and _core._pin_batch(self, card):
        return self
    return originals.pin_memory(self, *args, **named)
