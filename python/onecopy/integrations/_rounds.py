# SPDX-License-Identifier: Apache-2.0
"""Rounds of new weights through the store, for the plugs whose sender and receivers run at the same time."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .. import InvalidArgument, StaleHandle, Timeout, store as _stores

_LOOKS = 0.02  # seconds between two looks for a new version


class Rounds:
    """Versions of one object, of which a sender publishes one in each round.

    A receiver gets a whole version, and never one that is older than the version of its last round. A receiver without
    a round, such as a new engine, gets the current version, also when the trainer has ended. If a round fails, nothing
    is published, and the receiver raises Timeout with its old weights unchanged.

    From the second round on, the sender copies each tensor into the memory of the next version when the trainer yields
    the tensor. In the first one, and if tensors have changed their layout, all of them are held first.

    Args:
        name: the name of the object.
        keep: the number of versions to keep.
        timeout: how many seconds a receiver waits for a version.
        plug: the name of the plug, for an error.
    """

    def __init__(self, name: str, keep: int, timeout: float, plug: str) -> None:
        if not name:
            raise InvalidArgument(f"{plug} needs the option store, the name of an object of the store")
        self._name, self._keep, self._timeout = name, keep, timeout
        self._connection: _stores.Store | None = None

    @property
    def _store(self) -> _stores.Store:
        if self._connection is None:
            self._connection = _stores.connect(framework="torch")
        return self._connection

    def current(self) -> int:
        """Returns the number of the current version; 0 if there is none."""
        try:
            return self._store.open(self._name).version
        except StaleHandle:
            return 0

    def send(self, weights: Iterable[tuple[str, Any]], attributes: Mapping[str, str]) -> int:
        """Publishes weights, and returns the number of the version.

        All weights are taken also if the version fails, since the other ranks take part in making each of them.
        """
        source = iter(weights)
        try:
            return self._publish(source, attributes)
        finally:
            for _ in source:
                pass

    def _publish(self, weights: Iterator[tuple[str, Any]], attributes: Mapping[str, str]) -> int:
        layout = self._layout()
        options: dict[str, Any] = {"keep": self._keep, "attributes": attributes}
        draft = self._store.draft(self._name, layout, **options) if layout else None
        written: set[str] = set()
        others: dict[str, Any] = {}
        try:
            for name, tensor in weights:
                if draft is not None and layout.get(name) == (tuple(tensor.shape), tensor.dtype):
                    draft[name].copy_(tensor.detach())
                    written.add(name)
                else:
                    others[name] = tensor.detach().to("cpu", copy=True)
            if draft is not None and len(written) == len(layout) and not others:
                return draft.publish()
            everything = {**others, **{name: draft[name] for name in written if draft is not None}}
            return self._store.publish(self._name, everything, **options)
        finally:
            if draft is not None and draft.version is None:
                draft.abort()

    def _layout(self) -> dict[str, tuple[Any, Any]]:
        """Returns the layout of the current version; an empty one if there is none."""
        with contextlib.suppress(StaleHandle):
            return {name: (tuple(each.shape), each.dtype) for name, each in _tensors(self._store.open(self._name))}
        return {}

    async def receive(self, after: int | None) -> _stores.Version:
        """Waits for a version with a number above ``after``. Opens the current one if ``after`` is None.

        Raises:
            Timeout: the trainer has published no version.
            StaleHandle: ``after`` is None, and there is no version.
        """
        if after is None:
            return self._store.open(self._name)
        until = time.monotonic() + self._timeout
        while time.monotonic() < until:
            with contextlib.suppress(StaleHandle):
                version = self._store.open(self._name)
                if version.version > after:
                    return version
            await asyncio.sleep(_LOOKS)
        raise Timeout(
            f"the trainer has published no version of {self._name!r} after {after} for {self._timeout:g} s, so its "
            f"round has failed; the engine keeps its old weights"
        )


def _tensors(version: _stores.Version) -> Iterator[tuple[str, Any]]:
    return ((name, each) for name, each in version.items() if not isinstance(each, bytes))


def on_the_card(version: _stores.Version) -> Iterator[tuple[str, Any]]:
    """Yields the tensors of a version: copies on the card of this process, or the version's own without a card."""
    import torch

    card = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    for name, tensor in _tensors(version):
        yield name, tensor if card is None else tensor.to(card)
