# SPDX-License-Identifier: Apache-2.0
"""joblib's default backend (loky): tensors of torch cross to its workers and back by handle, not as copies.

>>> onecopy.integrations.joblib.register()
"""

from __future__ import annotations

from typing import Any

from ._packages import need

__all__ = ["register"]

_WHAT = "onecopy.integrations.joblib.register()"


def register() -> None:
    """
    Lets loky pickle ``torch.Tensor`` and ``torch.nn.Parameter`` by handle in this process, and the workers' results
    as well.

    Workers see the memory of this process, so their writes in place are seen here. ``onecopy.Tensor`` needs no
    ``register()``; arrays of numpy go by joblib's own way, which maps copies of large ones for reading.

    Raises:
        MissingPackage: joblib or torch is not installed.
    """
    reduction = need("joblib.externals.loky.backend.reduction", "joblib", _WHAT)
    torch = need("torch", "torch", _WHAT)
    _install(reduction, torch)


def _install(reduction: Any, torch: Any) -> None:
    reduction.register(torch.Tensor, _reduce)
    reduction.register(torch.nn.Parameter, _reduce)


def _reduce(tensor: Any) -> tuple[Any, ...]:
    from ..multiprocessing.reductions import reduce_tensor

    return _rebuild, reduce_tensor(tensor)


def _rebuild(rebuild: Any, arguments: tuple[Any, ...]) -> Any:
    """Rebuilds a tensor of the other side, after which this process passes tensors by handle, too."""
    register()
    return rebuild(*arguments)
