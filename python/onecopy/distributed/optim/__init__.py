# SPDX-License-Identifier: Apache-2.0
"""Optimizers of parameters that several processes own: the names of ``torch.distributed.optim``."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from .. import autograd as _autograd, rpc as _rpc
from ..rpc import RRef, WorkerInfo

__all__ = ["DistributedOptimizer"]

_OF_TORCH = (
    *("PostLocalSGDOptimizer", "ZeroRedundancyOptimizer", "apply_optimizer_in_backward", "as_functional_optim"),
    *("functional_adadelta", "functional_adagrad", "functional_adam", "functional_adamax", "functional_adamw"),
    *("functional_rmsprop", "functional_rprop", "functional_sgd", "named_optimizer", "post_localSGD_optimizer"),
    *("utils", "zero_redundancy_optimizer"),
)


def __getattr__(name: str) -> Any:
    """Returns a name of torch's that has nothing to do with rpc."""
    if name not in _OF_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import torch.distributed.optim

    return getattr(torch.distributed.optim, name)


class _LocalOptimizer:
    """An optimizer of parameters of this process, whose gradients are in a context. One step runs at a time."""

    # One lock serves all optimizers: torch's optimizers are not safe for threads, and may share parameters.
    step_lock = threading.Lock()

    def __init__(self, kind: type, parameter_rrefs: Sequence[RRef[torch.Tensor]], *args: Any, **kwargs: Any) -> None:
        self._parameters: list[torch.Tensor] = [rref.local_value() for rref in parameter_rrefs]
        self._optimizer = kind(self._parameters, *args, **kwargs)

    def step(self, context_id: int) -> None:
        """Makes a step with the gradients of a context."""
        gradients = _autograd.get_gradients(context_id)
        with _LocalOptimizer.step_lock:
            before = [p.grad for p in self._parameters]
            try:
                for parameter in self._parameters:
                    parameter.grad = gradients.get(parameter)
                self._optimizer.step()
            finally:
                for parameter, grad in zip(self._parameters, before):
                    parameter.grad = grad


def _make(
    kind: type, parameter_rrefs: Sequence[RRef[torch.Tensor]], args: list[Any], kwargs: dict[str, Any]
) -> RRef[_LocalOptimizer]:
    return _rpc.RRef(_LocalOptimizer(kind, parameter_rrefs, *args, **kwargs))


class DistributedOptimizer:
    """Runs an ordinary torch.optim class on each owner of the parameters, with the gradients of one context.

    Args:
        optimizer_class: a class of torch.optim, or a class with the same constructor and step().
        params_rref: references to the parameters.
        args, kwargs: further arguments of the class.
    Raises the exceptions of its constructor on an owner."""

    def __init__(
        self, optimizer_class: type, params_rref: Iterable[RRef[torch.Tensor]], *args: Any, **kwargs: Any
    ) -> None:
        if not inspect.isclass(optimizer_class):
            raise TypeError(f"optimizer_class is a class such as torch.optim.SGD, not {optimizer_class!r}")
        by_owner: dict[WorkerInfo, list[RRef[torch.Tensor]]] = {}
        for rref in params_rref:
            by_owner.setdefault(rref.owner(), []).append(rref)
        futures = [
            _rpc.rpc_async(owner, _make, args=(optimizer_class, rrefs, list(args), kwargs))
            for owner, rrefs in by_owner.items()
        ]
        self.remote_optimizers: list[RRef[_LocalOptimizer]] = _results(futures)

    def step(self, context_id: int) -> None:
        """Makes one step of all owners' optimizers, concurrently, and waits for all. Raises RuntimeError for an unknown
        context, and the exceptions of a step."""
        _autograd._is_valid_context(context_id)
        _results([optimizer.rpc_async().step(context_id) for optimizer in self.remote_optimizers])


def _results(futures: Iterable[torch.futures.Future[Any]]) -> list[Any]:
    """Waits for all futures and returns their results. Raises the first failure."""
    results, failure = list[Any](), None
    for future in futures:
        try:
            results.append(future.wait())
        except Exception as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return results
