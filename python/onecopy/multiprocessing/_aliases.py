# SPDX-License-Identifier: Apache-2.0
"""Modules of ``multiprocessing`` under the name of this package: ``onecopy.multiprocessing.heap`` is the standard
library's ``multiprocessing.heap``.

A module is imported when a program asks for it by either name: some change the process when they are imported, as
``heap``, which registers a reducer. The ``.pyi`` files beside this one are for type checkers.
"""

from __future__ import annotations

import importlib
import importlib.abc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["NAMES", "install"]

NAMES = frozenset(
    {
        "connection",
        "dummy",
        "heap",
        "managers",
        "process",
        "reduction",
        "resource_sharer",
        "resource_tracker",
        "shared_memory",
        "sharedctypes",
        "synchronize",
        "util",
    }
)


class _Aliases(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """The finder of the modules, and their loader. Thread safety: it has no state."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.rpartition(".")
        if package != __package__ or name not in NAMES:
            return None
        return ModuleSpec(fullname, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(f"multiprocessing.{spec.name.rpartition('.')[2]}")
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Gives the module its own spec back; importing it by this name has replaced that."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


def install() -> None:
    """Adds the finder behind all others; a second call changes nothing."""
    if not any(isinstance(finder, _Aliases) for finder in sys.meta_path):
        sys.meta_path.append(_Aliases())
