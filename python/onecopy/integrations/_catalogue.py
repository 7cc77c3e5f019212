# SPDX-License-Identifier: Apache-2.0
"""A table of handles by name that processes of one user share.

Each process writes a file of rows, and reads the files of all others.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import os
import threading
from pathlib import Path

from .._core import Handle
from .._notices import _base, _remove_if_left

_numbers = itertools.count()
_ROWS_TO_REWRITE = 1024  # a file is rewritten when it has more rows than this, and half of them are outdated


class Catalogue:
    """The names and handles under one title.

    A process keeps its file locked, which tells others that it is alive. ``close()`` deletes the file; the file of a
    killed process is deleted by the next process that reads. The text of a handle keeps no memory alive, so the writer
    keeps the handles.

    Thread safety: any thread may call any method.
    """

    def __init__(self, title: str) -> None:
        self._directory = _base() / hashlib.sha256(title.encode()).hexdigest()[:32]
        self._directory.mkdir(mode=0o700, exist_ok=True)
        self._lock = threading.Lock()
        self._own: dict[str, Handle] = {}
        self._rows = 0
        self._others: dict[Path, _Rows] = {}
        self._path, self._file = self._new_file()

    def put(self, name: str, handle: Handle) -> None:
        """Publishes a handle under the name, and keeps the handle."""
        with self._lock:
            self._own[_hashed(name)] = handle
            self._write(f"{_hashed(name)} {handle}\n")

    def drop(self, name: str) -> None:
        """Removes the handle of this process from the table. Has no effect for an unknown name."""
        with self._lock:
            if self._own.pop(_hashed(name), None) is not None:
                self._write(f"{_hashed(name)} -\n")

    def find(self, name: str) -> list[str]:
        """Returns the handles that living processes have put under the name, this process's first."""
        with self._lock:
            self._look()
            mine = self._own.get(_hashed(name))
            found = [rows.handles.get(_hashed(name)) for rows in self._others.values()]
            return [*([str(mine)] if mine else []), *(text for text in found if text)]

    def close(self) -> None:
        """Removes all handles of this process from the table."""
        with self._lock:
            if self._file < 0:
                return
            self._own.clear()
            self._path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = -1

    def _new_file(self) -> tuple[Path, int]:
        path = self._directory / f"{os.getpid()}-{next(_numbers)}.rows"
        file = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)
        fcntl.flock(file, fcntl.LOCK_EX)
        return path, file

    def _write(self, row: str) -> None:
        os.write(self._file, row.encode())
        self._rows += 1
        if self._rows > max(_ROWS_TO_REWRITE, 2 * len(self._own)):
            self._rewrite()

    def _rewrite(self) -> None:
        """Writes a new file before it deletes the old one: others may read a handle twice, but miss none."""
        old = self._path, self._file
        self._path, self._file = self._new_file()
        os.write(self._file, "".join(f"{name} {handle}\n" for name, handle in self._own.items()).encode())
        self._rows = len(self._own)
        old[0].unlink(missing_ok=True)
        os.close(old[1])

    def _look(self) -> None:
        """Reads the new rows in the files of other processes."""
        there = {path for path in self._directory.glob("*.rows") if path != self._path}
        for path in self._others.keys() - there:
            del self._others[path]
        for path in there:
            with contextlib.suppress(FileNotFoundError):
                if _remove_if_left(path):
                    self._others.pop(path, None)
                else:
                    self._others.setdefault(path, _Rows()).read(path)


class _Rows:
    """The rows of another process's file that were read so far. A row is read once it is complete."""

    def __init__(self) -> None:
        self.handles: dict[str, str] = {}
        self._read = 0

    def read(self, path: Path) -> None:
        if path.stat().st_size == self._read:
            return
        with path.open("rb") as file:
            file.seek(self._read)
            whole = file.read().rpartition(b"\n")
        if not whole[1]:
            return
        self._read += len(whole[0]) + 1
        for row in whole[0].decode().split("\n"):
            name, _, text = row.partition(" ")
            self.handles.pop(name, None)
            if text != "-":
                self.handles[name] = text


def _hashed(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:32]
