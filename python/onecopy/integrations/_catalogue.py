# SPDX-License-Identifier: Apache-2.0
"""Many handles by name, for the processes of one user: each process writes a file of rows, and all read all files."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import os
import threading
from pathlib import Path

from .._core import Handle
from ._notices import _base, _remove_if_left

_numbers = itertools.count()
_ROWS_TO_REWRITE = 1024  # a file is written anew when so many of its rows, and most of them, say nothing any more


class Catalogue:
    """Names and handles under one title. For several threads.

    A process keeps its file locked, so that others know it to be alive; the file goes with ``close()``, and that of a
    killed process when another one looks. Handles as text keep nothing, so the writer has to keep what they name.
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
        """Others find the handle from here on, and this process keeps it."""
        with self._lock:
            self._own[_hashed(name)] = handle
            self._write(f"{_hashed(name)} {handle}\n")

    def drop(self, name: str) -> None:
        """Others find it no more."""
        with self._lock:
            if self._own.pop(_hashed(name), None) is not None:
                self._write(f"{_hashed(name)} -\n")

    def find(self, name: str) -> list[str]:
        """The handles that living processes have under that name: this process's first."""
        with self._lock:
            self._look()
            mine = self._own.get(_hashed(name))
            found = [rows.handles.get(_hashed(name)) for rows in self._others.values()]
            return [*([str(mine)] if mine else []), *(text for text in found if text)]

    def close(self) -> None:
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
        """A new file first: others may read a handle twice, and miss none."""
        old = self._path, self._file
        self._path, self._file = self._new_file()
        os.write(self._file, "".join(f"{name} {handle}\n" for name, handle in self._own.items()).encode())
        self._rows = len(self._own)
        old[0].unlink(missing_ok=True)
        os.close(old[1])

    def _look(self) -> None:
        """Reads the new rows in the files of others."""
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
    """A file of another process, as far as it has been read. A row is whole once its end is there."""

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
