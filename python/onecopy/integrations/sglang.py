# SPDX-License-Identifier: Apache-2.0
"""Weight updates for SGLang in one message of a few hundred bytes.

>>> offer = onecopy.integrations.sglang.offer(model.state_dict())  # in the trainer
>>> engine.update_weights_from_tensor(offer.named_tensors, load_format=offer.load_format)

Start the server with ``--custom-weight-loader onecopy.integrations.sglang.load_weights``.
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
# The functions and classes in pickles of tensors after "import onecopy.multiprocessing". Each only opens a handle.
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
    """The arguments of ``update_weights_from_tensor()``. Keep the offer until that call has returned, since it keeps
    the memory alive."""

    named_tensors: list[tuple[str, Any]]
    load_format: str
    handle: Handle


def offer(weights: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> Offer:
    """
    Shares all weights by one handle, whose text becomes the name of an empty tensor that SGLang serializes.

    Each rank of the server opens the memory in place. Storages on the CPU move into shared memory the first time;
    later writes of the trainer need no further copy.

    Args:
        weights: a ``state_dict()``, or ``model.named_parameters()``.

    Raises:
        MissingPackage: torch is not installed.
        InvalidArgument: weights is empty.
    """
    torch = need("torch", "torch", "onecopy.integrations.sglang")
    named = {name: tensor.detach() for name, tensor in dict(weights).items()}
    if not named:
        raise InvalidArgument("there are no weights to offer")
    handle = _share(named)
    return Offer([(str(handle), torch.empty(0))], _LOAD_FORMAT, handle)


def load_weights(model: Any, named_tensors: Iterable[tuple[str, Any]]) -> None:
    """
    Loads weights in the server, as its ``--custom-weight-loader``. Opens offers, and passes on other tensors.

    Raises:
        OwnerDied, StaleHandle: the trainer has ended, or has released the offer before the call had returned.
    """
    for name, tensor in named_tensors:
        if name.startswith(_SCHEME):
            model.load_weights(list(_open(name, framework="torch").items()))
        else:
            model.load_weights([(name, tensor)])


def allow() -> None:
    """
    Lets SGLang unpickle tensors of a trainer that has imported ``onecopy.multiprocessing``.

    SGLang unpickles only names on its list. Each process of SGLang calls ``allow()`` through the entry point
    ``sglang.srt.plugins``. The added functions open handles, and call nothing else.
    """
    try:
        common = need("sglang.srt.utils.common", "sglang", "onecopy.integrations.sglang.allow()")
        common.SafeUnpickler.ALLOWED_GLOBALS |= _OURS
    except (ImportError, AttributeError) as error:
        logging.getLogger("onecopy").warning("SGLang was not changed: %s", error)
