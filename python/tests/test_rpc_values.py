# SPDX-License-Identifier: Apache-2.0
"""Values that cross by rpc without pickle, and values that are refused."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import math

import pytest

torch = pytest.importorskip("torch")
hypothesis = pytest.importorskip("hypothesis")
from hypothesis import example, given, settings, strategies as st

import onecopy
from onecopy.distributed import rpc
from onecopy.rpc import _devices, _modes, _values, functions


@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    y: object


Named = collections.namedtuple("Named", "a b")


class Colour(enum.Enum):
    RED = 1


class Plain:
    pass


def crossed(value):
    tensors = []
    tree = _values.encode(value, tensors, lambda other: None)
    arrived = [_devices.unpack(_devices.pack(t), str(t.device)) for t in tensors]
    return _values.decode(tree, arrived, None)


def equal(a, b):
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        if a.layout != torch.strided:
            return a.is_coalesced() == b.is_coalesced() and equal(a.to_dense(), b.to_dense())
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, Point):
        return equal((a.x, a.y), (b.x, b.y))
    if isinstance(a, float) and math.isnan(a):
        return math.isnan(b)
    if isinstance(a, functools.partial):
        return equal([a.func, a.args, a.keywords], [b.func, b.args, b.keywords])
    return a == b


plain = st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(), st.binary())
keys = st.one_of(st.text(), st.integers(), st.tuples(st.integers(), st.text()))
leaves = st.one_of(
    plain, st.complex_numbers(allow_nan=False), st.sets(st.integers()), st.frozensets(st.text()),
    st.just(Colour.RED), st.just(torch.float16), st.just(torch.Size([2, 3])), st.just(torch.device("cpu")),
    st.just(slice(1, None, 2)), st.just(range(3)), st.just(len), st.just(Point), st.just(torch.Tensor), st.just(bytearray(b"x")),
    st.builds(lambda n: torch.arange(n, dtype=torch.float64), st.integers(0, 5)),
)  # fmt: skip
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.lists(inner, max_size=2).map(lambda items: ("\0", *items)),
        st.dictionaries(keys, inner, max_size=3),
        st.dictionaries(keys, inner, max_size=3).map(collections.OrderedDict),
        st.builds(Point, st.integers(), inner),
        st.builds(Named, inner, inner),
        st.builds(lambda v: functools.partial(max, v), inner),
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(values)
def test_values_come_back_equal_and_of_their_type(value):
    assert equal(value, crossed(value))


@pytest.mark.parametrize("is_coalesced", [True, False])
def test_sparse_tensors_come_back(is_coalesced):
    tensor = torch.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], (2, 3), check_invariants=True)
    tensor = tensor.coalesce() if is_coalesced else tensor
    assert equal(tensor, crossed(tensor))


def test_strides_of_small_tensors_stay():
    tensor = torch.arange(12.0).reshape(3, 4).t()
    assert crossed(tensor).stride() == tensor.stride()


def test_an_error_comes_back_with_its_arguments():
    error = crossed(KeyError("a", 1))
    assert type(error) is KeyError and error.args == ("a", 1)


def test_arrays_come_back():
    numpy = pytest.importorskip("numpy")
    array = crossed(numpy.arange(6, dtype=numpy.int16).reshape(2, 3))
    assert array.dtype == numpy.int16 and array.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    "value, where",
    [
        (Plain(), r"^test_rpc_values.Plain cannot cross without pickle"),
        ([1, {"a": Plain()}], r"^\[1\]\['a'\]: test_rpc_values.Plain cannot cross"),
        (Point(1, [Plain()]), r"^y\[0\]: "),
        ((1, lambda: 0), r"^\[1\]: .*local to a function"),
    ],
    ids=["itself", "in containers", "in a field", "a lambda"],
)
def test_a_refusal_says_where_the_value_is(value, where):
    with pytest.raises(TypeError, match=where):
        crossed(value)


def test_a_value_that_holds_itself_is_refused():
    value = []
    value.append(value)
    with pytest.raises(TypeError, match="nested deeper than"):
        crossed(value)


def test_pickle_crosses_where_it_is_allowed_and_nowhere_else(monkeypatch):
    monkeypatch.setattr(_values, "_pickle_allowed", True)
    tree = _values.encode(Plain(), [], lambda other: None)
    assert isinstance(_values.decode(tree, [], None), Plain)
    monkeypatch.setattr(_values, "_pickle_allowed", False)
    with pytest.raises(PermissionError, match="came as a pickle"):
        _values.decode(tree, [], None)


@pytest.mark.parametrize(
    "name",
    [("os", "system"), ("builtins", "eval"), ("subprocess", "Popen"), ("pickle", "loads"), ("posix", "system"),
     ("importlib", "import_module"), ("collections", "_sys.modules"), ("tempfile", "_os.system")],
)  # fmt: skip
def test_names_that_run_programs_are_refused(name):
    with pytest.raises((PermissionError, AttributeError)):
        functions.look_up(*name)


# --- trees that no sender made

kinds = st.one_of(st.sampled_from(sorted(_values._KINDS - {"pickle", "module"})), st.text(max_size=3))
trees = st.recursive(
    plain,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.text(max_size=3), inner, max_size=2),
        st.lists(inner, max_size=3).map(tuple),
        st.builds(lambda kind, parts: (_values._MARK, kind, *parts), kinds, st.lists(inner, max_size=4)),
    ),
    max_leaves=10,
)


@settings(max_examples=1000, deadline=None, derandomize=True)
@given(trees)
def test_any_tree_is_a_value_or_an_error(tree):
    try:
        _values.decode(tree, [torch.zeros(1)], lambda *parts: None)
    except Exception as error:
        assert not isinstance(error, (MemoryError, RecursionError, SystemError))


def test_a_deep_tree_is_an_error():
    tree = 1
    for _ in range(5000):
        tree = [tree]
    with pytest.raises(TypeError, match="nested too deeply"):
        _values.decode(tree, [], None)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "complex64", "bool", "int64", "uint8"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 1, 3), (0, 3)])
def test_a_small_tensor_crosses_as_bytes_of_the_message(dtype, shape):
    tensor = (torch.randn(shape) * 3).to(getattr(torch, dtype))
    packed = _devices.pack(tensor)
    assert packed[0] == dtype and isinstance(packed[2], bytes)
    opened = _devices.unpack(packed, "cpu")
    assert torch.equal(opened, tensor) and opened.dtype == tensor.dtype and opened.shape == tensor.shape
    opened.resize_(7)  # it has memory of its own


@pytest.mark.parametrize("shape", [(), (3,), (0, 3)])
def test_a_tensor_of_another_device_never_crosses_as_bytes(shape):
    """Seen on a card, when tensors without elements began to cross as bytes."""
    tensor = torch.empty(shape, device="meta")
    assert isinstance(_devices.pack(tensor), torch.Tensor)
    assert isinstance(_devices.pack(_modes.borrow(tensor).alias()), torch.Tensor)


@pytest.mark.parametrize("make", [
    lambda: torch.zeros(1025), lambda: torch.zeros(4, 4).t()[1:],
    lambda: torch.ones(3, dtype=torch.complex64).conj(), lambda: torch.eye(3).to_sparse(),
])  # fmt: skip
def test_other_tensors_cross_in_shared_memory_and_keep_what_they_are(make):
    tensor = make()
    packed = _devices.pack(tensor)
    assert not (isinstance(packed, tuple) and len(packed) == 3 and isinstance(packed[2], bytes))
    opened = _devices.unpack(packed, "cpu")
    assert torch.equal(opened.to_dense(), tensor.to_dense()) and opened.shape == tensor.shape


@pytest.mark.parametrize("bad", [
    ("float33", [1], b"1234"), ("nn", [1], b"1234"), (7, [1], b"1234"), ("float32", [2], b"1234"), ("float32", [1], b"123"),
    ("float32", [-1, 3], b"1234"), ("float32", "x", b"1234"), ("float32", [1], "1234"), ("float32", [1], b""),
])  # fmt: skip
def test_bytes_that_are_no_tensor_are_refused(bad):
    with pytest.raises((TypeError, ValueError, RuntimeError)):
        _devices.unpack(bad, "cpu")


# --- device maps, checked where no card is needed


def told(maps=None, devices=(), count=2):
    return {"count": count, "devices": list(devices), "maps": maps or {}}


@pytest.mark.parametrize("mine, theirs, text", [
    (told({"nobody": {"cuda:0": "cuda:1"}}), told(), "Node a has invalid target node names in its device maps"),
    (told({"b": {"cuda:2": "cuda:0"}}), told(), "Node a has source devices with invalid indices in its device map for b"),
    (told({"b": {"cuda:0": "cuda:2"}}), told(), "Node a has target devices with invalid indices in its device map for b"),
    (told({"b": {"cuda:0": "cuda:0", "cuda:1": "cuda:0"}}), told(), "Node a has duplicated target devices in its device map for b"),
    (told({"b": {"cuda:0": "cuda:0"}}, ["cuda:1"]), told(), "Node a has unexpected source devices in its device map for b"),
    (told({"b": {"cuda:0": "cuda:1"}}), told(devices=["cuda:0"]), "Node a has unexpected target devices in its device map for b"),
    (told(devices=["cuda:0", "cuda:0"]), told(), "Node a has duplicated devices"),
    (told(devices=["cuda:7"]), told(), "Node a has devices with invalid indices"),
])  # fmt: skip
def test_device_maps_that_cannot_be_are_refused_in_all_members(mine, theirs, text):
    from onecopy.rpc import _device_maps

    with pytest.raises(ValueError, match=text):
        _device_maps.check({"a": mine, "b": theirs})


def test_device_maps_that_can_be_are_taken():
    from onecopy.rpc import _device_maps

    _device_maps.check(
        {"a": told({"b": {"cuda:0": "cuda:1", "cuda:1": "cpu"}}, ["cuda:0", "cuda:1"]), "b": told(count=-1)}
    )


def test_a_device_below_zero_is_refused():
    options = rpc.TensorPipeRpcBackendOptions()
    for devices in ({-1: 0}, {0: -1}):
        with pytest.raises(RuntimeError, match="Device index must not be negative"):
            options.set_device_map("worker1", devices)
    options.set_device_map("worker1", {0: 1})
    with pytest.raises(ValueError, match="only supports 1-to-1 mapping"):
        options.set_device_map("worker1", {0: 0})


# --- the arguments of a plain call, as bytes

some_calls = st.tuples(
    st.lists(plain, max_size=4).map(tuple) | st.lists(plain, max_size=4),
    st.none() | st.dictionaries(st.text(max_size=5), plain, max_size=3),
)


def read_call(data):
    """(args, kwargs), or None for what the callee refuses."""
    try:
        args, kwargs = onecopy._core._decode_call(data)
    except onecopy.BadHandle:
        return None
    assert type(args) is tuple and type(kwargs) in (dict, type(None))
    return args, kwargs


@given(some_calls)
def test_arguments_of_a_plain_call_come_as_they_were(call):
    args, kwargs = read_call(onecopy._core._encode_values(call)[0])
    assert equal(args, tuple(call[0])) and equal(kwargs, call[1])


@given(plain | st.tuples(plain) | st.tuples(plain, plain) | st.tuples(plain, plain, plain))
@example(((), [1]))  # what takes keyword arguments would read a list as a dict
@example((1, None))
@example(((), 5))
@example([(), {}])
def test_what_is_no_call_is_refused(value):
    looks_like_one = (
        type(value) is tuple
        and len(value) == 2
        and type(value[0]) in (tuple, list)
        and type(value[1]) in (dict, type(None))
    )
    encoded = onecopy._core._encode_values(value)
    if encoded is not None and not looks_like_one:
        assert read_call(encoded[0]) is None


@settings(max_examples=1000)
@given(st.binary(max_size=200))
@example(b"\xa2\xa0\xc0")
@example(b"\xa2\xa1\xd3\x0b\x01" + b"\xff" * 8 + b"\xc0")  # a tensor with fewer than no elements
@example(b"\xa2\xa1\xd3\x0b\x02" + b"\xff\xff\xff\x7f\0\0\0\0" * 2 + b"\xc0")
@example(b"\xa2\xa1\xd3\x0b\xff" + b"\x01" * 100)
@example(b"\xa2\xa1\xd3\x00\x00\xc0")
def test_nonsense_for_a_plain_call_is_refused_or_a_call(data):
    read_call(data)


def some_tensors():
    dtypes = st.sampled_from([torch.float32, torch.bool, torch.int64, torch.complex64, torch.bfloat16, torch.uint8])
    return st.builds(
        lambda dtype, shape: torch.ones(shape, dtype=dtype), dtypes, st.lists(st.integers(0, 3), max_size=3)
    )


@settings(max_examples=500)
@given(st.lists(some_tensors() | plain, max_size=3), st.data())
def test_a_damaged_plain_call_is_refused_or_a_call(values, draw):
    data = onecopy._core._encode_call(tuple(values))
    if data is None:
        return
    assert equal(read_call(data), (tuple(values), None))
    damaged = bytearray(data)
    for _ in range(draw.draw(st.integers(1, 4))):
        damaged[draw.draw(st.integers(0, len(damaged) - 1))] = draw.draw(st.integers(0, 255))
    read_call(bytes(damaged))
    read_call(bytes(damaged[: draw.draw(st.integers(0, len(damaged)))]))
