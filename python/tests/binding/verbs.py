# SPDX-License-Identifier: Apache-2.0
"""The verbs, the kinds of objects, and docs/reference/what-goes-in.md, which lists what each verb does with each kind.

``python python/tests/binding/verbs.py`` writes the page again.
"""

from __future__ import annotations

import array
import os
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy
import torch

import onecopy
from onecopy import _core
from onecopy.rpc import values

PAGE = Path(__file__).resolve().parents[3] / "docs/reference/what-goes-in.md"


class Kind(NamedTuple):
    """A kind of objects: its name on the page, and a maker of one object."""

    name: str
    make: Callable[[], Any]


class Verb(NamedTuple):
    """A verb: its name on the page, the call, and the word for the object in its errors."""

    name: str
    call: Callable[[Any], Any]
    place: str


class _Subclass(torch.Tensor):
    pass


def _of_bits(dtype: str) -> Callable[[], torch.Tensor]:
    return lambda: torch.ones(4, dtype=torch.uint8).view(getattr(torch, dtype))


def _opened() -> onecopy.Bundle:
    return onecopy.open(onecopy.share({"a": torch.ones(2)}), framework="torch")


KINDS = (
    Kind("a tensor of onecopy", lambda: onecopy.ones((2, 3))),
    Kind("a tensor of torch", lambda: torch.ones(2, 3)),
    Kind("a strided view", lambda: torch.arange(6.0).reshape(2, 3).t()),
    Kind("a `torch.nn.Parameter`", lambda: torch.nn.Parameter(torch.ones(3))),
    Kind("a `torch.nn.Module`", lambda: torch.nn.Linear(2, 2)),
    Kind("an array of numpy", lambda: numpy.ones(3)),
    Kind("a number of numpy", lambda: numpy.int64(3)),
    Kind("a dict of tensors", lambda: {"a": torch.ones(2)}),
    Kind("a list of tensors", lambda: [torch.ones(2)]),
    Kind("a `Bundle`", _opened),
    Kind("bytes", lambda: b"abc"),
    Kind("a bytearray", lambda: bytearray(b"abc")),
    Kind("an int", lambda: 5),
    Kind("a str", lambda: "text"),
    Kind("None", lambda: None),
    Kind("another object", lambda: NotImplemented),
    Kind("a tensor inside an autograd graph", lambda: torch.ones(3, requires_grad=True) * 2),
    Kind("a tensor of a subclass of `torch.Tensor`", lambda: torch.ones(3).as_subclass(_Subclass)),
    Kind("a sparse tensor", lambda: torch.eye(2).to_sparse()),
    Kind("a quantized tensor", lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)),
    Kind("a tensor of int4", _of_bits("int4")),
    Kind("a tensor of float4", _of_bits("float4_e2m1fn_x2")),
    Kind("a nested tensor", lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])),
    Kind("a lazily conjugated tensor", lambda: torch.ones(3, dtype=torch.complex64).conj()),
    Kind("a tensor on `meta`", lambda: torch.ones(3, device="meta")),
    Kind("an array of times", lambda: numpy.zeros(2, "datetime64[s]")),
    Kind("an array of Python objects", lambda: numpy.array([None])),
    Kind("a masked array", lambda: numpy.ma.masked_array([1.0, 2.0], [0, 1])),
    Kind("an `array.array`", lambda: array.array("f", [1, 2])),
    Kind("a `types.MappingProxyType`", lambda: MappingProxyType({"a": torch.ones(2)})),
    Kind("a set", lambda: {1}),
)


class _Giving:
    """Stands for the message of a call to another process of this host."""

    receiver, is_result = 1, False

    @property
    def agent(self) -> _Giving:
        return self

    def target_of(self, tensor: torch.Tensor, receiver: int, is_result: bool) -> str:
        return str(tensor.device)

    def count(self, route: Any, rows: int = 0) -> None:
        pass


def _put(value: Any) -> None:
    queue = onecopy.Queue()
    queue.put(value)
    queue.get(timeout=60)


def _call(value: Any) -> None:
    before, _core._rpc_giving = _core._rpc_giving, _Giving  # type: ignore[attr-defined]
    try:
        data, tensors, _ = _core._encode_values(value, values.reduce, values.CLASSES)  # type: ignore[misc]
        _core._decode_values(data, tensors, values.rebuild, values.CLASSES)
    finally:
        _core._rpc_giving = before  # type: ignore[attr-defined]


def _publish(value: Any) -> None:
    onecopy.store.connect().publish("verbs", {"it": value})


VERBS = (
    Verb("share", onecopy.share, "x"),
    Verb("put", _put, ""),
    Verb("call", _call, ""),
    Verb("publish", _publish, '"it"'),
    Verb("pin", onecopy.pin, "value"),
    Verb("to_device", lambda value: onecopy.to_device(value, "cpu"), "value"),
)


def outcome(verb: Verb, kind: Kind) -> str:
    """Returns an empty text if the verb takes the object, or the text of the error, in which *it* is the object."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, for kinds that it will no longer have
            verb.call(kind.make())
    except Exception as error:
        text = str(error).splitlines()[0]
        if verb.place and text.startswith(verb.place):
            text = "it" + text.removeprefix(verb.place)
        if verb.place:
            text = re.sub(f"^the elements of {verb.place} (.+?): .+?; ", r"the elements of it \1; ", text)
        return re.sub(r"protocol, not .+$", "protocol, not …", re.sub(r"^\S+ cannot cross", "… cannot cross", text))
    return ""


def outcomes() -> dict[str, dict[str, str]]:
    """Returns the outcome of each verb by the name of the kind and of the verb."""
    return {kind.name: {verb.name: outcome(verb, kind) for verb in VERBS} for kind in KINDS}


class Reason(NamedTuple):
    """A reason for a refusal: a part of its text, its name in the table, and what a program does about it."""

    text: str
    name: str
    remedy: str


REASONS = (
    Reason("non-leaf tensor", "autograd", "call `.detach()`; `onecopy.rpc` and the store do so themselves"),
    Reason(
        "lazily conjugated",
        "conjugated",
        "call `x.resolve_conj().resolve_neg()`; or share it in a dict, which says that it is conjugated, and open "
        'that with `framework="torch"`',
    ),
    Reason("cannot cross without pickle", "needs pickle", "send its state, or make it a dataclass"),
    Reason("layout torch.sparse", "sparse", "share its indices and values, or put it into a queue"),
    Reason("device meta", "no data", "a tensor on `meta` has no content: allocate it on a device"),
    Reason("it has elements of torch.", "dtype", "share `.view(torch.uint8)`, or put it into a queue"),
    Reason("no memory of its own", "parts", "share the tensors that it consists of: `.to_local()`, `.unbind()`"),
    Reason(
        "protocol, not",
        "not a tensor",
        "put it into a dict: `share({'step': 7})`; publish each tensor under a name of its own",
    ),
    Reason("array of another library", "foreign memory", "`onecopy.asarray(x)` copies it into memory of onecopy"),
    Reason("the elements of it", "dates", 'share integers: `x.view("int64")`'),
    Reason("of the dtype object", "objects", "put it into a queue, which pickles it, or use numbers"),
    Reason("masked array", "mask", "share `x.data` and `x.mask`"),
    Reason("mappingproxy", "not picklable", "`dict(x)`"),
    Reason("Bundle cannot be pickled", "Bundle", "send `bundle.handle`"),
)

HEADS = {
    "publish": "a value in `publish({…})`",
    "put": "`put`, `send` (queues, pipes)",
    "call": "`call` (`onecopy.rpc`)",
    "to_device": "`to_device`, `view_on`",
}

HEAD = """\
# Which objects each function takes

Find the row of your object: **✓ means that the function takes it**. Any other word is
the reason for the refusal, and [the second table](#refused) says what to do instead. In short: dense tensors of plain numbers go
everywhere, queues take nearly everything, and the store takes tensors, arrays and bytes.

- `publish()` takes a mapping of names to tensors. Its column is for the values of that mapping, so a dict within it is refused.
- `share()`, `pin()`, `to_device()` and `view_on()` also take dicts, lists and tuples of these objects, up to 32 deep. Plain values in
  them, such as numbers and texts, pass unchanged. An error names the place of the object in them.
- Queues and pipes pickle what is not a tensor.
- Elements are bool, int8 to int64, uint8 to uint64, float16, bfloat16, float32, float64, complex64, complex128, and the 8-bit floats of torch.
- `to_device()` returns numbers, texts, bytes and None as they are. To share one, put it into a dict or list.

<!-- python python/tests/binding/verbs.py writes this page -->
"""

REFUSED = """
## Refused

The error is `onecopy.Unsupported` for kinds of tensors, `onecopy.InvalidArgument` for "not a tensor" and "autograd", and
`TypeError` in calls and for what a queue cannot pickle. In the texts, "it" stands for the name of the argument, and "…" for types and
numbers.

| reason | do | text |
|---|---|---|
"""


def reason_of(text: str) -> Reason:
    """Returns the reason for a refusal."""
    return next(reason for reason in REASONS if reason.text in text)


def shown(text: str) -> str:
    """Returns the text of a refusal without the dtype and the device of one object."""
    return re.sub(r"elements of torch\.\S+ on the device \S+,", "elements of … on the device …,", text)


def page(found: Mapping[str, Mapping[str, str]]) -> str:
    """Returns the text of the page."""
    texts: dict[Reason, str] = {}
    names = [verb.name for verb in VERBS]
    heads = " | ".join(HEADS.get(name, f"`{name}`") for name in names)
    lines = [f"| object | {heads} |", "|---" * (len(names) + 1) + "|"]
    for kind, by_verb in found.items():
        for text in filter(None, by_verb.values()):
            texts.setdefault(reason_of(text), shown(text))
        cells = (reason_of(text).name if text else "✓" for text in by_verb.values())
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    rows = [f"| **{reason.name}** | {reason.remedy} | `{text}` |" for reason, text in texts.items()]
    return "\n".join([HEAD, *lines, REFUSED + "\n".join(rows), ""])


def write() -> None:
    """Writes the page, in a process that sees a GPU, real or simulated."""
    PAGE.write_text(page(outcomes()))


if __name__ == "__main__":
    import tempfile

    sys.path.insert(0, str(Path(__file__).parents[1]))
    from support.devices import CUDA, _build_simulator, _built_simulator

    if CUDA.driver not in os.environ:
        driver = _built_simulator(CUDA) or _build_simulator(CUDA)
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, CUDA.driver: str(driver)})
    with tempfile.TemporaryDirectory() as place:
        os.environ["ONECOPY_STORE_DIR"] = place
        write()
        onecopy.store.connect().stop()
