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
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, overload

from .. import _core
from ..__main__ import command_to_start as _command
from ..errors import InvalidArgument, Stale, StaleHandle
from . import _args as args
from ._kv_pool import KvPool
from ._publishing import Publishing
from ._transactions import Transaction
from ._versions import Draft, Follower, Framework, Version

__all__ = ["Draft", "Follower", "KvPool", "Store", "Transaction", "Version", "connect"]

_BYTES = "bytes"  # the name of the only tensor of an object of put_bytes()


class Store(Publishing):
    """The store of this user; see ``connect()``. Calls wait for a keeper that is being replaced.

    Every call raises PeerDied if there is no keeper and none may be started, and Timeout if the keeper does not answer
    within ten seconds. Points in time are in seconds since 1970, sizes in bytes.
    """

    def open(self, name: str, version: int | None = None, *, key: Mapping[str, str] | None = None) -> Version:
        """Opens a version, or the current one, without a copy.

        Args:
            key: fields that the version's key must have.

        Raises:
            StaleHandle: the version does not exist; the message lists the existing ones.
            InvalidArgument: a field of the key differs; the message names it.
            Stale: the store was connected with ``max_age``, and etcd has not answered for longer.
        """
        self._check_age()
        found = self._core.open(args.text(name, "name"), args.version(version), args.texts(key, "key"))
        return Version(found, self._framework)

    def follow(self, name: str, *, key: Mapping[str, str] | None = None) -> Follower:
        """Opens the current version at addresses where ``update()`` shows other versions. Raises as ``open()``, and
        InvalidArgument for a version that was published with ``place="as_is"``."""
        self._check_age()
        found = self._core.follow(args.text(name, "name"), args.texts(key, "key"))
        return Follower(found, self._framework, self._check_age)

    def kv_pool(self, name: str, *, block_bytes: int, budget: int = 0, space: str = "", parts: int = 1,
                extent_bytes: int = 0, min_bytes: int = 0, max_bytes: int = 0, device: Any = "cpu",
                pin: bool = False, outlives_keeper: bool = False) -> KvPool:  # fmt: skip
        """Opens a namespace of the KV pool of that name. ``delete()`` removes the KV pool.

        The first process makes the KV pool, which stays when all its users have ended. Processes of all PID namespaces
        and containers that reach the store use it.

        Args:
            budget: the bytes of all blocks. 0 opens a KV pool that exists. Memory of the host is allocated as
                blocks are needed.
            space: the namespace: all that must be equal for keys to mean the same bytes. Namespaces share the budget.
            parts: how many parts of a block are complete()d before ``find()`` sees the block, such as one per rank.
            extent_bytes: the unit in which namespaces get memory; 0 for the budget / 256, 64 MiB to 1 GiB.
            min_bytes: what other namespaces leave to this one.
            max_bytes: the max bytes of this namespace; 0 for all.
            pin: pins memory of the host for this process's card, and allocates all of it.
            outlives_keeper: makes the memory of the host of files in the store's directory, which must lie on a tmpfs
                such as /dev/shm. Keys and blocks then stay until ``delete()``, even if all processes and the keeper are
                killed. Takes effect for the process that makes the KV pool.

        Raises:
            BadFile: the files were made by another version of onecopy, or are damaged.
            InvalidArgument: the KV pool or the namespace has other sizes or another device, or was made without
                ``outlives_keeper``; the blocks do not fit the extents, or the name is that of an object.
            OutOfMemory: memory or the keeper's limit is used up, or there are 256 processes or 64 namespaces.
            Unsupported: memory of the device ends with the process that made it or with the keeper, no card can pin the
                memory, or the store's directory is not on a tmpfs of that size.
        """
        core = self._core.kv_pool(args.text(name, "name"), block_bytes, budget, space,
                                  parts, extent_bytes, min_bytes, max_bytes, device, pin, outlives_keeper)  # fmt: skip
        return KvPool(core, block_bytes, self._framework)

    def open_or_publish(
        self,
        name: str,
        make: Callable[[], Mapping[str, Any]],
        *,
        key: Mapping[str, str] | None = None,
        place: Literal["slot", "as_is"] = "slot",
    ) -> Version:
        """Opens the current version. If there is none with this key, publishes and opens the tensors that ``make()``
        returns.

        If several processes call at once, one of them publishes; the others wait, and then open the published version.

        Args:
            make: returns the tensors by name, as for ``publish()``.
            key: fields that the version's key must have, and that a new version gets.
            place: where a new version lies, as for ``publish()``.

        Raises:
            OutOfMemory: memory or the keeper's limit is used up; nothing is left of the version.
        """
        from ._notices import Notices

        with Notices(f"store {name}").locked():
            try:
                return self.open(name, key=key)
            except (StaleHandle, InvalidArgument):
                self.publish(name, make(), keep=1, key=key, place=place)
            return self.open(name, key=key)

    def watch(self, name: str, timeout: float | None = None) -> Iterator[int]:
        """Yields the number of the current version, and then of each new current version.

        Args:
            timeout: the number of seconds without a new version after which the iterator ends; None for never.
        """
        watch = self._core.watch(args.text(name, "name"))
        while (number := watch.next(timeout)) is not None:
            yield number

    @overload
    def pull(
        self,
        address: str,
        name: str,
        version: int | None = None,
        *,
        also: Sequence[str] = (),
        timeout: float | None = 30.0,
        follow: Literal[False] = False,
    ) -> int: ...

    @overload
    def pull(
        self,
        address: str,
        name: str,
        version: None = None,
        *,
        also: Sequence[str] = (),
        timeout: float | None = 30.0,
        follow: Literal[True],
    ) -> Iterator[int]: ...

    def pull(
        self,
        address: str,
        name: str,
        version: int | None = None,
        *,
        also: Sequence[str] = (),
        timeout: float | None = 30.0,
        follow: bool = False,
    ) -> int | Iterator[int]:
        """Brings a version from another host into this store, and returns its number here.

        The version becomes current once all of it has arrived. After a pull that did not end, the keeper holds what has
        arrived for ten minutes, and the next pull takes only what is missing. Both hosts need one secret in the file
        that ``ONECOPY_STORE_KEY_FILE`` names.

        Args:
            address: HOST:PORT of ``onecopy store serve --listen`` on the other host.
            version: the number of the version there; None for the newest one.
            also: addresses of further hosts that have the object, in case that one is slow or away.
            timeout: the number of seconds for which the other hosts may be away; None for no limit. Does not apply with
                ``follow``.
            follow: returns an iterator, which brings each version that becomes current on the other host and yields its
                number. The iterator waits for hosts that are away, and never ends.

        Raises:
            StaleHandle: the other host has no such version.
            InvalidArgument: there is no key, an address is wrong, this host has published the object itself, or another
                process of this host pulls the object.
            BadSecret: the other host has another key.
            PeerDied, Timeout: no host answers.
            OutOfMemory: memory or the keeper's limit does not suffice for the version; nothing has arrived.
            Unsupported: the version is in memory of a card, or is a KV pool.
        """
        if isinstance(also, str):
            raise TypeError("also must be a sequence of addresses, not a str")
        addresses = [args.text(address, "address"), *(args.text(one, "each address in also") for one in also)]
        if follow and version is not None:
            raise InvalidArgument("follow brings the newest versions, and takes no version")
        pull = _core._StorePull(addresses, args.text(name, "name"), args.version(version) or 0, _command())
        return self._pulled(pull) if follow else pull.once(timeout)

    @staticmethod
    def _pulled(pull: Any) -> Iterator[int]:
        while True:
            yield pull.next()

    def put_bytes(self, name: str, data: Any, *, keep: int = 1) -> int:
        """Publishes bytes, or an object with the buffer protocol, as a version. Raises as ``publish()``."""
        try:
            data = memoryview(data)
        except TypeError:
            raise TypeError(f"data must be bytes or have the buffer protocol, not {type(data).__name__}") from None
        return self.publish(name, {_BYTES: bytearray(data)}, keep=keep, device="cpu")

    def get_bytes(self, name: str, version: int | None = None) -> bytes:
        """Returns a copy of the bytes that ``put_bytes()`` published. Raises as ``open()``."""
        found = self._core.open(args.text(name, "name"), args.version(version), {})
        if found.names() != [_BYTES]:
            raise InvalidArgument(f"{name!r} holds tensors, not bytes; open() it")
        return bytes(found.tensors("onecopy")[0])

    def hosts(self, name: str) -> list[dict[str, Any]]:
        """Returns a dict for each host of the group of this host.

        The dict has the name of the ``host`` and its ``address``; ``is_member`` and ``is_present``, which is False ten
        seconds after the host has lost etcd; the ``version`` of the object that is whole there, or None, its ``bytes``
        and whether it ``is_current`` there; and the ``problem`` of a host that cannot have the published version.

        Raises:
            InvalidArgument: this host belongs to no group.
            PeerDied: etcd does not answer.
        """
        return self._core.hosts(args.text(name, "name"))

    def list(self) -> list[dict[str, Any]]:
        """Returns a dict for each object and KV pool: its name, ``is_kv_pool``, its ``current`` version, and its
        ``versions`` with their bytes, device and readers."""
        return self._core.list()

    def rollback(self, name: str, *, to: int) -> None:
        """Makes an earlier version the current one again, on all hosts if the object belongs to a group. Raises
        StaleHandle, and Superseded if the object has changed in the group meanwhile."""
        is_of_group = self._core.is_of_group(args.text(name, "name"))
        (self._core.group_rollback if is_of_group else self._core.rollback)(name, args.number(to, "to", 1))

    def delete(self, name: str, *, keep: int = 0) -> None:
        """Drops all versions except the ``keep`` that were current last. Versions stay open for their readers.

        An object of a group is deleted on all hosts, and ``keep`` must be 0.
        """
        if not self._core.is_of_group(args.text(name, "name")):
            self._core.remove(name, args.number(keep, "keep"))
        elif args.number(keep, "keep") == 0:
            self._core.group_remove(name)
        else:
            raise InvalidArgument("keep is for objects of one host: the hosts of a group keep what publish() said")

    def age(self) -> float | None:
        """Returns the number of seconds since etcd has answered this host, None if it never has: the versions here are
        at most so old. Raises InvalidArgument if this host belongs to no group."""
        return self._core.age()

    def leave(self, host: str = "") -> None:
        """Makes a host leave the group, this one by default: ``publish(everywhere=True)`` then does not wait for it."""
        self._core.leave(args.text(host, "host"))

    def _check_age(self) -> None:
        if self._max_age is None:
            return
        age = self.age()
        if age is None or age > self._max_age:
            since = "has never answered" if age is None else f"has not answered for {age:.1f} s"
            raise Stale(f"the versions of this host may be old: etcd {since}, and max_age is {self._max_age} s")

    def keeper(self) -> dict[str, int]:
        """Returns the pids of the keeper's halves, ``worker`` and ``guard``."""
        return self._core.keeper()

    def stop(self) -> None:
        """Ends the keeper, and returns when its processes have ended. Versions that no process has open are lost.

        A host of a group leaves it.
        """
        self._core.stop()


def connect(*, framework: Framework | None = None, autostart: bool = True, max_age: float | None = None) -> Store:
    """Connects to the store of this user.

    Args:
        framework: the library of the tensors; None for torch if the program has imported torch, or else onecopy.
        autostart: starts the keeper if none runs. ``ONECOPY_STORE_AUTOSTART=0`` in the environment disables the start.
        max_age: on a host of a group, the number of seconds without an answer of etcd after which ``open()``,
            ``follow()`` and ``update()`` raise Stale; None for no limit.

    Raises:
        PeerDied: no keeper runs, and none may be started.
        Unsupported: the keeper cannot be started; the message says why.
    """
    return Store(_core._store_connect(_command(), autostart), framework, max_age)
