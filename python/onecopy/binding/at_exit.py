# SPDX-License-Identifier: Apache-2.0
"""Calls functions at the end of the interpreter, and at the end of a child of multiprocessing, which runs no atexit
functions."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable

_functions: list[Callable[[], object]] = []
_has_finalizers = False


def register(function: Callable[[], object]) -> None:
    """Calls the function at the end of this process and of its children. The function registered last is called first.
    In a process that imported multiprocessing the function is called twice."""
    atexit.register(function)
    _functions.append(function)
    if _has_finalizers:
        _add_finalizers([function])
    _find_multiprocessing()


def _find_multiprocessing() -> None:
    """Registers finalizers of multiprocessing once it was imported."""
    global _has_finalizers
    util = sys.modules.get("multiprocessing.util")
    if util is None or _has_finalizers:
        return
    _has_finalizers = True
    _add_finalizers(_functions)
    # A child starts without finalizers.
    util.register_after_fork(register, lambda _: _add_finalizers(_functions))


def _add_finalizers(functions: list[Callable[[], object]]) -> None:
    for function in functions:
        sys.modules["multiprocessing.util"].Finalize(None, function, exitpriority=0)


os.register_at_fork(before=_find_multiprocessing)
