# SPDX-License-Identifier: Apache-2.0
"""Names of functions and classes: a call sends the name, and the callee looks it up.

A name is a module and a qualified name. It stands for an object only if looking it up gives that very object, so
lambdas and local functions have none, and a name never reaches through one module into another.
"""

import importlib
import sys

import torch

REFUSED = frozenset(f"builtins.{n}" for n in ("eval", "exec", "compile", "__import__", "open", "input", "breakpoint"))
REFUSED_MODULES = frozenset(
    (
        "os",
        "posix",
        "subprocess",
        "_posixsubprocess",
        "pickle",
        "_pickle",
        "importlib",
        "_frozen_importlib",
        "_frozen_importlib_external",
        "ctypes",
        "_ctypes",
        "runpy",
        "shutil",
        "code",
        "pty",
        "marshal",
    )
)
_MAIN = ("__main__", "__mp_main__")  # one module under two names in programs that multiprocessing has spawned


class NoName(TypeError):
    """The object cannot be named for another process."""


def name_of(thing):
    """The (module, qualified name) of a function or class. Throws NoName, saying why there is none."""
    module, qualname = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if not module or not qualname:
        raise NoName(f"{thing!r} has no name that another process could look up")
    if "<locals>" in qualname or "<lambda>" in qualname:
        raise NoName(
            f"{module}.{qualname} is local to a function, and another process cannot look it up: define it at "
            "the top level of a module"
        )
    module = public_module(module)
    if look_up(module, qualname) is not thing:
        raise NoName(f"{module}.{qualname} is another object than the one given: define it under a name of its own")
    return module, qualname


def operator_of(function):
    """The name of the operator of torch that this function is, such as "aten::add"; or None."""
    return torch.jit._builtins._find_builtin(function)


def check_operator(name, args, kwargs):
    """Refuses here what the other would refuse: a caller that made the mistake sees it in its own stack. Throws
    RuntimeError."""
    try:
        torch._C._jit_resolve_packet(name, *args, **(kwargs or {}))
    except RuntimeError as error:
        raise RuntimeError(
            "Overloaded torch operator invoked from Python failed to match any schema\n" + str(error)
        ) from error
    except AttributeError:  # a torch without that function: the callee refuses
        pass


def public_module(name):
    """The name by which all processes know that module."""
    return "__main__" if name in _MAIN else name


def look_up(module, qualname):
    """The object of that name. Throws AttributeError if there is none, PermissionError for functions that no
    program calls in another process."""
    _check(module, qualname)
    found = module_named(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
        if found is None:
            raise AttributeError(
                f"module {module!r} has no {qualname!r} in this process. The RPC pickler does not "
                "serialize function code: the function must be defined on both sides"
            )
    if not callable(found):
        raise AttributeError(f"{module}.{qualname} is no function or class")
    home = getattr(found, "__module__", module) or module
    if home not in (module, *(_MAIN if module in _MAIN else ())) and not isinstance(found, type):
        _check(home, getattr(found, "__qualname__", qualname))
    return found


def module_named(name):
    """The module, imported if it has to be. Throws what that throws."""
    if name in _MAIN:
        return sys.modules["__main__"]
    if name not in sys.modules:
        from . import _exports

        _exports.check_import(name)
    return importlib.import_module(name)  # waits for another thread that is importing it


def _check(module, qualname):
    if module.split(".")[0] in REFUSED_MODULES or f"{module}.{qualname}" in REFUSED:
        raise PermissionError(f"{module}.{qualname} is not called for other processes")
