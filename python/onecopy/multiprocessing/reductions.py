# SPDX-License-Identifier: Apache-2.0
"""Pickles tensors and storages for another process: as a handle, never as their bytes.

The functions have the names and results of ``torch.multiprocessing.reductions``: each returns ``(rebuild, arguments)``,
where ``rebuild(*arguments)`` makes the object in the other process, on the same memory. The arguments may be sent by
any means. The object can be rebuilt once, while this process lives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from .. import _core
from ..pickling.holds import held_object, let_last
from . import _torch_names
from ._state import has_torch, installed, originals
from ._storages import (
    SharedStorage,
    StorageHandle,
    rebuild_storage,
    rebuild_storage_empty,
    rebuild_typed_storage,
    rebuild_typed_storage_child,
    reduce_storage,
    reduce_typed_storage,
    reduce_typed_storage_child,
)
from ._tensors import (
    rebuild_cpu_tensor,
    rebuild_lazy_tensor,
    rebuild_shared_tensor,
    rebuild_sparse_compressed_tensor,
    rebuild_sparse_coo_tensor,
    rebuild_unusual_tensor,
    reduce_sparse_tensor,
    reduce_tensor,
)

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


def __getattr__(name: str) -> Any:
    """Returns the other names of torch.multiprocessing.reductions."""
    if name.startswith("__") or not has_torch():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from torch.multiprocessing import reductions

    return getattr(reductions, name)


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

# Pickles name this module, and programs allow its names.
for _pickled in (*(globals()[name] for name in __all__), StorageHandle):
    _pickled.__module__ = __name__
del _pickled
