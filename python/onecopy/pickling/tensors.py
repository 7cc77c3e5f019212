# SPDX-License-Identifier: Apache-2.0
"""Pickles tensors, and handles: a tensor as a handle for another process of this machine, as its elements otherwise.

A handle is invalid once its process has ended, so a file must never contain one. A pickler that writes for a channel is
recognized by the module that calls it. ``ForkingPickler``, which any module may call, has its own list of reducers:
tensors are on that list if multiprocessing was imported before onecopy, or if onecopy.multiprocessing was imported.
"""

from __future__ import annotations

import sys

from .. import _core

TYPE_CHECKING = False  # importing typing would cost time
if TYPE_CHECKING:
    from typing import Any, Literal

# Modules of picklers that another pickler may call: the module above them in the stack decides.
_PICKLERS = ("pickle", "cloudpickle.cloudpickle", "joblib.externals.cloudpickle.cloudpickle", "dill._dill")

# Modules that pickle for another process of this machine, and use their own reducers.
_CHANNELS = (
    "joblib.externals.loky.backend.reduction",
    "joblib.pool",
    "loky.backend.reduction",
    "multiprocess.reduction",
    "multiprocessing.reduction",
    "ray.cloudpickle.cloudpickle",
    "torch.multiprocessing.queue",
)

_TORCH_SAVE = "torch.serialization"


def _pickling_module() -> str:
    """Returns the name of the module that called the pickler which called reduce()."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__") in _PICKLERS:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", ""))


def reduce(tensor: _core.Tensor, protocol: int) -> Any:
    """Returns the value of a tensor's ``__reduce_ex__``."""
    module = _pickling_module()
    if module in _CHANNELS:
        return tensor._reduce_handle()
    host = tensor.cpu()
    packed = host if host.is_contiguous else host.copy()
    row = packed.reshape(-1).view("uint8")
    return saved, (str(tensor.dtype), tensor.shape, tensor.device, _elements(row, protocol, module))


def _elements(row: _core.Tensor, protocol: int, module: str) -> Any:
    """Returns the bytes of the elements in the form that this pickler writes without another copy."""
    if module == _TORCH_SAVE:  # its pickles use protocol 2, and it writes tensors beside them in the file
        return _alone(row.torch())
    if protocol < 5:
        return bytes(row)
    from pickle import PickleBuffer

    return PickleBuffer(row.memoryview())


def _alone(tensor: Any) -> Any:
    """Returns a tensor that fills its storage, since ``torch.save()`` writes whole storages."""
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


def register() -> None:
    """Makes the picklers of multiprocessing write handles. A reducer that is registered already stays."""
    reduction = sys.modules.get("multiprocessing.reduction")
    if reduction is not None:
        reduction.ForkingPickler._extra_reducers.setdefault(_core.Tensor, _core.Tensor._reduce_handle)


# --- what pickles call when they are loaded; files have the names of these functions


def tensor(data: bytes, access: Literal["readwrite", "read"]) -> _core.Tensor:
    """Opens the tensor of a pickled handle."""
    opened: _core.Tensor = _core.open(data, access=access)
    return opened


def saved(dtype: str, shape: tuple[int, ...], device: str, elements: Any) -> _core.Tensor:
    """Returns a new tensor with the elements that a pickle contains."""
    made = _core.empty(shape, dtype, device)
    made.reshape(-1).view("uint8").copy_from(elements)
    return made


def storage(data: bytes) -> Any:
    """Opens the torch.UntypedStorage of a pickled handle."""
    return _core.torch_open_storage(_core._open_as_lent(data))


def handle(data: bytes) -> _core.Handle:
    """Returns a pickled handle."""
    return _core.Handle.from_bytes(data)
