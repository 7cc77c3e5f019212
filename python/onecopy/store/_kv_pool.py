# SPDX-License-Identifier: Apache-2.0
"""The blocks of memory that ``Store.kv_pool()`` returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import _core
from ._versions import Framework


class KvPool:
    """A row of blocks of writable memory, which all processes of this user share; see ``Store.kv_pool()``.

    A process holds leases on blocks. When the process ends, in whatever way, its leases end, and the next process that
    needs blocks gets the blocks. A block that has a key stays in the KV pool without a lease until its place is needed;
    the block that was used least recently goes first. Thread safety: all methods may be called concurrently. Every
    method raises Timeout, with nothing changed, if a process has been stopped in the middle of a call for ten seconds.
    """

    def __init__(self, core: _core._StoreKvPool, framework: Framework | None) -> None:
        self._core = core
        #: All blocks: uint8 of the shape (blocks, block_bytes). ``tensor[number].view(torch.bfloat16)`` is a block.
        self.tensor: Any = core.memory(framework)

    def allocate(self, count: int) -> list[int]:
        """Returns the numbers of `count` blocks, each with a lease. The content of the blocks is undefined.

        Raises:
            OutOfMemory: too many blocks are leased; the message has the numbers.
        """
        return self._core.allocate(count)

    def share(self, numbers: Sequence[int]) -> None:
        """Adds a lease to each block, such as blocks whose numbers another process has sent.

        Raises:
            InvalidArgument: a block is leased by no process; nothing has changed.
        """
        self._core.share(numbers)

    def release(self, numbers: Sequence[int]) -> None:
        """Ends a lease on each block.

        Raises:
            InvalidArgument: this process has no lease on a block; nothing has changed.
        """
        self._core.release(numbers)

    def put(self, key: bytes, numbers: Sequence[int]) -> bool:
        """Gives blocks, whose content is complete, a key. Returns False if the key has blocks already.

        Args:
            key: 1 to 32 bytes, such as a hash of all tokens up to the end of the blocks.
            numbers: blocks that this process has leased and that have no key.

        Raises:
            InvalidArgument: the key or the blocks do not fit; nothing has changed.
        """
        return self._core.put(key, numbers)

    def remove(self, key: bytes) -> bool:
        """Removes a key. Its blocks are free when their leases end. Returns False if the key has no blocks."""
        return self._core.remove(key)

    def clear(self) -> int:
        """Removes all keys, as when the weights of a model have changed, and returns how many there were."""
        return self._core.clear()

    def find(self, keys: Sequence[bytes]) -> list[list[int]]:
        """Returns the blocks of each key, with a lease on each, up to the first key that has none."""
        return self._core.find(keys)

    def stats(self) -> dict[str, int]:
        """Returns the numbers of blocks, of free and idle (evictable) ones, of users, and of evictions so far."""
        return self._core.stats()
