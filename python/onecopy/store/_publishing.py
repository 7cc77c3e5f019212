# SPDX-License-Identifier: Apache-2.0
"""The functions of ``Store`` that make versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from .. import _core
from ..errors import InvalidArgument
from . import _args as args
from ._transactions import Transaction
from ._versions import Draft, Framework


class Publishing:
    """The part of ``Store`` that makes versions."""

    def __init__(self, core: Any, framework: Framework | None, max_age: float | None = None) -> None:
        self._core = core
        self._framework = framework
        self._max_age = max_age

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
        everywhere: bool | int = False,
        timeout: float | None = 60.0,
    ) -> int:
        """Publishes the tensors as the current version of an object, and returns its number.

        Args:
            name: 1 to 1,024 bytes of text without control characters.
            tensors: by name, such as a ``state_dict()``; of torch, numpy or any library with DLPack. ``bytes`` beside
                them, up to 1 GiB, are metadata, which a reader gets as ``bytes``.
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
            everywhere: True publishes in the group of this host: the version becomes current once every member of the
                group has all of it. A number waits for so many hosts, and the others catch up. The version is in memory
                of the host.
            timeout: with ``everywhere``, the number of seconds for that.

        Raises:
            Superseded: with ``everywhere``, the object has changed in the group meanwhile.
            Timeout: with ``everywhere``, hosts have not got the version in time, and the message names them; or etcd
                has not answered, and the message says that the version may become current.
            Closed: this host changes nothing in its group, and the message says why.
            PeerDied: with ``everywhere``, etcd does not answer.
            InvalidArgument: the name, the tensors or the devices do not fit.
            Unsupported: a tensor would be copied, and ``copy`` is False.
            OutOfMemory: memory or the keeper's limit is used up; nothing is left of the version.
        """
        hosts = None
        if everywhere is not False:
            hosts = 0 if everywhere is True else args.number(everywhere, "everywhere", 1)
            if place == "as_is":
                raise InvalidArgument('a version that goes to other hosts is copied: leave out place="as_is"')
            device = "cpu" if device is None else device
        options = (name, tensors, keep, key, attributes, checksums, device, place, copy)
        return self._publish(None, *options, hosts=hosts, timeout=timeout)

    def _publish(
        self,
        transaction: _core._StoreTransaction | None,
        name: str,
        tensors: Mapping[str, Any],
        keep: int,
        key: Mapping[str, str] | None,
        attributes: Mapping[str, str] | None,
        checksums: bool,
        device: Any,
        place: str,
        copy: bool,
        hosts: int | None = None,
        timeout: float | None = None,
    ) -> int:
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
        everything = {args.text(each, "the name of each tensor"): value for each, value in tensors.items()}
        beside = {each: value for each, value in everything.items() if isinstance(value, bytes)}
        names = [each for each in everything if each not in beside]
        values = [everything[each] for each in names]
        texts = args.texts(key, "key"), args.texts(attributes, "attributes")
        options = (
            args.number(keep, "keep"),
            *texts,
            bool(checksums),
            is_as_is,
            bool(copy),
            transaction,
            beside,
            hosts,
            timeout,
        )
        return self._core.publish(args.text(name, "name"), names, values, device, *options)

    def draft(
        self,
        name: str,
        layout: Mapping[str, tuple[Any, Any]] | None = None,
        *,
        keep: int = 2,
        device: Any = None,
        key: Mapping[str, str] | None = None,
        attributes: Mapping[str, str] | None = None,
        checksums: bool | None = None,
    ) -> Draft:
        """Allocates memory for the next version.

        Args:
            layout: the shape and the dtype of each tensor by its name, such as ``{"w": ((2, 3), torch.bfloat16)}``.
                None for the layout, device, key and attributes of the current version.
            keep, device, key, attributes, checksums: as for ``publish()``; all but ``keep`` need a layout.

        Raises:
            StaleHandle: there is no layout, and the object does not exist.
            OutOfMemory: the memory does not suffice for another version.
        """
        name, keep = args.text(name, "name"), args.number(keep, "keep")
        if layout is None:
            if (device, key, attributes, checksums) != (None, None, None, None):
                raise InvalidArgument("device, key, attributes and checksums of a draft need a layout")
            return Draft(self._core.draft(name, keep), self._framework)
        columns = args.layout(layout)
        texts = args.texts(key, "key"), args.texts(attributes, "attributes")
        core = self._core.draft_with(name, *columns, device or "cpu", keep, *texts, bool(checksums))
        return Draft(core, self._framework)

    def join_draft(self, handle: str) -> Draft:
        """Opens a draft of another process, to write a part of it, by its ``handle``.

        Raises:
            StaleHandle: the draft was published, or given up.
        """
        return Draft(self._core.join_draft(args.text(handle, "handle")), self._framework, is_joined=True)

    def transaction(self) -> Transaction:
        """Begins a transaction: versions of several objects that become current together.

        >>> with store.transaction() as both:
        ...     both.publish("actor", actor)
        ...     both.publish("critic", critic)
        """
        return Transaction(self, self._core.transaction(), False)

    def join(self, handle: str) -> Transaction:
        """Takes part in a transaction of another process, by its ``handle``.

        Raises:
            StaleHandle: the transaction has ended.
        """
        return Transaction(self, self._core.join(args.text(handle, "handle")), True)
