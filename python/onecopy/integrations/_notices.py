# SPDX-License-Identifier: Apache-2.0
"""Where processes of one user find the memory that the first of them has loaded: handles in a directory that only
they can read."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import itertools
import os
import stat
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .. import errors
from .._core import Handle, open as open_handle

# This process cannot open the memory of such a notice; another one may: the owner can be in another namespace.
_OF_NO_USE = (errors.OwnerDied, errors.PeerDied, errors.StaleHandle, errors.OtherBoot, errors.BadHandle, errors.Timeout,
              errors.VersionMismatch)  # fmt: skip

_numbers = itertools.count()


class Notices:
    """The handles that processes of this user have posted under one name.

    Not for several threads. A notice is a file of its own, which its poster keeps locked. It goes with the object that
    it was posted for, or with its process; that of a killed process goes when the next one looks.
    """

    def __init__(self, name: str) -> None:
        self._directory = _base() / hashlib.sha256(name.encode()).hexdigest()[:32]

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Locks the directory for one process at a time. The kernel releases the lock of a process that dies."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        lock = os.open(self._directory / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def open(self, **arguments: Any) -> Any:
        """Opens the first notice that is still valid; None if there is none. The arguments are ``open()``'s."""
        for path in sorted(self._directory.glob("*.handle")):
            with contextlib.suppress(FileNotFoundError, *_OF_NO_USE):
                if not _remove_if_left(path):
                    return open_handle(path.read_text(), **arguments)
        return None

    def post(self, handle: Handle, holder: Any) -> None:
        """Posts a handle, and keeps it as long as ``holder`` lives."""
        path = self._directory / f"{os.getpid()}-{next(_numbers)}.handle"
        file = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        fcntl.flock(file, fcntl.LOCK_EX)
        os.write(file, str(handle).encode())
        weakref.finalize(holder, _take_down, path, file, os.getpid(), handle)


def _take_down(path: Path, file: int, poster: int, handle: Handle) -> None:
    """The handle is an argument so that it lives until now. A forked child has its parent's finalizers, too."""
    del handle
    if os.getpid() == poster:
        path.unlink(missing_ok=True)
    os.close(file)


def _remove_if_left(path: Path) -> bool:
    """Has its poster died, so that no process has it locked?"""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(file)


def _base() -> Path:
    """Returns a directory that only this user can read, since a handle lets its reader open the memory."""
    given = os.environ.get("ONECOPY_RUNTIME_DIR") or os.environ.get("XDG_RUNTIME_DIR")
    path = Path(given or tempfile.gettempdir()) / f"onecopy-notices-{os.geteuid()}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        if given and error.errno in (errno.ENOENT, errno.EACCES, errno.EROFS):
            error.strerror = f"{error.strerror}; set ONECOPY_RUNTIME_DIR to a directory of mode 0700"
        raise
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise errors.OtherUser(
            f"{path} must be a directory of this user with mode 0700, as handles are in it: remove it, or set "
            "ONECOPY_RUNTIME_DIR to a directory of your own"
        )
    return path
