# SPDX-License-Identifier: Apache-2.0
"""Tensors under a name that outlive the process that made them.

>>> store = onecopy.store.connect()  # starts the keeper, two small processes, if there is none
>>> store.publish("llama", model.state_dict())
1
>>> weights = store.open("llama")  # in any process of this user: the same memory
>>> weights.load_into(model)

A version is immutable, and is published as a whole or not at all. ``follow()`` maps the newest
version at fixed addresses, and ``draft()`` returns the memory of the next version. Published
versions stay if the publisher, a reader or one half of the keeper is killed.

Another process opens an object by its name. If a tensor of the store is shared in another way, by
a queue or ``onecopy.share()``, the other process gets a copy.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from . import _core
from .errors import InvalidArgument, StaleHandle

if TYPE_CHECKING:
    from ._load_into import LoadedInto

__all__ = ["Draft", "Follower", "Store", "Version", "connect"]

_Framework = Literal["onecopy", "torch", "numpy"]
_BYTES = "bytes"  # the name of the only tensor of an object of put_bytes()


class _Tensors(Mapping[str, Any]):
    """A set of named tensors in the memory of one version. The first use of one makes all of them."""

    def __init__(self, core: Any, framework: _Framework | None) -> None:
        self._core = core
        self._framework = framework
        self._made: dict[str, Any] | None = None

    def _all(self) -> dict[str, Any]:
        if self._made is None:
            self._made = dict(zip(self._core.names(), self._core.tensors(self._framework)))
        return self._made

    def __getitem__(self, name: str) -> Any:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


class Version(_Tensors):
    """A version of an object, as a read-only mapping of names to tensors.

    A write to a tensor of torch ends the process by a segmentation fault, since torch has no read-only tensors. The
    version stays in the store as long as the mapping or one of its tensors lives.
    """

    @property
    def version(self) -> int:
        """The number of the version; the first version is 1."""
        return self._core.number

    @property
    def key(self) -> dict[str, str]:
        """The identity of the version, given by the publisher."""
        return self._core.key

    @property
    def attributes(self) -> dict[str, str]:
        """The further texts of the publisher."""
        return self._core.attributes

    def verify(self) -> None:
        """Computes the checksum of each tensor.

        Raises:
            BadHandle: a tensor has changed since it was published; the message names the tensor.
            InvalidArgument: the version was published without ``checksums=True``.
        """
        self._core.verify()

    def load_into(self, module: Any, *, prefix: str = "", strict: bool = True) -> LoadedInto:
        """Makes a ``torch.nn.Module`` use the memory of the version for its parameters and buffers, as
        ``Bundle.load_into()`` does."""
        from ._load_into import load_into

        return load_into(self, module, prefix, strict)  # type: ignore[arg-type]

    def _values(self, framework: _Framework) -> list[Any]:
        if framework == self._framework:
            return list(self.values())
        return self._core.tensors(framework)

    def __repr__(self) -> str:
        return f"<onecopy.store.{type(self).__name__} {self.version} of {len(self)} tensors>"


class Follower(Version):
    """The current version of an object at fixed addresses, so that tensors and captured graphs stay valid after an
    update."""

    def update(self, timeout: float | None = 10) -> int:
        """Maps the object's current version, and returns its number.

        Waits for the queued work of this process on the device, and then changes all tensors together. No thread may
        use the tensors during the call.

        Args:
            timeout: the maximum time in seconds to wait for the keeper's answer; None for no limit.

        Raises:
            InvalidArgument: the version has another layout; the message names the first difference.
            StaleHandle: the object was deleted.
            Timeout: the keeper did not answer.
        """
        return self._core.update(timeout)


class Draft(_Tensors):
    """The memory for the next version of an object, writable and filled with zeros, as a context manager.

    The end of the block publishes the version. If an exception ends the block or the process is killed, the memory is
    freed.
    """

    version: int | None = None  #: the number, once it is published

    def publish(self) -> int:
        """Publishes the content as the object's current version, and returns its number. The tensors are read-only
        afterwards."""
        self.version = self._core.publish()
        return self.version

    def __enter__(self) -> Draft:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self.version is None:
            self.publish()


class Arena:
    """A row of blocks of writable memory, which all processes of this user share; see ``Store.arena()``.

    A process holds leases on blocks. When the process ends, in whatever way, its leases end, and the next process that
    needs blocks gets the blocks. A block that has a key stays in the arena without a lease until its place is needed;
    the block that was used least recently goes first. Thread safety: all methods may be called concurrently. Every
    method raises Timeout, with nothing changed, if a process has been stopped in the middle of a call for ten seconds.
    """

    def __init__(self, core: _core._StoreArena, framework: _Framework | None) -> None:
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


class Store:
    """The store of this user; see ``connect()``. Calls wait for a keeper that is being replaced.

    Every call raises PeerDied if there is no keeper and none may be started, and Timeout if the keeper does not answer
    within ten seconds. Points in time are in seconds since 1970, sizes in bytes.
    """

    def __init__(self, core: _core._Store, framework: _Framework | None) -> None:
        self._core = core
        self._framework = framework

    def publish(
        self,
        name: str,
        tensors: Mapping[str, Any],
        *,
        keep: int = 2,
        key: Mapping[str, str] | None = None,
        attributes: Mapping[str, str] | None = None,
        checksums: bool = False,
        device: Any = None,
        place: Literal["slot", "as_is"] = "slot",
        copy: bool = True,
    ) -> int:
        """Publishes the tensors as the current version of an object, and returns its number.

        Args:
            name: 1 to 1,024 bytes of text without control characters.
            tensors: by name, such as a ``state_dict()``; of torch, numpy or any library with DLPack.
            keep: the number of versions to keep, including the new one; the versions that were current last are kept. A
                version that a process has open stays until no process has it open.
            key: the identity of the version, e.g. ``{"checkpoint": digest, "rank": "0"}``, for ``open(key=...)``.
            attributes: further texts, which ``Version.attributes`` returns.
            checksums: stores a checksum of each tensor, for ``verify()``.
            device: the device of the version; None for the device of the tensors.
            place: "slot" copies the tensors into new memory of the version. "as_is" publishes the tensors in place,
                without a copy; the caller must not write to them afterwards. This process then keeps the memory until
                the version is dropped and no process has it open. If both halves of the keeper are killed at once, only
                versions that a process has open are recovered, and ``open()`` raises StaleHandle for others. A tensor
                of torch in memory of torch first moves into memory of onecopy, which is one copy; a tensor that
                ``open()`` returned is shared by both versions.
            copy: False raises Unsupported if a tensor would be copied for "as_is".

        Raises:
            InvalidArgument: the name, the tensors or the devices do not fit.
            Unsupported: a tensor would be copied, and ``copy`` is False.
            OutOfMemory: memory or the keeper's limit is used up; nothing is left of the version.
        """
        if not isinstance(tensors, Mapping):
            kind = type(tensors).__name__
            raise TypeError(f"tensors must be a mapping of names to tensors, such as module.state_dict(), not {kind}")
        if place not in ("slot", "as_is"):
            raise InvalidArgument(f'place must be "slot" or "as_is", not {place!r}')
        is_as_is = place == "as_is"
        if is_as_is and device is not None:
            raise InvalidArgument(
                'tensors that are published with place="as_is" stay on their device; leave out device='
            )
        names, values = list(tensors), list(tensors.values())
        options = (keep, dict(key or {}), dict(attributes or {}), checksums, is_as_is, copy)
        return self._core.publish(name, names, values, device, *options)

    def draft(self, name: str, *, keep: int = 2) -> Draft:
        """Allocates memory for the next version, with the layout, key and attributes of the current version.

        Raises:
            StaleHandle: the object does not exist; ``publish()`` makes its first version.
            OutOfMemory: the memory does not suffice for another version.
        """
        return Draft(self._core.draft(name, keep), self._framework)

    def open(self, name: str, version: int | None = None, *, key: Mapping[str, str] | None = None) -> Version:
        """Opens a version, or the current one, without a copy.

        Args:
            key: fields that the version's key must have.

        Raises:
            StaleHandle: the version does not exist; the message lists the existing ones.
            InvalidArgument: a field of the key differs; the message names it.
        """
        return Version(self._core.open(name, version, dict(key or {})), self._framework)

    def follow(self, name: str, *, key: Mapping[str, str] | None = None) -> Follower:
        """Opens the current version at addresses where ``update()`` maps later versions. Raises as ``open()``."""
        return Follower(self._core.follow(name, dict(key or {})), self._framework)

    def arena(self, name: str, *, blocks: int, block_bytes: int, device: Any = "cpu", pin: bool = False) -> Arena:
        """Opens the arena of that name, or makes it in the memory of the device. ``delete()`` removes it.

        The arena stays when all its users have ended. All users of an arena are in one PID namespace. ``pin`` pins
        memory of the host for this process's card, so that copies run at the speed of the link.

        Raises:
            InvalidArgument: the arena has other sizes or another device, or the name is that of an object.
            OutOfMemory: memory or the keeper's limit is used up, or 64 processes use the arena.
            Unsupported: memory of the device ends with the process that made it, or no card can pin the memory.
        """
        return Arena(self._core.arena(name, blocks, block_bytes, device, pin), self._framework)

    def open_or_publish(
        self, name: str, make: Callable[[], Mapping[str, Any]], *, key: Mapping[str, str] | None = None
    ) -> Version:
        """Opens the current version. If there is none with this key, publishes and opens the tensors that ``make()``
        returns.

        If several processes call at once, one of them publishes; the others wait, and then open the published version.

        Args:
            make: returns the tensors by name, as for ``publish()``.
            key: fields that the version's key must have, and that a new version gets.

        Raises:
            OutOfMemory: memory or the keeper's limit is used up; nothing is left of the version.
        """
        from ._notices import Notices

        with Notices(f"store {name}").locked():
            try:
                return self.open(name, key=key)
            except (StaleHandle, InvalidArgument):
                self.publish(name, make(), keep=1, key=key)
            return self.open(name, key=key)

    def watch(self, name: str, timeout: float | None = None) -> Iterator[int]:
        """Yields the number of the current version, and then of each new current version.

        Args:
            timeout: the number of seconds without a new version after which the iterator ends; None for never.
        """
        watch = self._core.watch(name)
        while (number := watch.next(timeout)) is not None:
            yield number

    def put_bytes(self, name: str, data: Any, *, keep: int = 1) -> int:
        """Publishes bytes, or an object with the buffer protocol, as a version. Raises as ``publish()``."""
        return self.publish(name, {_BYTES: bytearray(data)}, keep=keep, device="cpu")

    def get_bytes(self, name: str, version: int | None = None) -> bytes:
        """Returns a copy of the bytes that ``put_bytes()`` published. Raises as ``open()``."""
        found = self._core.open(name, version, {})
        if found.names() != [_BYTES]:
            raise InvalidArgument(f"{name!r} holds tensors, not bytes; open() it")
        return bytes(found.tensors("onecopy")[0])

    def list(self) -> list[dict[str, Any]]:
        """Returns a dict for each object and arena: its name, ``is_arena``, its ``current`` version, and its ``versions``
        with their bytes, device and readers."""
        return self._core.list()

    def rollback(self, name: str, *, to: int) -> None:
        """Makes an earlier version the current one again. Raises StaleHandle."""
        self._core.rollback(name, to)

    def delete(self, name: str, *, keep: int = 0) -> None:
        """Drops all versions except the ``keep`` that were current last. Versions stay open for readers that have
        opened them."""
        self._core.remove(name, keep)

    def keeper(self) -> dict[str, int]:
        """Returns the pids of the keeper's halves, ``worker`` and ``guard``."""
        return self._core.keeper()

    def stop(self) -> None:
        """Ends the keeper, and returns when its processes have ended. Versions that no process has open are lost."""
        self._core.stop()


def _command() -> str:
    """Returns the path of the command that came with this package, or its name."""
    beside = os.path.join(os.path.dirname(sys.executable), "onecopy")
    if os.access(beside, os.X_OK):
        return beside
    from .__main__ import command

    return str(command() or "onecopy")


def connect(*, framework: _Framework | None = None, autostart: bool = True) -> Store:
    """Connects to the store of this user.

    Args:
        framework: the library of the tensors; None for torch if the program has imported torch, or else onecopy.
        autostart: starts the keeper if none runs. ``ONECOPY_STORE_AUTOSTART=0`` in the environment disables the start.

    Raises:
        PeerDied: no keeper runs, and none may be started.
        Unsupported: the keeper cannot be started; the message says why.
    """
    return Store(_core._store_connect(_command(), autostart), framework)
