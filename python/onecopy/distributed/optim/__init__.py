# SPDX-License-Identifier: Apache-2.0
"""Optimizers of parameters that several processes own: the names of ``torch.distributed.optim`` that rpc needs."""

import inspect
import threading

from .. import autograd as _autograd
from .. import rpc as _rpc

__all__ = ["DistributedOptimizer"]


class _LocalOptimizer:
    """An optimizer of parameters of this process, whose gradients are in a context. One step at a time."""

    step_lock = (
        threading.Lock()
    )  # of all: torch's optimizers are not safe for threads, and may have parameters in common

    def __init__(self, kind, parameter_rrefs, *args, **kwargs):
        self._parameters = [rref.local_value() for rref in parameter_rrefs]
        self._optimizer = kind(self._parameters, *args, **kwargs)

    def step(self, context_id):
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


def _make(kind, parameter_rrefs, args, kwargs):
    return _rpc.RRef(_LocalOptimizer(kind, parameter_rrefs, *args, **kwargs))


def _step(optimizer_rref, context_id):
    optimizer_rref.local_value().step(context_id)


class DistributedOptimizer:
    """Runs an ordinary torch.optim class on each owner of the parameters, with the gradients of one context.

    Args:
        optimizer_class: a class of torch.optim, or one with its constructor and step().
        params_rref: references to the parameters.
        args, kwargs: for the class.
    Throws what its constructor throws on an owner."""

    def __init__(self, optimizer_class, params_rref, *args, **kwargs):
        if not inspect.isclass(optimizer_class):
            raise TypeError(f"optimizer_class is a class such as torch.optim.SGD, not {optimizer_class!r}")
        by_owner = {}
        for rref in params_rref:
            by_owner.setdefault(rref.owner(), []).append(rref)
        futures = [
            _rpc.rpc_async(owner, _make, args=(optimizer_class, rrefs, list(args), kwargs))
            for owner, rrefs in by_owner.items()
        ]
        self.remote_optimizers = _results(futures)

    def step(self, context_id):
        """One step of each owner's optimizer, all at once. Returns when all are done. Throws RuntimeError for an
        unknown context, and a step's exceptions."""
        _autograd._is_valid_context(context_id)
        _results([_rpc.rpc_async(o.owner(), _step, args=(o, context_id)) for o in self.remote_optimizers])


def _results(futures):
    """All results; throws the first failure when all are done."""
    results, failure = [], None
    for future in futures:
        try:
            results.append(future.wait())
        except Exception as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return results
