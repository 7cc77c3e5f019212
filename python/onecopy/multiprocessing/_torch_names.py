# SPDX-License-Identifier: Apache-2.0
"""Looks up names of torch that may change from one version to the next.

torch documents few of the functions that send tensors between processes. If a name is missing, importing this package
still succeeds: a function of torch that cannot be found is not replaced, and a warning is logged; a value that needs
the name raises ``Unsupported``. ``python/src/torch/torch_api.cpp`` does the same for the extension.

Thread safety: all functions may be called concurrently. REQUIRES: torch can be imported.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..errors import Unsupported
from ..torch._storages import own_function

if TYPE_CHECKING:
    import torch

__all__ = [
    "NEWEST_TESTED",
    "OLDEST",
    "check_version",
    "exports",
    "neg_view",
    "of_reductions",
    "own_of_reductions",
    "sparse_coo_parts",
    "typed_storage",
    "untyped_storage",
    "warn_if_has_hooks",
]

OLDEST = (2, 8)
NEWEST_TESTED = (2, 15)

_log = logging.getLogger("onecopy")


def check_version() -> None:
    """Checks the version of torch. Logs a warning for a torch newer than the newest tested one.

    Raises:
        ImportError: this torch is older than the oldest supported one.
    """
    import torch

    found = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if found < OLDEST:
        raise ImportError(
            f"onecopy.multiprocessing needs torch {_dotted(OLDEST)} or newer, and this is {torch.__version__}"
        )
    if found > NEWEST_TESTED:
        _log.warning(
            "torch %s is newer than %s, the newest that onecopy was tested with",
            torch.__version__, _dotted(NEWEST_TESTED),
        )  # fmt: skip


def _dotted(version: Iterable[int]) -> str:
    return ".".join(map(str, version))


def of_reductions(name: str) -> Any:
    """Returns a function of ``torch.multiprocessing.reductions`` by its name, with or without a leading underscore.

    Raises:
        Unsupported: this torch has neither name.
    """
    from torch.multiprocessing import reductions

    found = getattr(reductions, name, None) or getattr(reductions, f"_{name}", None)
    if found is None:
        raise Unsupported(_absence(f"torch.multiprocessing.reductions.{name}"))
    return found


def own_of_reductions(name: str) -> Any:
    """Returns the function of ``torch.multiprocessing.reductions`` that torch itself has defined.

    Raises:
        Unsupported: this torch has no such function, or other code has replaced the function.
    """
    from torch.multiprocessing import reductions

    of_reductions(name)
    return own_function(reductions, name)


def exports(module: str, names: Iterable[str]) -> dict[str, Any]:
    """Returns the attributes of a module that ``names`` lists, without the missing ones."""
    found = importlib.import_module(module)
    return {name: getattr(found, name) for name in names if hasattr(found, name)}


def warn_if_has_hooks(tensor: torch.Tensor) -> None:
    """Warns, as torch does, that hooks are not sent. Has no effect for tensors without hooks."""
    if getattr(tensor, "_backward_hooks", None):
        _needed("torch.utils.hooks.warn_if_has_hooks", "a tensor with hooks")(tensor)


def neg_view(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor on the same memory that is lazily negated."""
    return _needed("torch._neg_view", "a tensor that is to be read negated")(tensor)


def sparse_coo_parts(sparse: torch.Tensor) -> tuple[Any, ...]:
    """Returns the indices and values of a sparse tensor. torch's public methods refuse an uncoalesced tensor."""
    names = ("_indices", "_values")
    return tuple(_needed(f"torch.Tensor.{name}", "a sparse tensor of layout coo")(sparse) for name in names)


def untyped_storage(storage: torch.TypedStorage) -> torch.UntypedStorage:
    """Returns the untyped storage of a typed one, without the deprecation warning of torch's public method."""
    return getattr(storage, "_untyped_storage", None) or storage.untyped()


def typed_storage(cls: type, storage: torch.UntypedStorage, **dtype: torch.dtype) -> torch.TypedStorage:
    """Returns a typed storage on the memory of an untyped one, without torch's deprecation warning."""
    return cls(wrap_storage=storage, _internal=True, **dtype)


@functools.cache
def _needed(path: str, use: str) -> Any:
    """Returns the object of torch named `path`. Raises Unsupported, with `use` in the message, if it is missing."""
    import torch

    found = functools.reduce(lambda owner, name: getattr(owner, name, None), path.split(".")[1:], torch)
    if found is None:
        raise Unsupported(
            f"{_absence(path)}, which {use} needs; send tensors of another kind, or use a torch that has it"
        )
    return found


def _absence(path: str) -> str:
    import torch

    return f"torch {torch.__version__} has no {path}"
