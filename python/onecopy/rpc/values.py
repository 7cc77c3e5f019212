# SPDX-License-Identifier: Apache-2.0
"""Turns values that C++ does not know into parts that C++ knows, so that values are sent without pickle.

reduce() returns (kind, part, ...) for a value, and rebuild() makes the value of its parts. C++ walks over the whole
value and the parts (see python/src/value/values.h). rebuild() raises for unknown kinds and wrong parts, and runs no
code but the constructors of the named classes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import decimal
import enum
import functools
import io
import os
import pickle
import sys
import uuid
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from pathlib import PurePath
from typing import Any

import torch

from .. import _core
from . import devices, functions
from .errors import RefusedValue
from .peers import WorkerInfo

_pickle_allowed = os.environ.get("ONECOPY_RPC_PICKLE") == "1"

Parts = tuple[Any, ...]


def allow_pickle(allowed: bool = True) -> None:
    """Allows pickles for values that have no other form, both to and from this process. Both sides must allow pickles.
    Call allow_pickle() only if all members trust each other to run any code. ONECOPY_RPC_PICKLE=1 allows pickles from
    the start."""
    global _pickle_allowed
    _pickle_allowed = bool(allowed)


def reduce(value: Any) -> Parts:
    """Returns (kind, part, ...) for a value. Raises RefusedValue."""
    kind = type(value)
    form = _FORMS.get(kind) or _FORMS.setdefault(kind, _form_for(kind))
    try:
        return form(value)
    except functions.NoName as error:
        raise RefusedValue(str(error), value) from None


def rebuild(kind: str, *parts: Any) -> Any:
    """Makes the value of which reduce() returned (kind, *parts). Raises TypeError for parts of another form."""
    make = _MAKERS.get(kind)
    if make is None:
        raise TypeError(f"a message has a value of the unknown kind {kind!r}; use one version of onecopy on all sides")
    return make(*parts)


# --- the kinds of values


def _name(thing: Any) -> tuple[str, str]:
    try:
        return functions.name_of(thing)
    except (AttributeError, PermissionError) as error:
        raise RefusedValue(str(error), thing) from None


def _type(name: Any, base: type) -> Any:
    found = functions.look_up(*name)
    if not isinstance(found, type) or not issubclass(found, base):
        raise TypeError(f"{'.'.join(name)} is not a {base.__name__} in this process")
    return found


def _function(value: Any) -> Parts:
    owner = getattr(value, "__self__", None)
    builtin = functions.operator_of(value)
    if builtin is not None:
        return ("operator", builtin)
    if isinstance(value, torch.jit.ScriptFunction):
        return ("script", torch._jit_internal._qualified_name(value))
    if owner is not None and not isinstance(owner, type(torch)) and hasattr(value, "__func__"):
        return ("method", owner, value.__func__.__name__)
    return ("name", *_name(value))


def _make_script(name: str) -> Any:
    parts = name.removeprefix("__torch__.").split(".")
    for end in range(len(parts) - 1, 0, -1):
        try:
            return functions.look_up(".".join(parts[:end]), ".".join(parts[end:]))
        except (ImportError, AttributeError):
            continue
    return torch.jit._state._python_cu.find_function(name)


def _make_operator(name: str) -> Any:
    namespace, operator = name.split("::")
    return getattr(getattr(torch.ops, namespace), operator)


def _planned(value: Any) -> Parts:
    """Raises the reason why C++ has no plan for the class, which is a dataclass, a named tuple or an enum."""
    _plan(type(value))
    raise RefusedValue(f"{type(value)!r} was defined anew while the value was written", value)


def _refuse_parts(name: Any, *parts: Any) -> Any:
    raise TypeError(f"an object of {'.'.join(name)} has parts that the class does not take: {parts!r:.80}")


def _pickled(value: Any) -> Parts:
    if _pickle_allowed:
        return ("pickle", pickle.dumps(value))
    kind = type(value)
    raise RefusedValue(
        f"{kind.__module__}.{kind.__qualname__} cannot cross without pickle; make it a dataclass, send its "
        "state, or call onecopy.rpc.allow_pickle() (ONECOPY_RPC_PICKLE=1) on both sides",
        value,
    )


def _unpickled(data: bytes) -> Any:
    if not _pickle_allowed:
        raise PermissionError(
            "a value came as a pickle, which this process does not allow: "
            "onecopy.rpc.allow_pickle() or ONECOPY_RPC_PICKLE=1"
        )
    return pickle.loads(data)


def _script_bytes(module: Any) -> bytes:
    file = io.BytesIO()
    torch.jit.save(module, file)
    return file.getvalue()


def _refuse_future(value: Any) -> Parts:
    way = "wait for it and send its value, or mark the function with rpc.functions.async_execution"
    raise RuntimeError(f"Can not pickle torch.futures.Future: {way}")


def _array(value: Any) -> Parts:
    if value.dtype.hasobject or value.dtype.fields is not None:
        return _pickled(value)
    return ("array", value.dtype.str, list(value.shape), value.tobytes())


def _make_array(dtype: str, shape: list[int], data: bytes) -> Any:
    import numpy

    return numpy.frombuffer(bytearray(data), numpy.dtype(dtype)).reshape(shape)


def _scalar(value: Any) -> Parts:
    return _pickled(value) if value.dtype.hasobject else ("scalar", value.dtype.str, value.tobytes())


def _tensor(value: torch.Tensor) -> Parts:
    parts = devices.reduce_tensor(value)
    if parts is None and not _pickle_allowed and (why := _core._why_refused(value)):
        raise RefusedValue(why, value)
    return _pickled(value) if parts is None else parts


def _make_torch(name: str) -> Any:
    found = getattr(torch, name, None)
    if not isinstance(found, (torch.dtype, torch.layout, torch.memory_format)):
        raise TypeError(f"torch.{name} is not a dtype, layout or memory format")
    return found


# --- the tables

# (classes, function that reduces their instances), in the order in which they are tried.
_KNOWN: list[tuple[Any, Callable[[Any], Parts]]] = [
    (torch.Tensor, _tensor),
    (devices.MarkedTensor, devices.reduce_marked),
    (torch._C.Future, _refuse_future),
    (enum.Enum, _planned),
]
_FORMS: dict[type, Callable[[Any], Parts]] = {}  # filled with the classes of values that were sent
_MAKERS: dict[str, Callable[..., Any]] = {
    **devices.MAKERS,
    "array": _make_array,
    "enum": _refuse_parts,
    "method": getattr,
    "name": functions.look_up,
    "namedtuple": _refuse_parts,
    "operator": _make_operator,
    "pickle": _unpickled,
    "record": _refuse_parts,
    "scalar": lambda dtype, data: _make_array(dtype, [], data)[()],
    "script": _make_script,
}


def register(name: str, kind: Any, parts: Callable[[Any], Iterable[Any]], make: Callable[..., Any]) -> None:
    """Registers the class or classes `kind`, with subclasses: make(*parts(value)) makes a value again."""
    _KNOWN.append((kind, lambda value: (name, *parts(value))))
    _MAKERS[name] = make


def _form_for(kind: type) -> Callable[[Any], Parts]:
    """Returns the function that reduces values of a class. Does not raise; _pickled() raises for values without a
    form."""
    if issubclass(kind, type):
        return lambda value: ("name", *_name(value))
    for known, form in _KNOWN:
        if issubclass(kind, known):
            return form
    if kind.__module__ == "numpy":
        import numpy

        if kind is numpy.ndarray:
            return _array
        if issubclass(kind, numpy.generic):
            return _scalar
    if dataclasses.is_dataclass(kind) or (issubclass(kind, tuple) and hasattr(kind, "_fields")):
        return _planned
    if hasattr(kind, "__get__") or issubclass(kind, torch.jit.ScriptFunction):
        return _function
    return lambda value: _function(value) if callable(value) and hasattr(value, "__qualname__") else _pickled(value)


# --- classes whose objects C++ writes and reads by itself: see python/src/value/class_plan.h

Plan = tuple[str, type, tuple[str, str], dict[str, Any], str, Any, Any]


def _plan(kind: type) -> Plan | None:
    """Makes the plan of a class, or returns None for a class whose objects go through reduce()."""
    form = _FORMS.get(kind) or _FORMS.setdefault(kind, _form_for(kind))
    if form is not _planned:
        return None
    module, qualname = _name(kind)
    names, outer = vars(functions.module_named(module)), sys.intern(qualname.split(".")[0])
    if outer not in names:  # the module makes the name at each access
        names = {outer: getattr(functions.module_named(module), outer)}
    how, members = "namedtuple", None  # type: str, Any
    if issubclass(kind, enum.Enum):
        how, members = "enum", kind._member_map_
    elif not issubclass(kind, tuple):
        object.__new__(kind)  # raises TypeError for a class that needs another constructor
        how, members = "record", tuple(sys.intern(field.name) for field in dataclasses.fields(kind))  # type: ignore[arg-type]
    return how, kind, (module, qualname), names, outer, members, names[outer]


def plan_of(kind: type) -> None:
    """Adds the plan of a class to CLASSES. Skips a class without a name, for which reduce() raises the reason."""
    with contextlib.suppress(TypeError):
        CLASSES[1][kind] = _plan(kind)


def plan_named(how: str, name: Any) -> None:
    """Adds the plan for reading objects of the class of that name. Raises TypeError for a class of another kind."""
    kind = functions.look_up(*name)
    plan = _plan(kind) if isinstance(kind, type) else None
    if plan is None or plan[0] != how:
        raise TypeError(f"{'.'.join(name)} is not a class of the kind {how!r} in this process")
    CLASSES[2][name] = plan


CLASSES: tuple[Callable[[type], None], dict[type, Plan | None], dict[tuple[str, str], Plan], Callable[[str, Any], None]]
CLASSES = (plan_of, {}, {}, plan_named)

_OF_TORCH = (torch.dtype, torch.layout, torch.memory_format)
_ALONE = "surrogatepass"  # C++ knows text without lone surrogates
register("text", str, lambda v: [v.encode("utf-8", _ALONE)], lambda data: data.decode("utf-8", _ALONE))
register("size", torch.Size, iter, lambda *sizes: torch.Size(sizes))
register("torch", _OF_TORCH, lambda v: [str(v).removeprefix("torch.")], _make_torch)
register("device", torch.device, lambda v: [str(v)], torch.device)
register("set", set, iter, lambda *items: set(items))
register("frozenset", frozenset, iter, lambda *items: frozenset(items))
register("ordered", OrderedDict, lambda v: [dict(v)], OrderedDict)
register("defaultdict", defaultdict, lambda v: [v.default_factory, dict(v)], defaultdict)
register("deque", deque, lambda v: [v.maxlen, *v], lambda maxlen, *items: deque(items, maxlen))
register("slice", slice, lambda v: [v.start, v.stop, v.step], slice)
register("range", range, lambda v: [v.start, v.stop, v.step], range)
register("ellipsis", type(...), lambda v: [], lambda: ...)
register("bytearray", bytearray, lambda v: [bytes(v)], bytearray)
register("partial", functools.partial, lambda v: v.__reduce__()[2][:3], lambda f, a, k: functools.partial(f, *a, **k))
register("exception", BaseException, lambda v: [_name(type(v)), *v.args], lambda n, *a: _type(n, BaseException)(*a))
register("member", WorkerInfo, lambda v: [v.name, v.id], WorkerInfo)
register("module", torch.jit.ScriptModule, lambda v: [_script_bytes(v)], lambda data: torch.jit.load(io.BytesIO(data)))
register("datetime", datetime.datetime, lambda v: v.__reduce_ex__(2)[1], datetime.datetime)
register("date", datetime.date, lambda v: v.__reduce__()[1], datetime.date)
register("time", datetime.time, lambda v: v.__reduce_ex__(2)[1], datetime.time)
register("timedelta", datetime.timedelta, lambda v: [v.days, v.seconds, v.microseconds], datetime.timedelta)
register("timezone", datetime.timezone, lambda v: v.__getinitargs__(), datetime.timezone)
register("decimal", decimal.Decimal, lambda v: [str(v)], decimal.Decimal)
register("uuid", uuid.UUID, lambda v: [v.int], lambda number: uuid.UUID(int=number))
register("path", PurePath, lambda v: [_name(type(v)), str(v)], lambda name, text: _type(name, PurePath)(text))
