# SPDX-License-Identifier: Apache-2.0
"""What the writer and the reader of checkpoints have in common."""

from __future__ import annotations

from typing import Any

from torch.futures import Future

from .. import store as _stores

METADATA = ".metadata"  #: the name of the bytes that are the pickled metadata
CHECKPOINT = "checkpoint_id"  #: the attribute that has the id of a checkpoint


def done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


class Connected:
    """An object with a store, which other processes connect to anew."""

    def __init__(self, name: str, store: _stores.Store | None) -> None:
        self._name = name
        self._given = store

    @property
    def _store(self) -> _stores.Store:
        if self._given is None:
            self._given = _stores.connect(framework="torch")
        return self._given

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Returns True: the id is a text beside the checkpoint, and its name is given to the constructor."""
        return True
