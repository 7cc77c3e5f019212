# SPDX-License-Identifier: Apache-2.0
"""The versions and drafts that a store returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from . import _args as args

if TYPE_CHECKING:
    from ..torch._load_into import LoadedInto

Framework = Literal["onecopy", "torch", "numpy"]


class _Tensors(Mapping[str, Any]):
    """A set of named tensors in the memory of one version. The first use of one makes all of them."""

    def __init__(self, core: Any, framework: Framework | None) -> None:
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

    def _values(self, framework: Framework) -> list[Any]:
        if framework == self._framework:
            return list(self._all().values())
        return self._core.tensors(framework)


class Version(_Tensors):
    """A version of an object, as a read-only mapping of names to tensors.

    A write to a tensor of torch ends the process by a segmentation fault, since torch has no read-only tensors. The
    version stays in the store as long as the mapping or one of its tensors lives. What was published as ``bytes`` is
    ``bytes``.
    """

    def __getitem__(self, name: str) -> Any:
        found = self._all().get(name)
        return self._core.bytes(name) if found is None else found

    def __iter__(self) -> Iterator[str]:
        yield from self._all()
        yield from self._core.names_of_bytes()

    def __len__(self) -> int:
        return len(self._all()) + len(self._core.names_of_bytes())

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
        from ..torch._load_into import load_into

        return load_into(_Tensors(self._core, self._framework), module, prefix, strict)  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return f"<onecopy.store.{type(self).__name__} {self.version} of {len(self)} tensors>"


class Follower(Version):
    """The current version of an object at fixed addresses, so that tensors and captured graphs stay valid after an
    update."""

    def __init__(self, core: Any, framework: Framework | None, check_age: Callable[[], None]) -> None:
        super().__init__(core, framework)
        self._check_age = check_age

    def prepare(self, timeout: float | None = 10, *, to: int | None = None) -> int:
        """Prepares the version that ``update()`` would show, and returns its number.

        For memory of the host this is the part of ``update()`` that takes time: it enters the pages of the version into
        the page tables. Threads may use the tensors meanwhile, which do not change. ``update()`` then shows the
        prepared version within a millisecond, unless another version is current by then. On a card the call prepares
        nothing. Takes the arguments of ``update()``, and raises its errors. The version stays in memory until the next
        ``update()`` or ``prepare()``.
        """
        self._check_age()
        return self._core.prepare(timeout, args.version(to, "to"))

    def update(self, timeout: float | None = 10, *, to: int | None = None) -> int:
        """Shows the object's current version, or exactly the version ``to``, and returns its number.

        On the host, threads may read the tensors during the call: every load sees the old or the new version, and a
        thread that reads meanwhile may see both. To read one version, call ``update()`` between two steps. On a card,
        the call first waits for the queued work of this process, and no thread may enqueue work that uses the tensors
        until the call returns.

        Args:
            timeout: the maximum time in seconds to wait for the keeper's answer; None for no limit.
            to: the number of any version that is in the store, so that several processes can agree on one first.

        Raises:
            InvalidArgument: the version has another layout, and the message names the first difference; the version was
                published with ``place="as_is"``; or a stream of the card is being captured.
            StaleHandle: the object or the version was deleted.
            Timeout: the keeper did not answer.
            Stale: the store was connected with ``max_age``, and etcd has not answered for longer.
        """
        self._check_age()
        return self._core.update(timeout, args.version(to, "to"))


def end_block(work: Any, kind: type[BaseException] | None, leave: Any, complete: Any) -> None:
    """Ends the block of a draft or transaction that has not ended. After an exception it is aborted. The process that
    began it completes it, and others leave it."""
    if not work._has_ended:
        (work.abort if kind is not None else leave if work._is_joined else complete)()


class Draft(_Tensors):
    """The memory for the next version of an object, writable and filled with zeros, as a context manager.

    The end of the block publishes the version. If an exception ends the block or the process is killed, the memory is
    freed.

    Several processes write a draft if the one that made it sends ``handle`` to the others, which call
    ``Store.join_draft()``. The end of their block calls ``done()``. If an exception ends the block of one of them, or
    one of them is killed before, ``publish()`` raises StaleHandle.
    """

    version: int | None = None  #: the number, once it is published; in a transaction, its ``number`` counts

    def __init__(self, core: Any, framework: Framework | None, is_joined: bool = False) -> None:
        super().__init__(core, framework)
        self._is_joined = is_joined
        self._has_ended = False

    @property
    def handle(self) -> str:
        """A text by which other processes write the draft, too."""
        return self._core.handle()

    def done(self) -> None:
        """Says that this process has written its part of a draft that it joined. No tensor of it may be in use."""
        self._made, self._has_ended = {}, True
        self._core.done()

    def abort(self) -> None:
        """Gives the draft up for all processes, and the transaction that it belongs to."""
        self._made, self._has_ended = {}, True
        self._core.abort()

    def __setitem__(self, name: str, content: bytes) -> None:
        """Adds bytes beside the tensors, such as metadata, under a name that no tensor has."""
        if not isinstance(content, bytes):
            raise TypeError(f"only bytes are added to a draft, not {type(content).__name__}; write into its tensors")
        self._core.set_bytes(args.text(name, "the name of bytes"), content)

    def publish(self) -> int:
        """Publishes the content as the object's current version, and returns its number, 0 in a transaction.

        The tensors are read-only afterwards.

        Raises:
            StaleHandle: a process that wrote the draft ended before it called ``done()``.
        """
        number = self._core.publish()
        self._has_ended = True
        self.version = number or None
        return number

    def __enter__(self) -> Draft:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        end_block(self, kind, self.done, self.publish)
