# SPDX-License-Identifier: Apache-2.0
"""The packages that are plugged into: imported when they are needed, or an error that names the one to install."""

from __future__ import annotations

import importlib
from typing import Any

from ..errors import _missing_package


def need(module: str, package: str, what: str) -> Any:
    """The module, imported.

    Raises:
        MissingPackage: it is not installed: the message names the caller that needs it and the way to install it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # it is installed, and lacks a module of its own
        raise _missing_package(package, what, "") from error
