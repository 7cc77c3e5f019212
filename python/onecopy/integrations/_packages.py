# SPDX-License-Identifier: Apache-2.0
"""Imports the packages of other programs, or raises an error that names the package to install."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ..errors import MissingPackage, _missing_package


def need(module: str, package: str, what: str, *names: str) -> Any:
    """Imports and returns a module of another package.

    Args:
        module: the full name of the module.
        package: the package as an argument of pip, with its version.
        what: the name of the caller, for the message.
        names: names that the module must contain, since other versions of the package may not.

    Raises:
        MissingPackage: the package is not installed, or the installed version lacks a name. The message names the
            installed version, and the package to install.
    """
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the package is installed, but one of its own requirements is missing
        if "." in error.name and (root := sys.modules.get(module.partition(".")[0])):
            raise _other_version(root, package, what, error.name) from error
        raise _missing_package(package, what, "") from error
    for name in names:
        if not hasattr(found, name):
            raise _other_version(sys.modules[module.partition(".")[0]], package, what, f"{module}.{name}")
    return found


def _other_version(root: ModuleType, package: str, what: str, lacks: str) -> MissingPackage:
    version = getattr(root, "__version__", "of an unknown version")
    error = MissingPackage(
        f"{what} needs {package}; the installed {root.__name__} {version} has no {lacks}: pip install {package}"
    )
    error.name = package
    return error


Find = Callable[[str], Any]  # the type of a module's __getattr__


def at_first_use(plug: str, **sources: str) -> Find:
    """Returns a ``__getattr__`` for the module ``plug`` that imports each name from its module beside this one."""

    def find(name: str) -> Any:
        if name not in sources:
            raise AttributeError(f"module {plug!r} has no attribute {name!r}")
        return getattr(importlib.import_module(sources[name], __package__), name)

    return find
