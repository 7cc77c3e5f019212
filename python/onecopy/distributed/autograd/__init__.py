# SPDX-License-Identifier: Apache-2.0
"""Backward passes through several processes: the names of ``torch.distributed.autograd``.

Gradients are kept in the context, never in ``.grad``. A pass through tensors that onecopy.distributed.rpc has carried
gives what one process would give, also where a branch is not used.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from . import _hooks  # noqa: F401 - it joins rpc and the engine
from ._engine import Context as _Context, engine_of_this_process as _engine_of_this_process


def is_available() -> bool:
    """Returns True: it needs no support of torch's own."""
    return True


class context:
    """A context for one forward and backward pass; ``with context() as context_id``. Ends it in all workers."""

    def __enter__(self) -> int:
        self.autograd_context = _new_context()
        return self.autograd_context._context_id()

    def __exit__(self, *_: object) -> None:
        _release_context(self.autograd_context._context_id())


def backward(context_id: int, roots: Sequence[torch.Tensor], retain_graph: bool = False) -> None:
    """Computes the gradients of all leaves that the roots, scalar tensors, depend on, in every worker.

    Returns when all are there. Throws RuntimeError for an unknown context, a root that is not a scalar or does not
    require gradients, and "Error on Node N: ..." for a failure in a worker."""
    _engine_of_this_process.backward(context_id, roots, retain_graph)


def get_gradients(context_id: int) -> dict[torch.Tensor, torch.Tensor]:
    """Returns {tensor: gradient} of this worker's leaves in that context."""
    return _engine_of_this_process.retrieve(context_id).gradients()


_new_context, _release_context = _engine_of_this_process.new_context, _engine_of_this_process.release
_retrieve_context = _is_valid_context = _engine_of_this_process.retrieve  # raises for an unknown id
_init = _engine_of_this_process.start


def _current_context() -> _Context:
    found = _engine_of_this_process.current()
    if found is None:
        raise RuntimeError(
            "Current thread doesn't have a valid autograd context. Please wrap your code using: `with "
            "torch.distributed.autograd.context() as context_id` to generate a valid context"
        )
    return found


def _get_max_id() -> int:
    return _engine_of_this_process.max_id


def _get_debug_info() -> dict[str, str]:
    return {
        "num_current_backward_passes": str(_engine_of_this_process.passes),
        "num_autograd_contexts": str(_engine_of_this_process.count()),
    }
