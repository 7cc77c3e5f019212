# SPDX-License-Identifier: Apache-2.0
"""Keeps torch from moving storages out of memory of onecopy.

torch does not know that this memory is shared. Its ``share_memory_()`` and its reducers would move the storage into
torch's own shared memory, and processes that opened a handle before would silently keep the old memory.
docs/reference/patches.md lists the three changes to torch that prevent this. onecopy.multiprocessing makes the same
changes, among others.
"""

from __future__ import annotations

import gc
import os
import sys
import types
from collections.abc import Callable
from typing import Any, TypeGuard

from .. import _core
from ..errors import Unsupported
from ..pickling import tensors
from ..pickling.holds import held

__all__ = ["exchange_code", "is_done", "keep_in_place", "own_function", "reduce_storage"]


class _Originals:
    """The functions of torch itself, which serve all other storages."""

    is_shared: Callable[[Any], bool]
    share_memory_: Callable[..., Any]
    reduce_storage: Callable[[Any], tuple[Any, ...]]


_originals = _Originals()
_done = False


def keep_in_place() -> None:
    """Makes torch leave storages in memory of onecopy where they are. A second call has no effect.

    The extension calls this before it creates the first of these storages in the process. Nothing is changed if
    onecopy.multiprocessing has changed torch already, or with ``ONECOPY_DISABLE=1``.
    """
    global _done
    patches = sys.modules.get("onecopy.multiprocessing._state")
    if _done or os.environ.get("ONECOPY_DISABLE", "") not in ("", "0") or (patches and patches.installed()):
        return
    _done = True
    import torch.multiprocessing.reductions

    storage = torch.UntypedStorage
    _originals.is_shared, storage.is_shared = storage.is_shared, _is_shared
    _originals.share_memory_, storage.share_memory_ = storage.share_memory_, _share_memory_
    reducer = own_function(torch.multiprocessing.reductions, "reduce_storage")
    _originals.reduce_storage = exchange_code(reducer, _reduce_storage)


def is_done() -> bool:
    """Returns whether keep_in_place() has changed torch."""
    return _done


def own_function(module: types.ModuleType, name: str) -> types.FunctionType:
    """Returns the function that a module defines by this name.

    A library may have put a wrapper in its place. The wrapper holds the function somewhere, and calls it.

    Raises:
        onecopy.Unsupported: the function does not exist any more, since other code has replaced it.
    """
    public: object = getattr(module, name, None)
    if _is_defined_by(public, module, name):
        return public
    for candidate in gc.get_objects():
        if _is_defined_by(candidate, module, name):
            return candidate
    raise Unsupported(f"other code has replaced {module.__name__}.{name}")


def _is_defined_by(value: object, module: types.ModuleType, name: str) -> TypeGuard[types.FunctionType]:
    # functools.wraps() gives a wrapper the name and the module of what it wraps, but not its globals.
    return (
        type(value) is types.FunctionType
        and value.__globals__ is vars(module)
        and value.__module__ == module.__name__
        and value.__qualname__.lstrip("_") == name.lstrip("_")
    )


def exchange_code(function: types.FunctionType, ours: Callable[..., Any]) -> types.FunctionType:
    """Replaces the code of `function`, so that modules that imported it by name call `ours`, too.

    `ours` runs with the globals of `function`: it may use only its arguments and what it imports itself.

    Returns:
        A function with the old code.
    """
    old = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    old.__kwdefaults__ = function.__kwdefaults__
    old.__module__ = __name__  # own_function() does not take the copy for torch's
    function.__code__ = ours.__code__
    return old


def _is_shared(self: Any) -> bool:
    """Returns whether the storage lies in shared memory of onecopy or torch. A storage on a device always does."""
    return _core.torch_is_shared(self) or _originals.is_shared(self)


def _share_memory_(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Moves the storage into shared memory of torch. Has no effect if it is shared already."""
    if _core.torch_is_shared(self):
        return self
    return _originals.share_memory_(self, *args, **kwargs)


def _reduce_storage(storage):  # type: ignore[no-untyped-def] # it takes the place of torch's
    from onecopy.torch import _storages  # noqa: PLW0406 # the code runs with the globals of torch's function

    return _storages.reduce_storage(storage)


def reduce_storage(storage: Any) -> tuple[Any, ...]:
    """Pickles a storage for another process: as a handle if it lies in memory of onecopy, else as torch does.

    Returns:
        ``(rebuild, arguments)``, as ``torch.multiprocessing.reductions.reduce_storage()`` does.

    Raises:
        onecopy.Unsupported: the storage covers only a part of a block of onecopy.
    """
    if storage.device.type != "cpu" or not storage.nbytes() or not _core.torch_is_shared(storage):
        return _originals.reduce_storage(storage)
    return tensors.storage, (held(_core.torch_share_storage(storage)),)
