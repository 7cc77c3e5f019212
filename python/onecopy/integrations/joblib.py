# SPDX-License-Identifier: Apache-2.0
"""joblib's default backend (loky), with torch tensors sent to workers and back by handle instead of as copies.

>>> onecopy.integrations.joblib.register()
"""

from __future__ import annotations

from typing import Any

from ._packages import need

__all__ = ["register"]

_WHAT = "onecopy.integrations.joblib.register()"


def register() -> None:
    """
    Makes loky pickle ``torch.Tensor`` and ``torch.nn.Parameter`` by handle in this process and in its workers.

    Workers use the memory of this process, so their writes in place are visible here. ``onecopy.Tensor`` needs no
    ``register()``. joblib still sends arrays of numpy its own way: it maps read-only copies of large arrays.

    Raises:
        MissingPackage: joblib or torch is not installed.
    """
    reduction = need("joblib.externals.loky.backend.reduction", "joblib", _WHAT)
    torch = need("torch", "torch", _WHAT)
    reduction.register(torch.Tensor, _reduce)
    reduction.register(torch.nn.Parameter, _reduce)


def _reduce(tensor: Any) -> tuple[Any, ...]:
    from ..multiprocessing.reductions import reduce_tensor

    return _rebuild, reduce_tensor(tensor)


def _rebuild(rebuild: Any, arguments: tuple[Any, ...]) -> Any:
    """Rebuilds a tensor of another process. Calls register(), so that this process sends tensors by handle, too."""
    register()
    return rebuild(*arguments)
