# SPDX-License-Identifier: Apache-2.0
"""Values that C++ does not know, as parts that it does, which cross without pickle.

reduce() returns (kind, part, ...) for a value, and rebuild() makes the value of them. C++ walks over the whole value and the parts
(see python/src/value/values.h). Unknown kinds and wrong parts are refused, and no code runs but the constructors of the
classes named.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import functools
import io
import os
import pathlib
import pickle
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from . import devices, functions
from .peers import WorkerInfo

_pickle_allowed = os.environ.get("ONECOPY_RPC_PICKLE") == "1"

Parts = tuple[Any, ...]


class RefusedValue(TypeError):
    """A value cannot cross. The message names where in the arguments the value is."""

    def __init__(self, why: str, value: object = None) -> None:
        super().__init__(why)
        self.why, self.value = why, value

    def located(self, **arguments: object) -> RefusedValue:
        """Adds the place of the value in the arguments of a call."""
        path = _path_to(self.value, arguments)
        if path is not None:
            self.args = (f"{path}: {self.why}",)
        self.value = None
        return self

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return TypeError, self.args


def allow_pickle(allowed: bool = True) -> None:
    """Lets values that have no form of their own cross as pickles, to and from this process. Only for groups whose
    members trust each other with their processes; ONECOPY_RPC_PICKLE=1 does so from the start. Both sides must allow it.
    """
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
    """Makes the value of which reduce() returned (kind, *parts). Raises TypeError for parts that reduce() never made."""
    make = _MAKERS.get(kind)
    if make is None:
        raise TypeError(
            f"a message holds a value of the unknown kind {kind!r}; use one version of onecopy on all sides"
        )
    return make(*parts)


# --- where a refused value is


def _path_to(value: object, arguments: dict[str, object]) -> str | None:
    for name, argument in arguments.items():
        path = name if argument is value else _path_within(value, argument, name, 0)
        if path is not None:
            return path
    return None


def _path_within(value: object, container: Any, path: str, depth: int) -> str | None:
    for part, item in _items(container) if depth < 40 else ():
        found = path + part if item is value else _path_within(value, item, path + part, depth + 1)
        if found is not None:
            return found
    return None


def _items(container: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(container, dict):
        yield from ((f"[{key!r}]", item) for key, item in container.items())
        yield from (("['key']", key) for key in container)
    elif isinstance(container, (list, tuple, set, frozenset, collections.deque)):
        yield from ((f"[{i!r}]", item) for i, item in enumerate(container))
    elif isinstance(container, functools.partial):
        yield from ((".func", container.func), (".args", container.args), (".keywords", container.keywords))
    elif isinstance(container, BaseException):
        yield (".args", container.args)
    elif dataclasses.is_dataclass(container) and not isinstance(container, type):
        yield from ((f".{f.name}", getattr(container, f.name, None)) for f in dataclasses.fields(container))


# --- writing


def _name(thing: Any) -> tuple[str, str]:
    try:
        return functions.name_of(thing)
    except (AttributeError, PermissionError) as error:
        raise RefusedValue(str(error), thing) from None


def _pairs(items: Iterable[tuple[Any, Any]]) -> Iterator[Any]:
    for key, item in items:
        yield key
        yield item


def _record_form(kind: type) -> Callable[[Any], Parts]:
    names = [field.name for field in dataclasses.fields(kind)]
    return lambda value: ("record", _name(kind), {name: getattr(value, name) for name in names})


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


def _pickled(value: Any) -> Parts:
    if _pickle_allowed:
        return ("pickle", pickle.dumps(value))
    kind = type(value)
    raise RefusedValue(
        f"{kind.__module__}.{kind.__qualname__} cannot cross without pickle; make it a dataclass, send its "
        "state, or call onecopy.rpc.allow_pickle() (ONECOPY_RPC_PICKLE=1) on both sides",
        value,
    )


def _script_bytes(module: Any) -> bytes:
    file = io.BytesIO()
    torch.jit.save(module, file)
    return file.getvalue()


def _refuse_future(value: Any) -> Parts:
    raise RuntimeError(
        "Can not pickle torch.futures.Future: wait for it and send its value, or mark the function with "
        "rpc.functions.async_execution"
    )


def _array(value: Any) -> Parts:
    if value.dtype.hasobject or value.dtype.fields is not None:
        return _pickled(value)
    return ("array", value.dtype.str, list(value.shape), value.tobytes())


def _scalar(value: Any) -> Parts:
    return _pickled(value) if value.dtype.hasobject else ("scalar", value.dtype.str, value.tobytes())


def _tensor(value: Any) -> Parts:
    parts = devices.reduce_tensor(value)
    return _pickled(value) if parts is None else parts


def _marked(value: Any) -> Parts:
    return devices.reduce_marked(value)


def _torch_name(value: Any) -> Parts:
    return ("torch", str(value).removeprefix("torch."))


# In the order in which they are tried: torch.Size is a tuple.
_KNOWN: list[tuple[Any, Callable[[Any], Parts]]] = [
    (str, lambda v: ("text", v.encode("utf-8", "surrogatepass"))),  # with lone surrogates
    (torch.Tensor, _tensor),
    (devices.MarkedTensor, _marked),
    (torch.Size, lambda v: ("size", *v)),
    ((torch.dtype, torch.layout, torch.memory_format), _torch_name),
    (torch.device, lambda v: ("device", str(v))),
    (enum.Enum, lambda v: ("enum", _name(type(v)), v.name)),
    (set, lambda v: ("set", *v)),
    (frozenset, lambda v: ("frozenset", *v)),
    (collections.OrderedDict, lambda v: ("ordered", *_pairs(v.items()))),
    (collections.defaultdict, lambda v: ("defaultdict", v.default_factory, *_pairs(v.items()))),
    (collections.deque, lambda v: ("deque", v.maxlen, *v)),
    (slice, lambda v: ("slice", v.start, v.stop, v.step)),
    (range, lambda v: ("range", v.start, v.stop, v.step)),
    (type(...), lambda v: ("ellipsis",)),
    (bytearray, lambda v: ("bytearray", bytes(v))),
    (functools.partial, lambda v: ("partial", v.func, v.args, v.keywords)),
    (BaseException, lambda v: ("exception", _name(type(v)), *v.args)),
    (WorkerInfo, lambda v: ("member", v.name, v.id)),
    (torch._C.Future, _refuse_future),
    (torch.jit.ScriptModule, lambda v: ("module", _script_bytes(v))),
    (datetime.datetime, lambda v: ("datetime", *v.__reduce_ex__(2)[1])),
    (datetime.date, lambda v: ("date", *v.__reduce__()[1])),
    (datetime.time, lambda v: ("time", *v.__reduce_ex__(2)[1])),
    (datetime.timedelta, lambda v: ("timedelta", v.days, v.seconds, v.microseconds)),
    (datetime.timezone, lambda v: ("timezone", *v.__getinitargs__())),
    (decimal.Decimal, lambda v: ("decimal", str(v))),
    (uuid.UUID, lambda v: ("uuid", v.int)),
    (pathlib.PurePath, lambda v: ("path", _name(type(v)), str(v))),
]


def _form_for(kind: type) -> Callable[[Any], Parts]:
    """Returns the form of values of this class. Raises nothing: _pickled() does."""
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
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return lambda value: ("namedtuple", _name(kind), *value)
    if dataclasses.is_dataclass(kind):
        return _record_form(kind)
    if hasattr(kind, "__call__") and hasattr(kind, "__get__") or issubclass(kind, torch.jit.ScriptFunction):
        return _function
    return lambda value: _function(value) if callable(value) and hasattr(value, "__qualname__") else _pickled(value)


_FORMS: dict[type, Callable[[Any], Parts]] = {}


def register(kind: type, reduce_it: Callable[[Any], Parts], name: str, make: Callable[..., Any]) -> None:
    """Lets values of `kind` and its subclasses cross: `reduce_it` returns (name, part, ...), and make(part, ...) undoes it."""
    _KNOWN.insert(0, (kind, reduce_it))
    _MAKERS[name] = make


# --- reading


def _type(name: Any, base: type) -> Any:
    found = functions.look_up(*name)
    if not isinstance(found, type) or not issubclass(found, base):
        raise TypeError(f"{'.'.join(name)} is no {base.__name__} in this process")
    return found


def _items_of(parts: tuple[Any, ...]) -> Iterator[tuple[Any, Any]]:
    return zip(parts[::2], parts[1::2], strict=True)


def _make_torch(name: str) -> Any:
    found = getattr(torch, name, None)
    if not isinstance(found, (torch.dtype, torch.layout, torch.memory_format)):
        raise TypeError(f"torch.{name} is no dtype, layout or memory format")
    return found


def _make_record(name: Any, fields: dict[str, Any]) -> Any:
    kind: Any = _type(name, object)
    if not dataclasses.is_dataclass(kind):
        raise TypeError(f"{kind!r} is no dataclass in this process")
    made: Any = object.__new__(kind)  # type: ignore[arg-type]
    for key, value in fields.items():
        object.__setattr__(made, key, value)
    return made


def _make_array(dtype: str, shape: list[int], data: bytes) -> Any:
    import numpy

    return numpy.frombuffer(bytearray(data), numpy.dtype(dtype)).reshape(shape)


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


def _unpickled(data: bytes) -> Any:
    if not _pickle_allowed:
        raise PermissionError(
            "a value came as a pickle, which this process does not allow: "
            "onecopy.rpc.allow_pickle() or ONECOPY_RPC_PICKLE=1"
        )
    return pickle.loads(data)


_MAKERS: dict[str, Callable[..., Any]] = {
    "text": lambda data: data.decode("utf-8", "surrogatepass"),
    "size": lambda *sizes: torch.Size(sizes),
    "torch": _make_torch,
    "device": lambda name: torch.device(name),
    "enum": lambda name, member: _type(name, enum.Enum)[member],
    "set": lambda *items: set(items),
    "frozenset": lambda *items: frozenset(items),
    "ordered": lambda *parts: collections.OrderedDict(_items_of(parts)),
    "defaultdict": lambda factory, *parts: collections.defaultdict(factory, _items_of(parts)),
    "deque": lambda maxlen, *items: collections.deque(items, maxlen),
    "slice": lambda *parts: slice(*parts),
    "range": lambda *parts: range(*parts),
    "ellipsis": lambda: ...,
    "bytearray": lambda data: bytearray(data),
    "array": _make_array,
    "scalar": lambda dtype, data: _make_array(dtype, [], data)[()],
    "namedtuple": lambda name, *items: _type(name, tuple)(*items),
    "record": _make_record,
    "exception": lambda name, *arguments: _type(name, BaseException)(*arguments),
    "partial": lambda function, arguments, keywords: functools.partial(function, *arguments, **keywords),
    "member": lambda name, number: WorkerInfo(name, number),
    "name": functions.look_up,
    "operator": _make_operator,
    "script": _make_script,
    "method": lambda owner, name: getattr(owner, name),
    "module": lambda data: torch.jit.load(io.BytesIO(data)),
    "datetime": lambda *parts: datetime.datetime(*parts),
    "date": lambda *parts: datetime.date(*parts),
    "time": lambda *parts: datetime.time(*parts),
    "timedelta": lambda *parts: datetime.timedelta(*parts),
    "timezone": lambda *parts: datetime.timezone(*parts),
    "decimal": lambda text: decimal.Decimal(text),
    "uuid": lambda number: uuid.UUID(int=number),
    "path": lambda name, text: _type(name, pathlib.PurePath)(text),
    "pickle": _unpickled,
    **devices.MAKERS,
}
