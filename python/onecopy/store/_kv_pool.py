# SPDX-License-Identifier: Apache-2.0
"""The blocks of memory that ``Store.kv_pool()`` returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import _core
from ..errors import InvalidArgument
from ._versions import Framework


class KvPool:
    """Blocks of writable memory, which all processes of this user share; see ``Store.kv_pool()``.

    A process holds leases on blocks. When the process ends, in whatever way, its leases end, what it was writing
    goes, and the next process that needs blocks gets the blocks. A block that has a key stays in the KV pool without
    a lease until its place is needed: first the blocks that nobody has found, then those that were used least
    recently. A key is found once its block is complete, and never before. A key has 32 bytes; a key of another length
    is hashed.

    A process that was stopped in the middle of a call delays others for 50 ms. After that, as long as it stays
    stopped, ``find()`` finds nothing, ``put()``, ``write()`` and ``complete()`` store nothing, ``allocate()`` raises
    OutOfMemory, ``release()`` takes effect later, and other methods raise Timeout. Thread safety: all methods may be
    called concurrently.
    """

    def __init__(self, core: _core._StoreKvPool, block_bytes: int, framework: Framework | None) -> None:
        self._core = core
        self.block_bytes = block_bytes
        #: The bytes of all namespaces: uint8 of one dimension. ``block()`` returns the part that is a block.
        self.tensor: Any = core.memory(framework)

    def block(self, number: int) -> Any:
        """Returns the bytes of a block: ``block(number).view(torch.bfloat16)``."""
        at = self._core.offset(number)
        return self.tensor[at : at + self.block_bytes]

    def allocate(self, count: int) -> list[int]:
        """Returns the numbers of `count` blocks, each with a lease. The content of the blocks is undefined.

        Raises:
            OutOfMemory: too many blocks are leased; the message has the numbers.
        """
        return self._core.allocate(count)

    def release(self, numbers: Sequence[int]) -> None:
        """Ends a lease on each block.

        Raises:
            InvalidArgument: this process has no lease on a block; nothing has changed.
        """
        self._core.release(numbers)

    def put(self, key: bytes, number: int) -> bool:
        """Gives a block, whose content is complete, a key.

        Returns False if the key has a block already, or another namespace gets the memory of the block when its lease
        ends.

        Args:
            key: such as a hash of all tokens up to the end of the block.
            number: a block that this process has leased and that has no key.

        Raises:
            InvalidArgument: the block does not fit; nothing has changed.
        """
        return self._core.put(key, number)

    def write(self, keys: Sequence[bytes], group: int) -> list[int | None]:
        """Begins to write the blocks of keys, or takes part in the writing of a group.

        Args:
            group: a random number of 32 bits that an engine makes when it starts and gives all its processes.

        Returns:
            A leased block for each key. None for a key that has a block, that another group writes, or for which
            there is no room: do not store that one.
        """
        return self._core.write(keys, group)

    def complete(self, numbers: Sequence[int], part: int = 0) -> None:
        """Marks a part of blocks as copied. The last part makes the key visible. A key that is gone stays gone."""
        self._core.complete(numbers, part)

    def fail(self, numbers: Sequence[int]) -> None:
        """Gives up writing blocks: no process finds their keys. The leases stay until ``release()``."""
        self._core.fail(numbers)

    def tickets(self, numbers: Sequence[int]) -> list[int]:
        """Returns a ticket for each leased block, with which another process can ``join()``."""
        return self._core.tickets(numbers)

    def join(self, tickets: Sequence[int]) -> list[int]:
        """Leases the blocks of tickets of another process, and returns their numbers. Join before a copy begins.

        Raises:
            StaleHandle: a block was given away since its ticket was made; nothing has changed.
        """
        return self._core.join(tickets)

    def find(self, keys: Sequence[bytes]) -> list[int]:
        """Returns the block of each key, with a lease, up to the first key that has none."""
        return self._core.find(keys)

    def find_all(self, keys: Sequence[bytes]) -> list[int | None]:
        """Returns the block of each key, with a lease, and None for each key that has none."""
        return self._core.find_all(keys)

    def contains(self, keys: Sequence[bytes]) -> list[bool | None]:
        """Returns whether each key has a block; None for a key that is being written. Takes no lease: a hint."""
        return self._core.contains(keys)

    def pin(self, keys: Sequence[bytes], seconds: int) -> int:
        """Keeps keys from eviction for that many seconds; 0 ends it. Returns how many of the keys have blocks.

        Raises:
            OutOfMemory: more than a quarter of the namespace's blocks would be pinned.
        """
        return self._core.pin(keys, seconds)

    def remove(self, key: bytes) -> bool:
        """Removes a key. Its block is free when the leases end. Returns False if the key has no block."""
        return self._core.remove(key)

    def clear(self) -> int:
        """Removes all keys of the namespace, for all its users, and returns how many there were."""
        return self._core.clear()

    def events(self, since: int = 0) -> tuple[int, bool, list[tuple[bool, bytes]]]:
        """Returns what happened since an earlier call.

        Returns:
            The argument of the next call; whether events between the calls were overwritten; and for each event whether
            the key was stored or removed, and the key.
        """
        return self._core.events(since)

    def copy_blocks(self, numbers: Sequence[int], rows: Sequence[int], array: Any, *, offset: int = 0,
                    to_pool: bool) -> None:  # fmt: skip
        """Copies rows of a tensor or array into blocks, or out of them, without the GIL.

        For a tensor on a card, the copies are done in torch's current stream of the card, after the work in that
        stream. The call returns before they are done: wait for the stream before ``complete()`` and ``release()``. If
        the KV pool was opened with ``pin=True``, and the stream is not the default stream, all copies are one call of a
        driver of CUDA 13.

        Args:
            rows: the index of a row in the first dimension of `array`, for each block.
            offset: where in each block the row is.

        Raises:
            InvalidArgument: sizes do not fit, the array has no rows, or a block is not leased.
            Unsupported: the array and the KV pool are on devices of different vendors.
        """
        if len(array.shape) < 1:
            raise InvalidArgument("copy_blocks() copies rows, and the array has no dimensions")
        device = getattr(array, "device", "cpu")
        itemsize = array.itemsize if hasattr(array, "itemsize") else array.element_size()
        is_torch = hasattr(array, "data_ptr")
        stride = array.stride(0) * itemsize if is_torch else array.strides[0]
        row = array[:1]
        if not (row.is_contiguous() if is_torch else row.flags.c_contiguous):
            raise InvalidArgument("the elements of each row must lie one behind the other")
        size = itemsize
        for extent in array.shape[1:]:
            size *= int(extent)
        data = array.data_ptr() if is_torch else array.ctypes.data
        self._core.copy_blocks(numbers, rows, data, array.shape[0], size, stride, offset, to_pool, device)

    def stats(self) -> dict[str, int]:
        """Returns numbers of this namespace and of the KV pool.

        Of the namespace: its blocks, and which of them are free, idle (evictable), leased or being written; hits,
        misses, keys stored and evicted so far; the age of the key that was evicted last; calls that waited until the
        system had allocated memory. Of the KV pool: users, free bytes of the budget, timeouts, and recoveries after
        deaths.
        """
        return self._core.stats()
