# SPDX-License-Identifier: Apache-2.0
"""Outputs that were handed out in memory that a replay overwrites."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from ..errors import Error
from ._arena_lock import ArenaLock


class OutputInUse(Error):
    """A replay would overwrite an output of an earlier call that is still held; drop it, or use outputs="copy"."""


class Leases:
    """Outputs that were handed out in place.

    Thread safety: with the arena's lock.
    """

    def __init__(self, lock: ArenaLock | None = None) -> None:
        self._leases: dict[int, _Lease] = {}  # by storage
        self._lock = lock

    def add(self, storage: torch.UntypedStorage) -> None:
        """Adds a storage in memory that a replay overwrites."""
        self._leases[storage._cdata] = _Lease(storage)
        self._tell()

    def _tell(self) -> None:
        """Tells the lock how many leases there are: with any, each graph checks them before it runs."""
        if self._lock is not None:
            self._lock.core.set_leases(len(self._leases))

    @property
    def is_empty(self) -> bool:
        """Returns whether no output has been handed out since they were moved last."""
        return not self._leases

    def show_all(self, results: list[Any]) -> None:
        """Records that ``results`` are handed out; some may be tensors in leased storages."""
        if not self._leases:
            return
        for result in results:
            lease = self._leases.get(result.untyped_storage()._cdata) if isinstance(result, torch.Tensor) else None
            if lease is not None:
                lease.tensors.append(weakref.ref(result))

    def evacuate(self) -> None:
        """Moves outputs that are still held to memory of their own.

        Raises:
            OutputInUse: torch before 2.12 cannot move a tensor that others are views of. Nothing is changed.
        """
        if not self._leases:
            return
        held = [(lease, s) for lease in self._leases.values() if (s := lease.storage()) is not None]
        swaps = getattr(torch.UntypedStorage, "_swap_data_ptr_", None) is not None
        fixed = [storage for lease, storage in held if not swaps and not lease.is_all_there_is(storage)]
        if fixed:
            raise OutputInUse(
                f"views of {len(fixed)} outputs of earlier calls are held, and this call would overwrite them; drop "
                'them, clone() them, or use outputs="copy"'
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
    """A storage, and the tensors in it that were handed out."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._storage = torch.multiprocessing.reductions.StorageWeakRef(storage)
        self.tensors: list[weakref.ref[torch.Tensor]] = []

    def storage(self) -> torch.UntypedStorage | None:
        """Returns the storage, or None if nothing holds it."""
        return torch.UntypedStorage._new_with_weak_ptr(self._storage.cdata)

    def is_all_there_is(self, storage: torch.UntypedStorage) -> bool:
        """Returns whether only the tensors that were handed out hold the storage."""
        known = sum(tensor() is not None for tensor in self.tensors)
        return torch._C._storage_Use_Count(storage._cdata) == known + 1  # and `storage` itself

    def move_tensors(self, own: torch.UntypedStorage) -> None:
        for reference in self.tensors:
            tensor = reference()
            if tensor is not None:
                place = torch.empty(0, dtype=tensor.dtype, device=own.device)
                tensor.data = place.set_(own, tensor.storage_offset(), tensor.shape, tensor.stride())
