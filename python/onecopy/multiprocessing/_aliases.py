# SPDX-License-Identifier: Apache-2.0
"""Makes modules of ``multiprocessing`` importable from this package.

``onecopy.multiprocessing.heap`` is the standard library's ``multiprocessing.heap``. A module is imported only when a
program asks for it, since some modules change the process when they are imported: ``heap`` registers a reducer. Type
checkers read the ``.pyi`` files in this folder.
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
    """Finds and loads the modules. Thread safety: the object is stateless."""

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
        """Restores the module's own spec, which importing it by this name has replaced."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


def install() -> None:
    """Adds the finder after all others. A second call has no effect."""
    if not any(isinstance(finder, _Aliases) for finder in sys.meta_path):
        sys.meta_path.append(_Aliases())
