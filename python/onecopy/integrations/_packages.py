# SPDX-License-Identifier: Apache-2.0
"""The packages that are plugged into: imported when they are needed, or an error that names the one to install."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

from ..errors import MissingPackage, _missing_package


def need(module: str, package: str, what: str, *names: str) -> Any:
    """Imports and returns a module of another package.

    Args:
        module: the full name of the module.
        package: what pip installs, with its version.
        what: the caller, for the message.
        names: names that the module must have; another version of the package may lack one.

    Raises:
        MissingPackage: the package is not installed, or the installed version lacks a name. The message says which
            version is there, and how to install the one that is needed.
    """
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the package is installed, and misses a package of its own
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
