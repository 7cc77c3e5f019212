# SPDX-License-Identifier: Apache-2.0
"""Which functions of this process other members may call: functions marked with export(), and names of
init(allow=...).

A group made by onecopy.rpc.init() is restricted so; one made by onecopy.distributed.rpc.init_rpc() runs all that
can be imported, as torch does, except for names that _functions refuses. Thread safety: all members may be called
concurrently."""

import fnmatch
import sys

import torch

from . import _functions

# Functions that a group needs to meet and to end.
_OURS = frozenset(
    ("onecopy.distributed.rpc.api._gather_to_leader", "onecopy.distributed.rpc.api._broadcast_to_followers")
)

_exported = {}  # "module.qualname" -> function
_patterns = None  # of names; None: not restricted


def export(function):
    """Marks a function or class as one that members of a group may call. Returns it.

    Throws TypeError for a lambda, and for a function that is local to another."""
    name = _name(function)
    _exported[name] = function
    return function


def _name(function):
    module, qualname = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not module or not qualname or not callable(function):
        raise TypeError(f"export() marks functions and classes, and {function!r} is none")
    if "<locals>" in qualname or "<lambda>" in qualname:
        raise TypeError(
            f"{module}.{qualname} has no name that another process could call it by: define it at the top level "
            "of a module"
        )
    return f"{_functions.public_module(module)}.{qualname}"


def restrict(patterns):
    """From now on others may call exported functions, and those whose "module.name" a pattern matches ("package.*")."""
    global _patterns
    if isinstance(patterns, str):
        raise TypeError(f"allow is a list of patterns, such as [{patterns!r}], not a string")
    _patterns = tuple(patterns)


def lift():
    global _patterns
    _patterns = None


def is_restricted():
    return _patterns is not None


def find(name):
    """The function of that "module:qualname". Throws PermissionError, and says how to let it be called."""
    module, _, qualname = name.partition(":")
    found = _exported.get(f"{module}.{qualname}")
    if found is not None:
        return found
    if not is_restricted() or _is_allowed(f"{module}.{qualname}"):
        found = _functions.look_up(module, qualname)
        check(found)  # by its own name: a pattern for one module reaches through it into no other
        return found
    raise PermissionError(_refusal(f"{module}.{qualname}"))


def check(function):
    """Throws PermissionError for a function that others may not call."""
    if not is_restricted():
        return
    name = name_of(function).replace(":", ".")
    if _exported.get(name) is function or name in _OURS or _is_allowed(name):
        return
    raise PermissionError(_refusal(name))


def name_of(function):
    """The "module:qualname" of a function, a class, or an operator of torch."""
    module, qualname = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if getattr(torch, getattr(function, "__name__", ""), None) is function:
        return f"torch:{function.__name__}"
    return f"{_functions.public_module(module) if module else type(function).__module__}:{qualname}"


def check_method(name):
    """Throws PermissionError for a method that is its class's own business."""
    if is_restricted() and name.startswith("_"):
        raise PermissionError(f"{name}() is not called for other processes: its name begins with an underscore")


def check_import(module):
    """A restricted process imports nothing because another asks for a name in it."""
    if is_restricted() and module not in sys.modules:
        raise PermissionError(f"{module} is not imported in this process, and is not for another's sake")


def _is_allowed(name):
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in _patterns or ())


def _refusal(name):
    return (
        f"{name} is not exported by this process: mark it with @onecopy.rpc.export where it is defined, see to it that "
        "this process imports that module, or name it in onecopy.rpc.init(allow=[...])"
    )
