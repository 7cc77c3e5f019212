# SPDX-License-Identifier: Apache-2.0
"""SGLang: weights of a trainer in one message of a few hundred bytes, and its serializer with our import.

>>> offer = onecopy.integrations.sglang.offer(model.state_dict())  # in the trainer
>>> engine.update_weights_from_tensor(offer.named_tensors, load_format=offer.load_format)

The server is started with ``--custom-weight-loader onecopy.integrations.sglang.load_weights``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from .. import Handle, InvalidArgument, open as _open, share as _share
from ._packages import need

__all__ = ["Offer", "allow", "load_weights", "offer"]

_LOAD_FORMAT = "onecopy.integrations.sglang.load_weights"
_SCHEME = "onecopy:"
# Functions and classes that a tensor pickled after "import onecopy.multiprocessing" names; each makes data of a handle.
_OURS = {
    ("onecopy.multiprocessing.reductions", name)
    for name in (
        "SharedStorage",
        "rebuild_cpu_tensor",
        "rebuild_shared_tensor",
        "rebuild_storage",
        "rebuild_storage_empty",
        "rebuild_typed_storage",
        "rebuild_unusual_tensor",
    )
}


class Offer(NamedTuple):
    """Arguments of ``update_weights_from_tensor()``. Keep it until that call has returned: it keeps the memory."""

    named_tensors: list[tuple[str, Any]]
    load_format: str
    handle: Handle


def offer(weights: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> Offer:
    """
    Names all weights by one handle, which is the name of an empty tensor: SGLang serializes that, and nothing else.

    Each rank of the server opens the memory where it is. Storages of the CPU are moved into shared memory the first
    time; later writes of the trainer need no further copy.

    Args:
        weights: a ``state_dict()``, or ``model.named_parameters()``.

    Raises:
        MissingPackage: torch is not installed.
        InvalidArgument: there are none.
    """
    torch = need("torch", "torch", "onecopy.integrations.sglang")
    named = {name: tensor.detach() for name, tensor in dict(weights).items()}
    if not named:
        raise InvalidArgument("there are no weights to offer")
    handle = _share(named)
    return Offer([(str(handle), torch.empty(0))], _LOAD_FORMAT, handle)


def load_weights(model: Any, named_tensors: Iterable[tuple[str, Any]]) -> None:
    """
    Loads weights in the server, as its ``--custom-weight-loader``: opens offers, and passes other tensors on.

    Raises:
        OwnerDied, StaleHandle: the trainer has ended, or has dropped the offer before the call had returned.
    """
    for name, tensor in named_tensors:
        if name.startswith(_SCHEME):
            model.load_weights(list(_open(name, framework="torch").items()))
        else:
            model.load_weights([(name, tensor)])


def allow() -> None:
    """
    Lets SGLang unpickle tensors of a trainer that has imported ``onecopy.multiprocessing``.

    SGLang takes the names of a list only. It calls this itself in each of its processes, by its entry point
    ``sglang.srt.plugins``. The names that are added make tensors of handles, and call nothing else.
    """
    try:
        common = need("sglang.srt.utils.common", "sglang", "onecopy.integrations.sglang.allow()")
        common.SafeUnpickler.ALLOWED_GLOBALS |= _OURS
    except (ImportError, AttributeError) as error:
        logging.getLogger("onecopy").warning("SGLang is left as it is: %s", error)
