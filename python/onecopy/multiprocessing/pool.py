# SPDX-License-Identifier: Apache-2.0
"""Pools of processes whose tasks and results carry tensors by handle."""

from __future__ import annotations

import multiprocessing.pool
import multiprocessing.queues
from multiprocessing.pool import ThreadPool
from typing import Any

from .queues import SimpleQueue

__all__ = ["Pool", "ThreadPool"]


def __getattr__(name: str) -> Any:
    """The rest of multiprocessing.pool, as it is."""
    return getattr(multiprocessing.pool, name)


class Pool(multiprocessing.pool.Pool):
    """The standard library's pool; results are there although the worker that made them is gone.

    Results come through our queue, which delivers what a dead process put. Tasks go through a pipe: its end
    tells workers that their pool was killed.
    """

    def _setup_queues(self) -> None:
        self._inqueue = multiprocessing.queues.SimpleQueue(ctx=self._ctx)
        self._outqueue = SimpleQueue(ctx=self._ctx)
        self._quick_put = self._inqueue._writer.send
        self._quick_get = self._outqueue._reader.recv
