# SPDX-License-Identifier: Apache-2.0
"""The errors of onecopy: one class for each cause. Each message says what to do."""

from __future__ import annotations

import errno
import queue  # imported early: the first Timeout may be raised by a daemon thread while the interpreter ends

TYPE_CHECKING = False  # without an import of typing, which takes longer than the package

if TYPE_CHECKING:
    from . import Bundle


class Error(RuntimeError):
    """The base class of all errors of onecopy.

    Attributes:
        code: the name of the class in C++'s spelling, e.g. ``"stale_handle"``; the logs use it, too.
        vendor_code: the error number of the system or driver (errno, CUresult, aclError), or 0.
        domain: what ``vendor_code`` belongs to: ``"posix"``, ``"cuda"``, ``"ascend"`` or ``""``.
    """

    code: str = "system"
    vendor_code: int = 0
    domain: str = ""

    def __init_subclass__(cls) -> None:
        if Error in cls.__bases__:  # a class of its own cause
            cls.code = "".join(f"_{c.lower()}" if c.isupper() else c for c in cls.__name__)[1:]


class InvalidArgument(Error, ValueError):
    """The call itself is wrong: a shape, stride, size or name."""


class BadHandle(Error, ValueError):
    """The bytes are not a handle: they are truncated, damaged or contradictory."""


class VersionMismatch(Error):
    """The handle or the other process uses another version of the protocol."""


class OtherBoot(Error):
    """The handle was made before this machine was restarted, or on another machine."""


class OtherUser(Error, PermissionError):
    """The other process belongs to another user."""


class BadSecret(Error, PermissionError):
    """The other process could not prove that it knows the handle's secret."""


class OwnerDied(Error):
    """The process that owned the memory has ended, and no other process holds the memory."""


class PeerDied(Error, ConnectionError):
    """The process that this call waited for has ended, or its device has failed before its stream
    was done."""


class StaleHandle(Error):
    """The tensor was freed, and its memory may be in use for another tensor."""


class Superseded(Error):
    """The change of an object of a group was not carried out, since another process has changed
    the object meanwhile."""


class Stale(Error):
    """The versions of this host may be old: etcd has not answered for longer than ``max_age``."""


class OutOfMemory(Error, MemoryError):
    """The memory, the address space or the limit of a cgroup is used up."""


class OutOfDescriptors(Error):
    """The limit of descriptors, RLIMIT_NOFILE or the system's, is reached."""


class OutOfMappings(Error):
    """The limit of mappings, vm.max_map_count or RLIMIT_AS, is reached."""


class ReadOnly(Error):
    """The memory was opened for reading only and cannot be written."""


class Timeout(Error, TimeoutError):
    """The timeout has passed."""


class Closed(Error, EOFError):
    """The queue, pipe or listener is closed."""


class Unsupported(Error, NotImplementedError):
    """The operation is not supported by the machine, the device or the build."""


class BadFile(Error, ValueError):
    """A file's content contradicts its format."""


class Protocol(Error):
    """A process sent bytes that contradict the protocol."""


class MissingPackage(Unsupported, ModuleNotFoundError):
    """The call needs a Python package, such as torch, that is not installed."""


class System(Error, OSError):
    """A system call failed; ``errno`` and ``vendor_code`` hold its error number.

    Some errors also derive from Python's own class: a missing file is a ``FileNotFoundError``.
    """


_BY_CODE = {kind.code: kind for kind in Error.__subclasses__()}


_OF_PYTHON = {
    errno.ENOENT: FileNotFoundError,
    errno.EACCES: PermissionError,
    errno.EPERM: PermissionError,
    errno.EISDIR: IsADirectoryError,
    errno.ENOTDIR: NotADirectoryError,
    errno.EEXIST: FileExistsError,
}


class MissingName(KeyError):
    """A bundle has no tensor of this name: a KeyError that suggests similar names.

    The names are searched only when the error is printed, since a program may try many missing names.
    """

    def __init__(self, name: str, bundle: Bundle, is_tree: bool) -> None:
        super().__init__(name)
        self._bundle = bundle
        self._is_tree = is_tree

    def __str__(self) -> str:
        import difflib

        names = self._bundle.keys()
        near = difflib.get_close_matches(self.args[0], names, 3)
        text = f"none of the bundle's {len(names)} tensors is named {self.args[0]!r}"
        text += f"; similar names are {', '.join(map(repr, near))}" if near else "; keys() returns the names"
        return text + (
            "; tree() returns the whole value, with the values that are not tensors" if self._is_tree else ""
        )

    def __reduce__(self) -> tuple[type[KeyError], tuple[str]]:
        """Pickles the text of the error, since a bundle cannot be sent to another process."""
        return KeyError, (str(self),)


_made: dict[tuple[type[Error], type[Exception]], type[Error]] = {}


def _both(ours: type[Error], pythons: type[Exception]) -> type[Error]:
    """Returns a class that derives from both classes and has the name of ours."""
    bases = (ours, pythons)
    if bases not in _made:
        about = {"__doc__": ours.__doc__, "__module__": __name__, "__reduce__": _reduce}
        _made[bases] = type(ours.__name__, bases, about)
    return _made[bases]


def _reduce(error: Error) -> tuple[object, ...]:
    return _make, (error.code, error.args[0], error.vendor_code, error.domain)


def _make(code: str, message: str, vendor_code: int, domain: str) -> Error:
    kind = _BY_CODE.get(code, Error)
    if kind is System and domain == "posix" and vendor_code in _OF_PYTHON:
        kind = _both(System, _OF_PYTHON[vendor_code])
    error = kind(message)
    error.code = code  # some causes have no class of their own
    error.vendor_code = vendor_code
    error.domain = domain
    if isinstance(error, OSError) and domain == "posix":
        error.errno = vendor_code
    return error


def _timeout_of_queue(kind: str, message: str) -> Error:
    """Returns a Timeout that is also ``queue.Empty`` or ``queue.Full``."""
    return _both(Timeout, getattr(queue, kind))(message)


def _missing_package(package: str, what: str, instead: str) -> Error:
    error = MissingPackage(
        f"{what} needs the package {package}, which is not installed: pip install {package}{instead}"
    )
    error.name = package
    return error
