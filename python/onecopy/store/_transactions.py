# SPDX-License-Identifier: Apache-2.0
"""The transactions that a store returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ._versions import end_block

if TYPE_CHECKING:
    from .. import _core
    from ._publishing import Publishing
    from ._versions import Draft


class Transaction:
    """Versions of several objects, from several processes, that become current together, as a context manager.

    Until the commit no process sees the versions, and they push no other version out. The end of the block commits in
    the process that began the transaction, and leaves it in the others. If an exception ends the block of any process,
    or a process that takes part is killed or drops its Transaction, the transaction is aborted: nothing of it is left,
    and the other processes get StaleHandle.
    """

    number: int | None = None  #: the number of all versions, once they are committed

    def __init__(self, store: Publishing, core: _core._StoreTransaction, is_joined: bool) -> None:
        self._store = store
        self._core = core
        self._is_joined = is_joined
        self._has_ended = False

    @property
    def handle(self) -> str:
        """A text by which other processes take part, with ``Store.join()``."""
        return self._core.handle()

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
    ) -> None:
        """Adds a version with copies of the tensors; see ``Store.publish()``.

        Raises:
            InvalidArgument: the transaction has a version of this object already.
            StaleHandle: the transaction has ended.
        """
        self._store._publish(self._core, name, tensors, keep, key, attributes, checksums, device, "slot", True)

    def draft(self, name: str, layout: Mapping[str, tuple[Any, Any]] | None = None, **options: Any) -> Draft:
        """Allocates memory for a version, as ``Store.draft()``. The version belongs to the transaction once the draft
        is published."""
        draft = self._store.draft(name, layout, **options)
        self._core.add(draft._core)
        return draft

    def commit(self) -> int:
        """Makes all versions current, and returns their number, which is larger than any that these objects have had.

        Raises:
            StaleHandle: the transaction was aborted, since a process that took part has ended.
            InvalidArgument: a draft is not published yet.
        """
        self.number = self._core.commit()
        self._has_ended = True
        return self.number

    def leave(self) -> None:
        """Ends the part of this process. What the process has published stays in the transaction."""
        self._core.leave()
        self._has_ended = True

    def abort(self) -> None:
        """Ends the transaction. Nothing of it is left."""
        self._core.abort()
        self._has_ended = True

    def __enter__(self) -> Transaction:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        end_block(self, kind, self.leave, self.commit)
