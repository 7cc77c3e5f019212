# SPDX-License-Identifier: Apache-2.0
"""One copy of a tensor, used by every process.

>>> weights = onecopy.zeros((2, 3))  # float32, in memory that other processes can open
>>> handle = onecopy.share(weights)  # keep the handle until they have opened its text
>>> there = onecopy.open(str(handle))  # in another process of this user: the same memory
>>> there[0, 1] = 5
>>> weights.tolist()
[[0.0, 5.0, 0.0], [0.0, 0.0, 0.0]]

``empty()``, ``zeros()`` and ``full()`` create tensors in memory that other processes can open.
``share()`` returns a handle for anything with memory: a tensor of onecopy or torch on the cpu or a
CUDA device, an array of numpy or cupy, a nested dict of tensors, an ``nn.Module``. ``open()`` maps
the same memory in another process, without a copy, and returns a tensor of onecopy, torch or numpy.
``Queue``, ``Pipe`` and ``Listener`` carry tensors and plain values. ``import
onecopy.multiprocessing as mp`` replaces ``torch.multiprocessing``.

Every failure raises a subclass of ``onecopy.Error``; the classes are in ``onecopy.errors``.
``stats()`` and ``list_owners()`` list memory and the processes that hold it. Times are in seconds,
sizes in bytes.

numpy and torch are imported only when a call needs them.
"""

from __future__ import annotations

import sys as _sys
from collections.abc import Mapping as _Mapping

from . import _core as _core, errors
from ._core import (
    Bundle,
    Handle,
    Listener,
    Message,
    Pipe,
    PipeEnd,
    PipeHandle,
    Queue,
    Tensor,
    __version__,
    collect,
    connect,
    empty,
    from_dlpack,
    full,
    list_owners,
    load_npy,
    load_safetensors,
    open,
    record_stream,
    set_strategy,
    share,
    stats,
    strategy,
    zeros,
)
from .binding import absent as _absent, at_exit as _at_exit, log as _log
from .binding.arrays import array, asarray, empty_like, from_numpy, ones, ones_like, zeros_like
from .device import is_pinned, load, pin, to_device, unpin, view_on
from .dtypes import DType
from .errors import (
    BadFile,
    BadHandle,
    BadSecret,
    Closed,
    Error,
    InvalidArgument,
    MissingPackage,
    OtherBoot,
    OtherUser,
    OutOfDescriptors,
    OutOfMappings,
    OutOfMemory,
    OwnerDied,
    PeerDied,
    Protocol,
    ReadOnly,
    Stale,
    StaleHandle,
    Superseded,
    System,
    Timeout,
    Unsupported,
    VersionMismatch,
)
from .pickling import tensors as _pickled

if "t" in _sys.abiflags:
    raise ImportError("onecopy needs a build of Python with the GIL: builds without it (3.13t, 3.14t) crash in tests")

_Mapping.register(Bundle)
_absent.register()
_pickled.register()
_sys.modules[f"{__name__}._reopen"] = _pickled  # the name of the module in pickles that files may have
_log.start()
_at_exit.register(lambda: _core._trim("cpu"))  # so that a tensor that others keep does not keep free memory beside it

__all__ = [
    "BadFile",
    "BadHandle",
    "BadSecret",
    "Bundle",
    "Closed",
    "DType",
    "Error",
    "Handle",
    "InvalidArgument",
    "Listener",
    "Message",
    "MissingPackage",
    "OtherBoot",
    "OtherUser",
    "OutOfDescriptors",
    "OutOfMappings",
    "OutOfMemory",
    "OwnerDied",
    "PeerDied",
    "Pipe",
    "PipeEnd",
    "PipeHandle",
    "Protocol",
    "Queue",
    "ReadOnly",
    "Stale",
    "StaleHandle",
    "Superseded",
    "System",
    "Tensor",
    "Timeout",
    "Unsupported",
    "VersionMismatch",
    "__version__",
    "array",
    "asarray",
    "collect",
    "connect",
    "empty",
    "empty_like",
    "errors",
    "from_dlpack",
    "from_numpy",
    "full",
    "hf",
    "is_pinned",
    "list_owners",
    "load",
    "load_npy",
    "load_safetensors",
    "ones",
    "ones_like",
    "open",
    "pin",
    "record_stream",
    "set_strategy",
    "share",
    "stats",
    "store",
    "strategy",
    "to_device",
    "torch",
    "unpin",
    "view_on",
    "zeros",
    "zeros_like",
]

TYPE_CHECKING = False  # type checkers treat the name as True; importing typing would cost time
if TYPE_CHECKING:
    from . import hf as hf, store as store, torch as torch
del TYPE_CHECKING


def __getattr__(name: str) -> object:
    """Imports ``onecopy.hf``, ``onecopy.store`` and ``onecopy.torch`` at their first use."""
    if name not in ("hf", "store", "torch"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return importlib.import_module(f".{name}", __name__)
