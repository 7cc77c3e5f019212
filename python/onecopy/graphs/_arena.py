# SPDX-License-Identifier: Apache-2.0
"""The memory that captured graphs have in common, and who still holds outputs in it."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import torch

from .. import _core
from ..errors import Error, InvalidArgument


class OutputInUse(Error):
    """A replay would overwrite an output of an earlier call that is still held; drop it, or use outputs="copy"."""


class Arena:
    """Scratch memory of graphs on one device: as much as the largest of them, in whatever order they are captured.

    Graphs of one arena run one at a time. All methods may be called by any thread.

    Args:
        device: ``"cpu"``: graphs run on the CPU so far.
        limit: the most bytes that graphs may share; a shape that needs more runs eagerly, which ``report()`` counts.
    """

    def __init__(self, device: str = "cpu", limit: int | None = None) -> None:
        if torch.device(device).type != "cpu":
            raise _core_unsupported(device)
        if limit is not None and limit <= 0:
            raise InvalidArgument(f"limit is {limit} bytes; give a number above 0, or None for no limit")
        self.device = torch.device(device)
        self.lock = threading.RLock()
        self.functions: weakref.WeakSet[Any] = weakref.WeakSet()
        self.leases = Leases()
        self._memory = _core._GraphArena(limit)

    def open(self, nbytes: int) -> Any:
        """Addresses for one capture. Raises OutOfMemory, InvalidArgument while parked."""
        return self._memory.open(max(nbytes, 1))

    @property
    def footprint(self) -> Any:
        """Bytes: ``shared`` physical memory, ``mapped`` addresses; ``windows``, ``parked``."""
        return self._memory.footprint()

    def park(self) -> None:
        """Gives the memory back to the system; graphs keep their addresses, and calls fail until ``resume()``.

        Raises:
            OutputInUse: an output that lies in the arena is still held.
        """
        with self.lock:
            self.leases.evacuate()
            self._memory.park()

    def resume(self) -> None:
        """Gets memory again. Raises OutOfMemory; then the arena is parked still."""
        with self.lock:
            self._memory.resume()

    def require_resumed(self) -> None:
        """Raises InvalidArgument while parked."""
        if self._memory.footprint().parked:
            raise InvalidArgument("the arena is parked; resume() it before its graphs run")


def _core_unsupported(device: Any) -> Error:
    from ..errors import Unsupported

    return Unsupported(
        f"graphs run on the CPU so far, and this one is on {device}; use "
        'torch.compile(mode="reduce-overhead") for it meanwhile'
    )


class Leases:
    """Outputs that were handed out where they lie.

    Thread safety: with the arena's lock.
    """

    def __init__(self) -> None:
        self._storages: list[torch.multiprocessing.reductions.StorageWeakRef] = []

    def add(self, storage: torch.UntypedStorage) -> None:
        self._storages.append(torch.multiprocessing.reductions.StorageWeakRef(storage))

    def evacuate(self) -> None:
        """Moves what is still held to memory of its own, where torch can (2.12 and later).

        Raises:
            OutputInUse: torch cannot. Nothing is changed.
        """
        if not self._storages:
            return
        held = [s for s in map(_storage_of, self._storages) if s is not None]
        if held and getattr(torch.UntypedStorage, "_swap_data_ptr_", None) is None:
            raise OutputInUse(
                f"{len(held)} outputs of earlier calls are held, and this call would overwrite them; drop them, "
                'clone() them, or use outputs="copy"'
            )
        for storage in held:
            own = torch.UntypedStorage(storage.nbytes())
            own.copy_(storage)
            storage._swap_data_ptr_(own)
        self._storages.clear()

    def __len__(self) -> int:
        return sum(not s.expired() for s in self._storages)


def _storage_of(reference: Any) -> torch.UntypedStorage | None:
    return torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
