# SPDX-License-Identifier: Apache-2.0
"""Weight updates for SGLang in one message of a few hundred bytes.

>>> onecopy.integrations.sglang.update(engine, model.state_dict())  # in the trainer

Start the server with ``--custom-weight-loader onecopy.integrations.sglang.load_weights``.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
import types
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from .. import Error, Handle, InvalidArgument, open as _open, share as _share
from ._packages import need
from ._sglang_weights import of_all_ranks, watch

__all__ = ["Offer", "allow", "load_weights", "offer", "update"]

_PACKAGE, _WHAT = "sglang", "onecopy.integrations.sglang.allow()"
_LOAD_FORMAT = "onecopy.integrations.sglang.load_weights"
_UPDATER = "sglang.srt.model_executor.model_runner_components.weight_updater.WeightUpdater"
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
    the memory alive. ``update()`` makes the call."""

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


def update(
    engine: Any, weights: Offer | Mapping[str, Any] | Iterable[tuple[str, Any]], flush_cache: bool = True
) -> None:
    """
    Gives an engine new weights. When the call returns, all ranks of the engine serve them.

    SGLang loads weights between ``begin_weight_update()`` and ``end_weight_update()`` only, and returns a refusal
    instead of raising it. ``update()`` makes all calls, and ends a session that a dead trainer has left open.

    Args:
        engine: an ``sglang.Engine``, or an object with its methods.
        weights: an offer, or the argument of ``offer()``.
        flush_cache: the argument of ``update_weights_from_tensor()``.

    Raises:
        Error: SGLang has refused the weights, for the reason in the message.
    """
    made = weights if isinstance(weights, Offer) else offer(weights)
    has_sessions = hasattr(engine, "begin_weight_update")
    if has_sessions:
        _begin(engine)
    try:
        answer = engine.update_weights_from_tensor(
            made.named_tensors, load_format=made.load_format, flush_cache=flush_cache
        )
    finally:
        end = engine.end_weight_update() if has_sessions else (True, "")
    for is_done, message in (_answer(answer), _answer(end)):
        if not is_done:
            raise Error(f"SGLang has not loaded the weights: {message}")


def _begin(engine: Any) -> None:
    """Begins an update, after ending a session that a dead trainer has left open: an engine allows one at a time."""
    is_open, message = _answer(engine.begin_weight_update())
    if not is_open and _answer(engine.end_weight_update())[0]:
        is_open, message = _answer(engine.begin_weight_update())
    if not is_open:
        raise Error(f"SGLang allows no weight update: {message}")


def _answer(answer: Any) -> tuple[bool, str]:
    """Returns success and message of an ``Engine``'s tuple, or of a server's JSON."""
    return (answer["success"], answer["message"]) if isinstance(answer, Mapping) else tuple(answer)[:2]


def load_weights(model: Any, named_tensors: Iterable[tuple[str, Any]]) -> None:
    """
    Loads weights in the server, as its ``--custom-weight-loader``. Opens offers, and passes on other tensors.

    No rank loads anything before all ranks have opened the offer, so the engine keeps its old weights if one cannot.

    Raises:
        Error: a rank could not open the offer, because the trainer has ended, or has released the offer before the call
            had returned; or the model has refused a weight.
    """
    weights: list[tuple[str, Any]] = []
    mine = ""
    try:
        for name, tensor in named_tensors:
            weights.extend(_open(name, framework="torch").items() if name.startswith(_SCHEME) else [(name, tensor)])
    except Error as error:
        mine = f"{type(error).__name__}: {error}"
    for refusal in filter(None, of_all_ranks(mine)):
        raise Error(f"{refusal}; the engine keeps its old weights")
    try:
        model.load_weights(weights)
    except Exception as error:
        raise Error(
            f"the model has refused a weight, and has some of the new ones, so update it again: "
            f"{type(error).__name__}: {error}"
        ) from error


def allow() -> None:
    """
    Lets SGLang unpickle tensors of a trainer that has imported ``onecopy.multiprocessing``, answer a failed update, and
    tell its KV pool of new weights.

    SGLang unpickles only names on its list. Each process of SGLang calls ``allow()`` through the entry point
    ``sglang.srt.plugins``. The added functions open handles, and call nothing else. An exception of a weight loader
    would end the engine: that of ``load_weights()`` becomes the answer of ``update_weights_from_tensor()``.
    """
    try:
        common = need("sglang.srt.utils.common", _PACKAGE, _WHAT)
        common.SafeUnpickler.ALLOWED_GLOBALS |= _OURS
        hooks = need("sglang.srt.plugins.hook_registry", _PACKAGE, _WHAT, "HookRegistry", "HookType")
        target = f"{_UPDATER}.update_weights_from_tensor"
        hooks.HookRegistry.register(target, _answer_errors, hooks.HookType.AROUND)
        watch()
        _register_loader()
    except (ImportError, AttributeError) as error:
        logging.getLogger("onecopy").warning("SGLang works with onecopy in part: %s", error)


def _register_loader() -> None:
    """Provides the module that ``--load-format private`` imports and that SGLang does not have, unless it is there."""
    if "sglang.private" in sys.modules or importlib.util.find_spec("sglang.private"):
        return
    package, module = types.ModuleType("sglang.private"), types.ModuleType("sglang.private.private_model_loader")
    package.__path__ = []

    def find(name: str) -> Any:
        if name != "PrivateModelLoader":
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
        return need("onecopy.integrations._sglang_loader", _PACKAGE, _WHAT).OnecopyModelLoader

    module.__getattr__ = find  # type: ignore[method-assign]
    sys.modules.update({package.__name__: package, module.__name__: module})


def _answer_errors(load: Any, *arguments: Any, **named: Any) -> Any:
    try:
        return load(*arguments, **named)
    except Error as error:
        return False, str(error)
