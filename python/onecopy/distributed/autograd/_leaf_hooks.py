# SPDX-License-Identifier: Apache-2.0
"""Runs the hooks of the nodes that accumulate gradients of leaves (AccumulateGrad).

DistributedDataParallel averages gradients in such hooks. Gradients of a context never go to ``.grad``, so torch's own
engine of distributed autograd runs the hooks, in a context of torch that exists for one run: hooks then see what they
see in torch's distributed autograd, and change the gradients in that context.

A graph does not show hooks that C++ code registered. The parameters of DistributedDataParallel have them; its
constructor is therefore replaced by a function that also records the module. Hooks of Python are looked for only
after the program has registered any hook.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

Hooked: TypeAlias = list[tuple[torch.Tensor, torch.Tensor]]  # leaves whose nodes have hooks, and their gradients

_replicated: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()
_delayed: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()  # modules whose first average is not made yet


def _record_replicated() -> None:
    """Records each DistributedDataParallel, including those that exist already."""
    construct = DistributedDataParallel.__init__

    @functools.wraps(construct)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        _replicated.add(self)

    DistributedDataParallel.__init__ = __init__
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        _replicated.update(thing for thing in gc.get_objects() if issubclass(type(thing), DistributedDataParallel))


_record_replicated()


def hook_finder() -> Callable[[Any, torch.Tensor], bool] | None:
    """Returns a function of an AccumulateGrad node and its leaf, which returns whether the node may have hooks, or None
    if no node has hooks."""
    modules = {id(leaf): module for module in list(_replicated) for leaf in module.parameters()}
    if not modules and RemovableHandle.next_id == 0:  # torch counts the hooks that Python code has registered
        return None

    def has_hooks(node: Any, leaf: torch.Tensor) -> bool:
        module = modules.get(id(leaf))
        if module is None:
            return _has_hooks_of_python(node)
        _delay_first_average(module)
        return True

    return has_hooks


def _delay_first_average(module: DistributedDataParallel) -> None:
    """Keeps a module with a static graph from making its first average at the end of the pass that reaches its outputs,
    since the hooks of its parameters run after that pass: run_hooks() makes the average."""
    if module.static_graph and not module._static_graph_delay_allreduce_enqueued:
        module._static_graph_delay_allreduce_enqueued = True
        _delayed.add(module)


def _has_hooks_of_python(node: Any) -> bool:
    for register in (node.register_hook, node.register_prehook):
        handle = register(_nothing)
        hooks = handle.hooks_dict_ref()
        handle.remove()
        if hooks:
            return True
    return False


def _nothing(*_: Any) -> None:
    pass


class _Deliver(torch.autograd.Function):
    """A scalar whose backward pass gives each leaf a gradient that is known already."""

    @staticmethod
    def forward(
        ctx: Any, gradients: Sequence[torch.Tensor], at_end: Sequence[Callable[[], None]], *leaves: torch.Tensor
    ) -> torch.Tensor:
        ctx.gradients, ctx.at_end = gradients, at_end
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, one: torch.Tensor) -> Any:
        for function in ctx.at_end:
            torch.autograd.Variable._execution_engine.queue_callback(function)
        return None, None, *ctx.gradients


def run_hooks(worker_id: int, hooked: Hooked) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
    """Runs the hooks of the nodes of leaves with their gradients, given as (leaf, gradient). Returns the leaves with
    the gradients after the hooks, which may have exchanged them with other processes. Hooks of the leaves themselves
    have run already, and do not run again. Raises RuntimeError that names the worker."""
    leaves, gradients = zip(*hooked)
    try:
        return zip(leaves, _run(_torch_engine(worker_id), leaves, gradients))
    except Exception as error:
        text = f"Error on Node {worker_id}: a hook of an AccumulateGrad node failed: {error}"
        raise RuntimeError(text) from error


def _run(engine: Any, leaves: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    with torch.enable_grad():
        root = _Deliver.apply(gradients, _first_averages(leaves), *leaves)
    context_id = engine._new_context()._context_id()
    try:
        with _without_hooks_of(leaves):
            engine.backward(context_id, [root])
        found = engine.get_gradients(context_id)
    finally:
        engine._release_context(context_id)
    return [found[leaf] for leaf in leaves]


def _first_averages(leaves: Sequence[torch.Tensor]) -> list[Callable[[], None]]:
    """Returns the functions that make the first average of modules with a static graph, for the end of the pass."""
    ids, functions = set(map(id, leaves)), []
    for module in list(_delayed):
        if any(id(leaf) in ids for leaf in module.parameters()):
            _delayed.discard(module)
            functions.append(module.reducer._delay_all_reduce)
    return functions


def _torch_engine(worker_id: int) -> Any:
    """Returns the module of torch's engine, which is initialised if torch's own rpc has not done so."""
    import torch.distributed.autograd

    engine = getattr(torch._C, "_distributed_autograd", None)
    if engine is None:
        raise RuntimeError(
            "a leaf has hooks on its AccumulateGrad node, as those of DistributedDataParallel, and this torch is built "
            "without distributed autograd, which runs them"
        )
    try:
        engine._get_max_id()
    except RuntimeError:
        engine._init(worker_id)
    return engine


@contextlib.contextmanager
def _without_hooks_of(leaves: Sequence[torch.Tensor]) -> Iterator[None]:
    """Replaces the hooks of the tensors by functions without effect for the block."""
    replaced = []
    for leaf in leaves:
        hooks: dict[int, Any] = leaf._backward_hooks or {}
        for key, hook in list(hooks.items()):
            replaced.append((hooks, key, hook))
            hooks[key] = _nothing
    try:
        yield
    finally:
        for hooks, key, hook in replaced:
            if hooks.get(key) is _nothing:  # it was not removed meanwhile
                hooks[key] = hook
