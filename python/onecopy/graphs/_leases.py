# SPDX-License-Identifier: Apache-2.0
"""Tracks outputs that the program holds in memory that a replay overwrites."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from ..errors import Error
from ._arena_lock import ArenaLock


class OutputInUse(Error):
    """A replay would overwrite an output that is still held. Release the output, or use outputs="copy"."""


class Leases:
    """The outputs that calls have returned in place.

    Thread safety: the caller holds the arena's lock.
    """

    def __init__(self, lock: ArenaLock | None = None) -> None:
        self._leases: dict[int, _Lease] = {}  # by the address of the storage's object
        self._lock = lock

    def add(self, storage: torch.UntypedStorage) -> None:
        """Adds a storage in memory that a replay overwrites."""
        self._leases[storage._cdata] = _Lease(storage)
        self._tell()

    def _tell(self) -> None:
        """Tells the lock the number of leases. If it is not 0, each graph evacuates them before it runs."""
        if self._lock is not None:
            self._lock.core.set_leases(len(self._leases))

    @property
    def is_empty(self) -> bool:
        """Returns whether evacuate() has nothing to do: no output was returned since its last call."""
        return not self._leases

    def show_all(self, results: list[Any]) -> None:
        """Records the tensors among ``results`` that lie in leased storages."""
        if not self._leases:
            return
        for result in results:
            lease = self._leases.get(result.untyped_storage()._cdata) if isinstance(result, torch.Tensor) else None
            if lease is not None:
                lease.tensors.append(weakref.ref(result))

    def evacuate(self) -> None:
        """Moves the outputs that are still held out of the arena.

        Raises:
            OutputInUse: the outputs have views, which torch before 2.12 cannot move. Nothing is changed.
        """
        if not self._leases:
            return
        held = [(lease, s) for lease in self._leases.values() if (s := lease.storage()) is not None]
        swaps = getattr(torch.UntypedStorage, "_swap_data_ptr_", None) is not None
        fixed = [storage for lease, storage in held if not swaps and not lease.is_all_there_is(storage)]
        if fixed:
            raise OutputInUse(
                f"this call would overwrite {len(fixed)} outputs of earlier calls of which the program holds views; "
                'release them, clone() them, or use outputs="copy"'
            )
        for lease, storage in held:
            own = torch.UntypedStorage(storage.nbytes(), device=storage.device)
            own.copy_(storage)
            if swaps:
                storage._swap_data_ptr_(own)
            else:
                lease.move_tensors(own)
        self._leases.clear()
        self._tell()

    def __len__(self) -> int:
        return sum(lease.storage() is not None for lease in self._leases.values())


class _Lease:
    """A storage, and the tensors in it that calls have returned."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._storage = torch.multiprocessing.reductions.StorageWeakRef(storage)
        self.tensors: list[weakref.ref[torch.Tensor]] = []

    def storage(self) -> torch.UntypedStorage | None:
        """Returns the storage, or None if it was released."""
        return torch.UntypedStorage._new_with_weak_ptr(self._storage.cdata)

    def is_all_there_is(self, storage: torch.UntypedStorage) -> bool:
        """Returns whether only the recorded tensors hold the storage."""
        known = sum(tensor() is not None for tensor in self.tensors)
        return torch._C._storage_Use_Count(storage._cdata) == known + 1  # and `storage` itself

    def move_tensors(self, own: torch.UntypedStorage) -> None:
        for reference in self.tensors:
            tensor = reference()
            if tensor is not None:
                place = torch.empty(0, dtype=tensor.dtype, device=own.device)
                tensor.data = place.set_(own, tensor.storage_offset(), tensor.shape, tensor.stride())
