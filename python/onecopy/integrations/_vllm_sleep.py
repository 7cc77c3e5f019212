# SPDX-License-Identifier: Apache-2.0
"""vLLM's ``--sleep-mode-backend onecopy``: an engine that sleeps leaves its weights to the store."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ..store import Version
from ._packages import need
from .vllm import PACKAGE, WHAT

_base = need("vllm.device_allocator.sleep_mode_backend", PACKAGE, WHAT, "CuMemBackend")


@dataclass
class _Held:
    """A version of which a model has the weights. The version stays in the store as long as this object lives."""

    version: Any
    config: Any
    names: frozenset[str] = frozenset()  #: the parameters of the model that the version has filled


_offered: weakref.WeakKeyDictionary[Any, _Held] = weakref.WeakKeyDictionary()
_held: weakref.WeakKeyDictionary[Any, _Held] = weakref.WeakKeyDictionary()


def watch(model: Any) -> None:
    """Makes each load of a model note whether the weights were offered, and thus end what was noted before."""
    load = model.load_weights
    if getattr(load, "is_watched", False):
        return
    reference = weakref.ref(model)

    def load_weights(weights: Iterable[tuple[str, Any]], *arguments: Any, **named: Any) -> Any:
        of = reference()
        _held.pop(of, None)
        offered = _offered.pop(of, None)
        names = load(weights, *arguments, **named)
        if offered is not None and names:
            _held[of] = replace(offered, names=frozenset(names))
        return names

    load_weights.is_watched = True  # type: ignore[attr-defined]
    model.load_weights = load_weights


def offer(model: Any, config: Any, weights: Any) -> None:
    """Notes that a watched model loads these weights next, if they are a version of the store."""
    _offered.pop(model, None)
    if isinstance(weights, Version) and getattr(model.load_weights, "is_watched", False):
        _offered[model] = _Held(weights, config)


class OnecopySleepBackend(_base.CuMemBackend):  # type: ignore[name-defined]
    """Discards the weights of a sleeping engine, which has no copy of its own, and loads them again from the store.

    At level 1 vLLM's backend copies the weights into pinned memory of each engine. This one keeps the version open from
    which the weights came, and copies only what else is in the memory of the weights, such as buffers. After the wake
    the model loads the version as it loads an update, at the same addresses. A model whose last weights came from
    elsewhere sleeps as with vLLM's backend.
    """

    def __init__(self) -> None:
        super().__init__()
        self._asleep: dict[Any, _Held] = {}
        self._others: list[tuple[int, Any]] = []

    def suspend(self, level: int = 1) -> None:
        """Frees the memory of the card."""
        if level != 1 or self._asleep:
            super().suspend(2 if self._asleep else level)
            return
        asleep = dict(_held)
        if not asleep:
            logging.getLogger("onecopy").warning(
                "the weights of this engine did not come from the store, so the engine sleeps with a copy of its own"
            )
            super().suspend(level)
            return
        self._others = list(_copies_of_others(_ranges(asleep)))
        super().suspend(2)  # discards the weights, and keeps what vLLM keeps at any level
        self._asleep = asleep

    def resume(self, tags: list[str] | None = None) -> None:
        """Maps memory again, and loads the weights if they are among the tags.

        If it raises, the engine must not serve; a second call tries again.
        """
        super().resume(tags)
        if not self._asleep or (tags is not None and "weights" not in tags):
            return
        self._state = "RESUMING"
        for at, content in self._others:
            _copy(at, content.data_ptr(), content.nbytes)
        engines = need("onecopy.integrations._vllm_engines", PACKAGE, WHAT)
        for model, held in self._asleep.items():
            engines.load_in_place(model, held.config, held.version)
        self._asleep, self._others, self._state = {}, [], "RUNNING"


def _ranges(models: dict[Any, _Held]) -> list[tuple[int, int]]:
    """Returns the sorted ranges of addresses of the parameters that a version fills completely."""
    parameters = (each for model, held in models.items() for each in model.named_parameters() if each[0] in held.names)
    storages = ((each.untyped_storage(), each.nbytes) for _, each in parameters)
    return sorted({(one.data_ptr(), one.data_ptr() + size) for one, size in storages if one.nbytes() == size})


def _copies_of_others(ranges: list[tuple[int, int]]) -> Iterator[tuple[int, Any]]:
    """Yields the address and a copy of all that is in the memory of the weights outside of the ranges."""
    import torch

    allocator = need("vllm.device_allocator", PACKAGE, WHAT).get_mem_allocator_instance()
    for data in list(allocator.pointer_to_data.values()):
        if data.tag != "weights" or data.is_asleep:
            continue
        at, end = data.handle[2], data.handle[2] + data.handle[1]
        for begin, stop in [*((b, e) for b, e in ranges if at <= b and e <= end), (end, end)]:
            if begin > at:
                copy = torch.empty(begin - at, dtype=torch.uint8, device="cpu")
                _copy(copy.data_ptr(), at, copy.nbytes)
                yield at, copy
            at = max(at, stop)


def _copy(to: int, at: int, size: int) -> None:
    need("vllm.device_allocator.cumem", PACKAGE, WHAT).libcudart.cudaMemcpy(to, at, size)
