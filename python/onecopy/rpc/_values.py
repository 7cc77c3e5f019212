# SPDX-License-Identifier: Apache-2.0
"""Arguments and results as plain values and tensors, which cross a queue without pickle.

encode() gives a tree of None, bool, int, float, str, bytes, list, tuple and dict, and the tensors that it numbers; decode()
is its inverse. Everything else is a tuple that begins with _MARK: (_MARK, kind, ...). Unknown kinds and wrong shapes are
refused, and no code runs but the constructors of the classes named.
"""

import collections
import dataclasses
import enum
import functools
import io
import os
import pickle

import torch

from . import _modes, functions
from ._group import WorkerInfo

_MARK = "\0"
_DEEPEST = 26  # levels of a tree; a queue takes 32, and the message around it has some
_PLAIN = (type(None), bool, int, float, str, bytes)
_pickle_allowed = os.environ.get("ONECOPY_RPC_PICKLE") == "1"


class RefusedValue(TypeError):
    """A value cannot cross. The message names where in the arguments it is."""

    def __init__(self, why):
        super().__init__(why)
        self.why, self.path = why, []

    def at(self, part):
        self.path.insert(0, part)
        self.args = (f"{''.join(self.path).lstrip('.')}: {self.why}",)
        return self

    def named(self, parts):
        """With the first part of the path as the caller knows it."""
        self.path[0] = parts.get(self.path[0], self.path[0]) if self.path else ""
        self.args = (f"{''.join(self.path).lstrip('.')}: {self.why}",)
        return self


def allow_pickle(allowed=True):
    """Lets values that have no form of their own cross as pickles, to and from this process. Only for groups whose
    members trust each other with their processes; ONECOPY_RPC_PICKLE=1 does so from the start. Both sides must allow it.
    """
    global _pickle_allowed
    _pickle_allowed = bool(allowed)


def encode(value, tensors, references):
    """A plain tree of `value`. Its tensors are appended to `tensors`; `references` turns an RRef into plain values.
    Throws RefusedValue."""
    return _Encoder(tensors, references).encode(value, 0)


def decode(tree, tensors, references):
    """The value of a tree. `references` makes an RRef of plain values. Throws TypeError for a tree that encode()
    never made."""
    return _Decoder(tensors, references).decode(tree, 0)


class _Encoder:
    def __init__(self, tensors, references):
        self.tensors, self.references = tensors, references

    def encode(self, value, depth):
        kind = type(value)
        if kind in _PLAIN:
            return value
        if depth > _DEEPEST:
            raise RefusedValue(f"nested deeper than {_DEEPEST} levels")
        if kind is list:
            return [self._item(i, v, depth + 1) for i, v in enumerate(value)]
        if kind is tuple:
            items = tuple(self._item(i, v, depth + 1) for i, v in enumerate(value))
            return (_MARK, "tuple", list(items)) if items and items[0] == _MARK else items
        if kind is dict:
            return self._dict(value, depth)
        return (_MARK, *self._special(value, kind, depth))

    def _item(self, key, value, depth):
        try:
            return self.encode(value, depth)
        except RefusedValue as refused:
            raise refused.at(f"[{key!r}]") from None

    def _items(self, values, depth):
        return [self._item(i, v, depth + 2) for i, v in enumerate(values)]

    def _pairs(self, value, depth):
        return [[self._item("key", k, depth + 3), self._item(k, v, depth + 3)] for k, v in value.items()]

    def _dict(self, value, depth):
        if all(type(k) is str for k in value):
            return {k: self._item(k, v, depth + 1) for k, v in value.items()}
        return (_MARK, "dict", self._pairs(value, depth))

    def _special(self, value, kind, depth):
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, type):
            return ("name", *self._class(value))
        for known, form in _FORMS:
            if isinstance(value, known):
                return form(self, value, depth)
        if type(value).__module__ == "numpy" and type(value).__name__ == "ndarray":
            return _numpy_form(self, value, depth)
        reference = self.references(value)
        if reference is not None:
            return ("reference", *reference)
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            return ("namedtuple", self._class(kind), self._items(value, depth))
        if dataclasses.is_dataclass(value):
            return ("record", self._class(kind), self._record(value, depth))
        if callable(value) and hasattr(value, "__qualname__"):
            return self._function(value)
        return self._pickle(value, kind)

    def _record(self, value, depth):
        fields = {}
        for field in dataclasses.fields(value):
            try:
                fields[field.name] = self.encode(getattr(value, field.name), depth + 2)
            except RefusedValue as refused:
                raise refused.at(f".{field.name}") from None
        return fields

    def _tensor(self, t):
        if t.layout not in (torch.strided, torch.sparse_coo) or t.is_quantized:
            return self._pickle(t, type(t))
        self.tensors.append(t)
        return ("tensor", len(self.tensors) - 1)

    def _marked(self, marked):
        self.tensors.append(marked.alias())
        return ("tensor", len(self.tensors) - 1)

    def _class(self, kind):
        try:
            return list(functions.name_of(kind))
        except (functions.NoName, AttributeError, PermissionError) as error:
            raise RefusedValue(str(error)) from None

    def _function(self, value):
        owner = getattr(value, "__self__", None)
        builtin = torch.jit._builtins._find_builtin(value)
        if builtin is not None:
            return ("operator", builtin)
        if isinstance(value, torch.jit.ScriptFunction):
            return ("script", torch._jit_internal._qualified_name(value))
        if owner is not None and not isinstance(owner, type(torch)) and hasattr(value, "__func__"):
            return ("method", self.encode(owner, 1), value.__func__.__name__)
        return ("name", *self._class(value))

    def _pickle(self, value, kind):
        if _pickle_allowed:
            return ("pickle", pickle.dumps(value))
        raise RefusedValue(
            f"{kind.__module__}.{kind.__qualname__} cannot cross without pickle; make it a dataclass, send its "
            "state, or call onecopy.rpc.allow_pickle() (ONECOPY_RPC_PICKLE=1) on both sides"
        )


def _script_bytes(module):
    file = io.BytesIO()
    torch.jit.save(module, file)
    return file.getvalue()


def _refuse_future(encoder, value, depth):
    raise RuntimeError(
        "Can not pickle torch.futures.Future: wait for it and send its value, or mark the function with "
        "rpc.functions.async_execution"
    )


def _numpy_form(encoder, value, depth):
    if value.dtype.hasobject:
        return encoder._pickle(value, type(value))
    return ("array", value.dtype.str, list(value.shape), value.tobytes())


# Before dataclasses and named tuples: torch.Size is a tuple.
_FORMS = [
    (_modes.MarkedTensor, lambda e, v, d: e._marked(v)),
    (torch.Size, lambda e, v, d: ("size", list(v))),
    (torch.dtype, lambda e, v, d: ("torch", str(v).removeprefix("torch."))),
    (torch.layout, lambda e, v, d: ("torch", str(v).removeprefix("torch."))),
    (torch.memory_format, lambda e, v, d: ("torch", str(v).removeprefix("torch."))),
    (torch.device, lambda e, v, d: ("device", str(v))),
    (enum.Enum, lambda e, v, d: ("enum", e._class(type(v)), v.name)),
    (set, lambda e, v, d: ("set", e._items(v, d))),
    (frozenset, lambda e, v, d: ("frozenset", e._items(v, d))),
    (collections.OrderedDict, lambda e, v, d: ("ordered", e._pairs(v, d))),
    (slice, lambda e, v, d: ("slice", e._items((v.start, v.stop, v.step), d))),
    (range, lambda e, v, d: ("range", [v.start, v.stop, v.step])),
    (complex, lambda e, v, d: ("complex", v.real, v.imag)),
    (bytearray, lambda e, v, d: ("bytearray", bytes(v))),
    (
        functools.partial,
        lambda e, v, d: ("partial", e.encode(v.func, d + 1), e._items(v.args, d), e._dict(v.keywords, d)),
    ),
    (BaseException, lambda e, v, d: ("exception", e._class(type(v)), e._items(v.args, d))),
    (WorkerInfo, lambda e, v, d: ("member", v.name, v.id)),
    (torch._C.Future, _refuse_future),
    (torch.jit.ScriptModule, lambda e, v, d: ("module", _script_bytes(v))),
]


class _Decoder:
    def __init__(self, tensors, references):
        self.tensors, self.references = tensors, references

    def decode(self, tree, depth):
        kind = type(tree)
        if kind in _PLAIN:
            return tree
        if depth > _DEEPEST + 4:
            raise TypeError("a message is nested too deeply")
        if kind is list:
            return [self.decode(v, depth + 1) for v in tree]
        if kind is dict:
            return {k: self.decode(v, depth + 1) for k, v in tree.items()}
        if kind is tuple:
            if tree and tree[0] == _MARK:
                return self._special(tree[1], tree[2:], depth + 1)
            return tuple(self.decode(v, depth + 1) for v in tree)
        raise TypeError(f"a message holds a {kind.__name__}, which no sender puts there")

    def _special(self, kind, parts, depth):
        form = getattr(self, f"_{kind}", None) if kind in _KINDS else None
        if form is None:
            raise TypeError(
                f"a message holds a value of the unknown kind {kind!r}; use one version of onecopy on all sides"
            )
        return form(depth, *parts)

    def _all(self, values, depth):
        return [self.decode(v, depth) for v in values]

    def _tensor(self, depth, index):
        return self.tensors[index]

    def _tuple(self, depth, items):
        return tuple(self._all(items, depth))

    def _dict(self, depth, pairs):
        return {self.decode(k, depth): self.decode(v, depth) for k, v in pairs}

    def _ordered(self, depth, pairs):
        return collections.OrderedDict((self.decode(k, depth), self.decode(v, depth)) for k, v in pairs)

    def _reference(self, depth, *parts):
        return self.references(*parts)

    def _member(self, depth, name, number):
        return WorkerInfo(name, number)

    def _size(self, depth, sizes):
        return torch.Size(sizes)

    def _torch(self, depth, name):
        found = getattr(torch, name, None)
        if not isinstance(found, (torch.dtype, torch.layout, torch.memory_format)):
            raise TypeError(f"torch.{name} is no dtype, layout or memory format")
        return found

    def _device(self, depth, name):
        return torch.device(name)

    def _enum(self, depth, name, member):
        return self._type(name, enum.Enum)[member]

    def _set(self, depth, items):
        return set(self._all(items, depth))

    def _frozenset(self, depth, items):
        return frozenset(self._all(items, depth))

    def _slice(self, depth, parts):
        return slice(*self._all(parts, depth))

    def _range(self, depth, parts):
        return range(*parts)

    def _complex(self, depth, real, imaginary):
        return complex(real, imaginary)

    def _bytearray(self, depth, data):
        return bytearray(data)

    def _array(self, depth, dtype, shape, data):
        import numpy

        return numpy.frombuffer(bytearray(data), numpy.dtype(dtype)).reshape(shape)

    def _namedtuple(self, depth, name, items):
        return self._type(name, tuple)(*self._all(items, depth))

    def _record(self, depth, name, fields):
        kind = self._type(name, object)
        if not dataclasses.is_dataclass(kind):
            raise TypeError(f"{kind!r} is no dataclass in this process")
        made = object.__new__(kind)
        for key, value in fields.items():
            object.__setattr__(made, key, self.decode(value, depth))
        return made

    def _exception(self, depth, name, arguments):
        return self._type(name, BaseException)(*self._all(arguments, depth))

    def _partial(self, depth, function, arguments, keywords):
        return functools.partial(
            self.decode(function, depth), *self._all(arguments, depth), **self.decode(keywords, depth)
        )

    def _name(self, depth, module, qualname):
        return functions.look_up(module, qualname)

    def _operator(self, depth, name):
        namespace, operator = name.split("::")
        return getattr(getattr(torch.ops, namespace), operator)

    def _script(self, depth, name):
        parts = name.removeprefix("__torch__.").split(".")
        for end in range(len(parts) - 1, 0, -1):
            try:
                return functions.look_up(".".join(parts[:end]), ".".join(parts[end:]))
            except (ImportError, AttributeError):
                continue
        return torch.jit._state._python_cu.find_function(name)

    def _method(self, depth, owner, name):
        return getattr(self.decode(owner, depth), name)

    def _module(self, depth, data):
        return torch.jit.load(io.BytesIO(data))

    def _pickle(self, depth, data):
        if not _pickle_allowed:
            raise PermissionError(
                "a value came as a pickle, which this process does not allow: "
                "onecopy.rpc.allow_pickle() or ONECOPY_RPC_PICKLE=1"
            )
        return pickle.loads(data)

    @staticmethod
    def _type(name, base):
        found = functions.look_up(*name)
        if not isinstance(found, type) or not issubclass(found, base):
            raise TypeError(f"{'.'.join(name)} is no {base.__name__} in this process")
        return found


_KINDS = frozenset(n[1:] for n in vars(_Decoder) if n.startswith("_") and not n.startswith("__")) - {
    "all",
    "special",
    "type",
}
