# SPDX-License-Identifier: Apache-2.0
"""The names of torch that may move from one version to the next, each looked up here and nowhere else.

torch documents few of the names that carry tensors between processes. If one is missing, an import of this package
goes on. A function of torch's that is not found stays torch's own, with a line in the log. A value that needs the
name raises ``Unsupported`` with it. ``python/src/torch/torch_api.cpp`` is the other half, for the extension.

Thread safety: all functions may be called concurrently. REQUIRES: torch can be imported.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..errors import Unsupported

if TYPE_CHECKING:
    import torch

__all__ = [
    "NEWEST_TESTED",
    "OLDEST",
    "check_version",
    "exports",
    "neg_view",
    "nested_parts",
    "nested_tensor",
    "of_reductions",
    "sparse_coo_parts",
    "typed_storage",
    "untyped_storage",
    "warn_if_has_hooks",
]

OLDEST = (2, 8)
NEWEST_TESTED = (2, 15)

_log = logging.getLogger("onecopy")


def check_version() -> None:
    """Checks the version of torch before anything is changed.

    Raises:
        ImportError: this torch is older than the oldest supported one. A torch newer than the newest tested one is
            a line in the log.
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
    """A function of ``torch.multiprocessing.reductions``, by its name or by that with an underscore before it.

    Raises:
        Unsupported: it has neither.
    """
    from torch.multiprocessing import reductions

    found = getattr(reductions, name, None) or getattr(reductions, f"_{name}", None)
    if found is None:
        raise Unsupported(_absence(f"torch.multiprocessing.reductions.{name}"))
    return found


def exports(module: str, names: Iterable[str]) -> dict[str, Any]:
    """Returns the names that a module of torch's has, of those in ``names``, to be exported again."""
    found = importlib.import_module(module)
    return {name: getattr(found, name) for name in names if hasattr(found, name)}


def warn_if_has_hooks(tensor: torch.Tensor) -> None:
    """Warns, as torch does, that hooks are not sent. Has no effect for tensors without hooks."""
    if getattr(tensor, "_backward_hooks", None):
        _needed("torch.utils.hooks.warn_if_has_hooks", "a tensor with hooks")(tensor)


def neg_view(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor on this one's memory, to be read negated."""
    return _needed("torch._neg_view", "a tensor that is to be read negated")(tensor)


def nested_parts(nested: torch.Tensor) -> tuple[Any, ...]:
    """Its buffer and the three tensors that describe the parts."""
    methods = ("_nested_tensor_size", "_nested_tensor_strides", "_nested_tensor_storage_offsets")
    return nested.values(), *(_needed(f"torch.Tensor.{name}", _NESTED)(nested) for name in methods)


def nested_tensor(parts: Iterable[torch.Tensor]) -> torch.Tensor:
    """Returns a nested tensor on the parts that nested_parts() returned."""
    return _needed("torch._nested_view_from_buffer_copy", _NESTED)(*parts)


def sparse_coo_parts(sparse: torch.Tensor) -> tuple[Any, ...]:
    """Indices and values, also of a tensor that is not coalesced: torch's public methods refuse those."""
    names = ("_indices", "_values")
    return tuple(_needed(f"torch.Tensor.{name}", "a sparse tensor of layout coo")(sparse) for name in names)


def untyped_storage(storage: torch.TypedStorage) -> torch.UntypedStorage:
    """The storage below one that knows its dtype. The public way to it warns that there are such storages."""
    return getattr(storage, "_untyped_storage", None) or storage.untyped()


def typed_storage(cls: type, storage: torch.UntypedStorage, **dtype: torch.dtype) -> torch.TypedStorage:
    """A storage that knows its dtype, on the memory of another one, without the warning that there are such
    storages.
    """
    return cls(wrap_storage=storage, _internal=True, **dtype)


_NESTED = "a nested tensor of layout strided"


@functools.cache
def _needed(path: str, use: str) -> Any:
    """Returns torch's object of that name, or raises an error that refuses `use`."""
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
