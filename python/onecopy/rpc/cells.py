# SPDX-License-Identifier: Apache-2.0
"""The slots of values that a member owns for others."""

from __future__ import annotations

import threading
from typing import Any

import torch

from .errors import RemoteFailure


class Cell:
    """A slot of the owner for a value, or for the failure to make the value. A Future is made for those who wait."""

    __slots__ = ("_future", "_is_set", "_lock", "_made")

    def __init__(self) -> None:
        self._lock, self._is_set, self._made = threading.Lock(), False, None
        self._future: torch.futures.Future[Any] | None = None

    def set(self, value: Any) -> None:
        """Sets the value, unless it is set. Callbacks of the future run in this thread, without the lock."""
        with self._lock:
            if self._is_set:
                return
            self._made, self._is_set = value, True
            future = self._future
        if future is not None:
            future.set_result(value)

    def is_set(self) -> bool:
        """Returns whether there is a value or a failure."""
        return self._is_set

    def made(self) -> Any:
        """Returns the value or the failure. REQUIRES: is_set()."""
        return self._made

    @property
    def future(self) -> torch.futures.Future[Any]:
        """The Future of the value or the failure."""
        with self._lock:
            if self._future is None:
                self._future = torch.futures.Future()
                if self._is_set:
                    self._future.set_result(self._made)
            return self._future

    def value(self) -> Any:
        """Waits for the value and returns it. Raises the failure to make the value."""
        return self.unwrap(self._made if self._is_set else self.future.wait())

    @staticmethod
    def unwrap(value: Any) -> Any:
        """Returns a result of the future, or raises the result if it is a failure."""
        if isinstance(value, RemoteFailure):
            raise value.exception()
        return value
