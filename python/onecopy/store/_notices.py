# SPDX-License-Identifier: Apache-2.0
"""Lets processes of one user find memory that the first of them has loaded, by handles in a private directory."""

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

# With these errors this process cannot open a notice. Another process may: the owner can be in another namespace.
_OF_NO_USE = (errors.OwnerDied, errors.PeerDied, errors.StaleHandle, errors.OtherBoot, errors.BadHandle, errors.Timeout,
              errors.VersionMismatch)  # fmt: skip

_numbers = itertools.count()


class Notices:
    """The handles that processes of this user have posted under one name.

    A notice is a file that the posting process keeps locked. The file is deleted when the object of the notice is
    destroyed or the process exits; the notice of a killed process is deleted by the next process that looks.

    Thread safety: one thread at a time.
    """

    def __init__(self, name: str) -> None:
        self._directory = _base() / hashlib.sha256(name.encode()).hexdigest()[:32]

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Locks the directory against other processes. The kernel releases the lock of a process that dies."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        lock = os.open(self._directory / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def open(self, **arguments: Any) -> Any:
        """Opens the first valid notice, with arguments of ``onecopy.open()``. Returns None if no notice is valid."""
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
    """Deletes a notice, unless this process is a forked child. The argument ``handle`` keeps the handle until now."""
    del handle
    if os.getpid() == poster:
        path.unlink(missing_ok=True)
    os.close(file)


def _remove_if_left(path: Path) -> bool:
    """Removes the notice and returns True if no process has locked it, so that its process has died."""
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
            f"{path} contains handles and must be a directory of this user with mode 0700: remove it, or set "
            "ONECOPY_RUNTIME_DIR to a directory of your own"
        )
    return path
