# SPDX-License-Identifier: Apache-2.0
"""Names of functions and classes, and the functions of this process that other members may call.

A call sends a name, which is a module and a qualified name, and the callee looks the name up. A name stands for an
object only if looking it up returns that very object, so lambdas and local functions have no name, and a name never
reaches through one module into another.

A group made by onecopy.rpc.init() is restricted to functions marked with export() and to the names of init(allow=...).
A group made by onecopy.distributed.rpc.init_rpc() runs every function that can be imported, as torch does, except for
REFUSED names.

Thread safety: all functions may be called concurrently.
"""

from __future__ import annotations

import fnmatch
import importlib
import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, TypeVar

import torch

REFUSED = frozenset(f"builtins.{n}" for n in ("eval", "exec", "compile", "__import__", "open", "input", "breakpoint"))
REFUSED_MODULES = frozenset(
    (
        *("os", "posix", "subprocess", "_posixsubprocess", "pickle", "_pickle", "importlib", "_frozen_importlib"),
        *("_frozen_importlib_external", "ctypes", "_ctypes", "runpy", "shutil", "code", "pty", "marshal"),
    )
)
_MAIN = ("__main__", "__mp_main__")  # two names of one module in programs that multiprocessing has spawned

_exported: dict[str, Any] = {}  # "module.qualname" -> function
_patterns: tuple[str, ...] | None = None  # patterns of names; None if not restricted
# (module, name) -> (object, the names of the module); a result of look_up(), valid while the name stands for the object
_found: dict[tuple[str, str], tuple[Any, dict[str, Any]]] = {}

F = TypeVar("F", bound=Callable[..., Any])


class NoName(TypeError):
    """The object cannot be named for another process."""


# --- names


def name_of(thing: Any) -> tuple[str, str]:
    """Returns the (module, qualified name) of a function or class. Raises NoName, which says why the object has no
    name."""
    module, qualname = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if not module or not qualname:
        raise NoName(f"{thing!r} has no name that another process could look up")
    module = public_module(module)
    known = _found.get((module, qualname))
    if known is not None and known[0] is thing and known[1].get(qualname) is thing:
        return module, qualname
    _refuse_local(module, qualname)
    if look_up(module, qualname) is not thing:
        raise NoName(f"{module}.{qualname} is another object than the one given: define it under a name of its own")
    return module, qualname


def _refuse_local(module: str, qualname: str) -> None:
    if "<locals>" in qualname or "<lambda>" in qualname:
        raise NoName(
            f"{module}.{qualname} is local to a function, and no other process can look the name up: define it at the "
            "top level of a module"
        )


def has_name(thing: object) -> bool:
    """Returns whether another process can look a function or class up."""
    try:
        name_of(thing)
    except (NoName, AttributeError, PermissionError):
        return False
    return True


def text_name_of(function: Any) -> str:
    """Returns the "module:qualname" of a function, a class, or an operator of torch."""
    module, qualname = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    name = getattr(function, "__name__", "")
    if getattr(torch, name, None) is function:
        return f"torch:{name}"
    return f"{public_module(module) if module else type(function).__module__}:{qualname}"


def public_module(name: str) -> str:
    """Returns the name by which all processes know a module."""
    return "__main__" if name in _MAIN else name


def look_up(module: str, qualname: str) -> Any:
    """Returns the object of that name. Raises AttributeError if the name does not exist, PermissionError for a function
    that must not be called by other processes."""
    known = _found.get((module, qualname))
    if known is not None and known[1].get(qualname) is known[0]:
        return known[0]
    _refuse_dangerous(module, qualname)
    names = vars(module_named(module))
    found: Any = module_named(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
        if found is None:
            raise AttributeError(
                f"module {module!r} has no {qualname!r} in this process. The RPC pickler does not "
                "serialize function code: the function must be defined on both sides"
            )
    if not callable(found):
        raise AttributeError(f"{module}.{qualname} is not a function or class")
    home = getattr(found, "__module__", module) or module
    if home not in (module, *(_MAIN if module in _MAIN else ())) and not isinstance(found, type):
        _refuse_dangerous(home, getattr(found, "__qualname__", qualname))
    if names.get(qualname) is found:
        _found[module, qualname] = found, names
    return found


def module_named(name: str) -> ModuleType:
    """Imports a module if necessary. Raises the error of the import, and PermissionError in a restricted process, which
    imports no modules for others."""
    if name in _MAIN:
        return sys.modules["__main__"]
    if is_restricted() and name not in sys.modules:
        raise PermissionError(f"{name} is not imported in this process, and is not for another's sake")
    return importlib.import_module(name)  # waits for a thread that is importing the module


def _refuse_dangerous(module: str, qualname: str) -> None:
    if module.split(".", maxsplit=1)[0] in REFUSED_MODULES or f"{module}.{qualname}" in REFUSED:
        raise PermissionError(f"{module}.{qualname} is not called for other processes")


# --- operators of torch


def operator_of(function: Any) -> str | None:
    """Returns the name of an operator of torch, such as "aten::add", or None for another function."""
    found: str | None = torch.jit._builtins._find_builtin(function)
    return found


def check_operator(name: str, args: Iterable[Any], kwargs: dict[str, Any] | None) -> None:
    """Raises RuntimeError for arguments that the operator does not take, so that the caller's traceback shows the
    mistake."""
    try:
        torch._C._jit_resolve_packet(name, *args, **(kwargs or {}))
    except RuntimeError as error:
        raise RuntimeError(
            "Overloaded torch operator invoked from Python failed to match any schema\n" + str(error)
        ) from error
    except AttributeError:  # a torch without the function, where the callee raises the error
        pass


# --- functions that others may call


def export(function: F) -> F:
    """Marks a function or class that members of a group may call, and returns it.

    Raises TypeError for a lambda and a local function."""
    module, qualname = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not module or not qualname or not callable(function):
        raise TypeError(f"export() marks functions and classes, and {function!r} is none")
    _refuse_local(module, qualname)
    _exported[f"{public_module(module)}.{qualname}"] = function
    return function


def restrict(patterns: Iterable[str]) -> None:
    """Restricts others to exported functions, and functions whose "module.name" matches a pattern, e.g. "package.*"."""
    global _patterns
    if isinstance(patterns, str):
        raise TypeError(f"allow is a list of patterns, such as [{patterns!r}], not a string")
    _patterns = tuple(patterns)


def lift() -> None:
    """Ends the restriction."""
    global _patterns
    _patterns = None


def is_restricted() -> bool:
    """Returns whether others may call exported functions only."""
    return _patterns is not None


def find(name: str) -> Any:
    """Returns the function of that "module:qualname". Raises PermissionError that says how to allow the function."""
    module, _, qualname = name.partition(":")
    found = _exported.get(f"{module}.{qualname}")
    if found is not None:
        return found
    if not is_restricted() or _is_allowed(f"{module}.{qualname}"):
        found = look_up(module, qualname)
        check(found)  # by its own name, since a pattern for one module must not allow names that the module imported
        return found
    raise PermissionError(_refusal(f"{module}.{qualname}"))


def names_of(name: str) -> tuple[dict[str, Any], str]:
    """Returns the dict and the key where find() finds the function of that "module:qualname"."""
    module, _, qualname = name.partition(":")
    key = f"{module}.{qualname}"
    return (_exported, key) if key in _exported else (vars(module_named(module)), qualname)


def check(function: Any) -> None:
    """Raises PermissionError for a function that others may not call."""
    if not is_restricted():
        return
    name = text_name_of(function).replace(":", ".")
    if _exported.get(name) is function or _is_allowed(name):
        return
    raise PermissionError(_refusal(name))


def check_method(name: str) -> None:
    """Raises PermissionError for a private method in a restricted process."""
    if is_restricted() and name.startswith("_"):
        raise PermissionError(f"{name}() is not called for other processes: its name begins with an underscore")


def _is_allowed(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in _patterns or ())


def _refusal(name: str) -> str:
    return (
        f"{name} is not exported by this process: mark it with @onecopy.rpc.export where it is defined, see to it that "
        "this process imports that module, or name it in onecopy.rpc.init(allow=[...])"
    )
