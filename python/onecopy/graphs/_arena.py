# SPDX-License-Identifier: Apache-2.0
"""The memory that captured graphs have in common, and the outputs in it that are still held."""

from __future__ import annotations

import dataclasses
import threading
import weakref
from typing import Any

import torch

from .. import _core
from ..errors import Error, InvalidArgument, Unsupported
from ._turn import Turn


class OutputInUse(Error):
    """A replay would overwrite an output of an earlier call that is still held; drop it, or use outputs="copy"."""


class Arena:
    """The scratch memory of graphs on one device: as much as the largest needs, in any order of captures.

    Graphs of one arena run one at a time. All methods may be called by any thread.

    Args:
        device: ``"cpu"`` or a CUDA device; None: that of its first graph.
        limit: the most bytes that graphs may share; a shape that needs more runs eagerly, which ``report()`` counts.
    """

    def __init__(self, device: Any = None, limit: int | None = None) -> None:
        if limit is not None and limit <= 0:
            raise InvalidArgument(f"limit is {limit} bytes; give a number above 0, or None for no limit")
        self.limit = limit
        self.turn = self.lock = Turn()
        self.functions: weakref.WeakSet[Any] = weakref.WeakSet()
        self.leases = Leases(self.turn)
        self.copies_in_graphs = False
        """Whether copies of inputs and outputs are nodes of graphs."""
        self.device: torch.device | None = None
        self._memory: Any = None
        if device is not None:
            self.bind(device)

    def bind(self, device: Any) -> None:
        """Its graphs are on this device.

        Raises:
            InvalidArgument: they are on another one.
            Unsupported: graphs cannot run there.
        """
        device = _with_index(torch.device(device))
        with self.lock:
            if self.device is None:
                self._memory = _core._GraphArena(str(device), self.limit)
                self.device = device
                if device.type == "cuda":
                    self._prepare_captures(device)
            elif self.device != device:
                raise InvalidArgument(
                    f"the arena is on {self.device}, and this graph on {device}; give each device an arena of its own"
                )

    def _prepare_captures(self, device: torch.device) -> None:
        from .._captures import watch
        from ._captures import KEEPS_GRAPHS

        watch()  # pinned memory that is dropped meanwhile would spoil a capture
        with torch.cuda.device(device):
            self.stream = torch.cuda.Stream()
        self.turn.core.bind(str(device))
        self.copies_in_graphs = KEEPS_GRAPHS and _core._prepare_graphs(str(device))

    def copy_nodes(self, memory: list[tuple[int, int]]) -> list[int]:
        """Nodes of the graph that is captured now, for copies to or from these addresses and bytes."""
        return list(_core._graph_copies(str(self.device), torch.cuda.current_stream(self.device).cuda_stream, memory))

    def open(self, nbytes: int) -> Any:
        """Returns addresses for one capture on the CPU. Raises OutOfMemory, InvalidArgument while parked."""
        return self._memory.open(max(nbytes, 1))

    def open_pool(self) -> Any:
        """Returns memory for one capture on a card. Raises InvalidArgument while parked."""
        from ._pool import CapturePool

        most = torch.cuda.get_device_properties(self.device).total_memory
        return CapturePool(_core._GraphPool(self._memory, min(self.limit or most, most)))

    def collect(self) -> None:
        """Gives memory of dropped graphs back."""
        if self.device is not None and self.device.type == "cuda":
            from ._captures import close_dropped

            close_dropped()

    @property
    def footprint(self) -> Any:
        """Bytes: ``shared`` physical memory, ``mapped`` addresses; ``windows``, ``parked``."""
        return self._memory.footprint() if self._memory is not None else _NOTHING

    def park(self) -> None:
        """Gives the memory back to the system; graphs keep their addresses, and calls fail until ``resume()``.

        Raises:
            OutputInUse: an output that lies in the arena is still held.
        """
        with self.lock:
            self.collect()
            self.leases.evacuate()
            if self.device is not None and self.device.type == "cuda":
                self.turn.wait()
            if self._memory is not None:
                self.turn.core.set_running(False)
                self._memory.park()

    def resume(self) -> None:
        """Gets memory again. Raises OutOfMemory; then the arena is parked still."""
        with self.lock:
            if self._memory is not None:
                self._memory.resume()
                self.turn.core.set_running(True)

    def require_resumed(self) -> None:
        """Raises InvalidArgument while parked."""
        if self.footprint.parked:
            raise InvalidArgument("the arena is parked; resume() it before its graphs run")


class Arenas:
    """The arenas of a process, one for each device, made on demand. Thread safety: any thread may call any method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._arenas: dict[torch.device, Arena] = {}

    def of(self, device: Any) -> Arena:
        """Raises Unsupported for a device that has no graphs."""
        device = _with_index(torch.device(device))
        with self._lock:
            if device not in self._arenas:
                self._arenas[device] = Arena(device)
            return self._arenas[device]


def _with_index(device: torch.device) -> torch.device:
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        raise Unsupported(
            f"graphs run on the CPU and on CUDA devices, and this one is on {device}; run it eagerly, or use "
            'torch.compile(mode="reduce-overhead")'
        )
    return device if device.index is not None else torch.device("cuda", torch.cuda.current_device())


@dataclasses.dataclass(frozen=True)
class _Footprint:
    """The footprint of an arena without graphs."""

    shared: int = 0
    own: int = 0
    mapped: int = 0
    windows: int = 0
    mappings: int = 0
    parked: bool = False
    aliases: bool = True


_NOTHING = _Footprint()


class Leases:
    """Outputs that were handed out in place.

    Thread safety: with the arena's lock.
    """

    def __init__(self, turn: Turn | None = None) -> None:
        self._leases: dict[int, _Lease] = {}  # by storage
        self._turn = turn

    def add(self, storage: torch.UntypedStorage) -> None:
        """Adds a storage in memory that a replay overwrites."""
        self._leases[storage._cdata] = _Lease(storage)
        self._tell()

    def _tell(self) -> None:
        """Tells the lock how many leases there are: with any, each graph checks them before it runs."""
        if self._turn is not None:
            self._turn.core.set_leases(len(self._leases))

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
