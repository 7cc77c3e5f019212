# SPDX-License-Identifier: Apache-2.0
"""Backward passes through several processes: the names of ``torch.distributed.autograd``.

Gradients are stored in the context, never in ``.grad``. A pass through tensors that onecopy.distributed.rpc has carried
computes the same gradients as a single process, also if a branch is unused.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from . import _hooks  # noqa: F401 - it joins rpc and the engine
from ._engine import Context as DistAutogradContext, engine_of_this_process as _engine_of_this_process


def is_available() -> bool:
    """Returns True, since no support of torch's own is needed."""
    return True


class context:
    """A context for one forward and backward pass: ``with context() as context_id``. The end of the block ends the
    context in all workers."""

    autograd_context: DistAutogradContext

    def __enter__(self) -> int:
        self.autograd_context = _new_context()
        return self.autograd_context._context_id()

    def __exit__(self, *_: object) -> None:
        _release_context(self.autograd_context._context_id())


def backward(context_id: int, roots: Sequence[torch.Tensor], retain_graph: bool = False) -> None:
    """Computes, in every worker, the gradients of all leaves on which the roots depend, which are scalar tensors.

    Returns when all gradients are computed. Raises RuntimeError for an unknown context, for a root that is not a scalar
    or does not require gradients, and with the text "Error on Node N: ..." for a failure in a worker."""
    _engine_of_this_process.backward(context_id, roots, retain_graph)


def get_gradients(context_id: int) -> dict[torch.Tensor, torch.Tensor]:
    """Returns {tensor: gradient} of this worker's leaves in that context."""
    return _engine_of_this_process.retrieve(context_id).gradients()


_new_context, _release_context = _engine_of_this_process.new_context, _engine_of_this_process.release
_retrieve_context = _is_valid_context = _engine_of_this_process.retrieve  # raises for an unknown id
_init = _engine_of_this_process.start


def _current_context() -> DistAutogradContext:
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
