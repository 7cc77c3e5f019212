# SPDX-License-Identifier: Apache-2.0
"""Values that cross by rpc without pickle, and values that are refused."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import functools
import math
import pathlib
import sys
import uuid
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")
hypothesis = pytest.importorskip("hypothesis")
from hypothesis import example, given, settings, strategies as st

import onecopy
from onecopy import _core
from onecopy.distributed import rpc
from onecopy.rpc import device_maps, functions, values as rpc_values
from support.plain_values import VALID, damaged


@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    y: object


Named = collections.namedtuple("Named", "a b")


class Colour(enum.Enum):
    RED = 1


class Plain:
    pass


class Giving:
    """Stands for a message to another process of this host."""

    receiver, is_result = 1, False

    @property
    def agent(self):
        return self

    def target_of(self, tensor, receiver, is_result):
        return str(tensor.device)

    def count(self, route, rows=0):
        pass


@pytest.fixture(autouse=True, scope="module")
def in_a_message():
    before, _core._rpc_giving = _core._rpc_giving, Giving
    yield
    _core._rpc_giving = before


def crossed(value):
    try:
        data, tensors, sent = _core._encode_values(value, rpc_values.reduce, rpc_values.CLASSES)
    except rpc_values.RefusedValue as refused:
        raise refused.located(value=value) from None
    made, received = _core._decode_values(data, tensors, rpc_values.rebuild, rpc_values.CLASSES)
    assert len(sent) == len(received)
    return made


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
        (Plain(), r"^value: test_rpc_values.Plain cannot cross without pickle"),
        ([1, {"a": Plain()}], r"^value\[1\]\['a'\]: test_rpc_values.Plain cannot cross"),
        (Point(1, [Plain()]), r"^value.y\[0\]: "),
        ((1, lambda: 0), r"^value\[1\]: .*local to a function"),
    ],
    ids=["itself", "in containers", "in a field", "a lambda"],
)
def test_a_refusal_says_where_the_value_is(value, where):
    with pytest.raises(TypeError, match=where):
        crossed(value)


class Level(str, enum.Enum):
    LOW = "low"


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass
class Slotted:
    __slots__ = ("number", "rest")
    number: int
    rest: list


@dataclasses.dataclass
class OfADict(dict):
    number: int = 0


class Around:
    @dataclasses.dataclass
    class Within:
        number: int


def test_objects_of_known_classes_cross_without_a_function_of_python():
    colours, record = [Colour.RED, Level.LOW], Slotted(1, [])
    value = [Pair(1, Pair("a", None)), colours, Point(1, "b"), Point(2, "c"), record, record, Around.Within(3)]
    crossed(value)  # from here on the plans of the classes are known

    def fail(*args):
        raise AssertionError(f"{args} came to Python")

    data, tensors, _ = _core._encode_values(value, fail, rpc_values.CLASSES)
    made, _ = _core._decode_values(data, tensors, fail, rpc_values.CLASSES)
    assert made == value
    assert made[1][1] is Level.LOW
    assert made[4] is made[5]


def test_a_dataclass_that_object_does_not_make_is_refused_as_before():
    with pytest.raises(TypeError, match="not safe"):
        crossed(OfADict(1))


def test_a_class_whose_name_stands_for_another_by_now_is_refused(monkeypatch):
    value = Point(1, "b")
    crossed(value)
    monkeypatch.setattr(sys.modules[__name__], "Point", Slotted)
    with pytest.raises(TypeError, match="is another object"):
        crossed(value)


def test_an_object_of_a_class_that_is_of_another_kind_here_is_refused(monkeypatch):
    data, tensors, _ = _core._encode_values(Pair(1, 2), rpc_values.reduce, rpc_values.CLASSES)
    monkeypatch.setattr(sys.modules[__name__], "Pair", Point)
    with pytest.raises(TypeError, match="not a class of the kind 'namedtuple'"):
        _core._decode_values(data, tensors, rpc_values.rebuild, rpc_values.CLASSES)


def test_a_value_that_holds_itself_is_refused():
    value = []
    value.append(value)
    with pytest.raises(TypeError, match="contains itself"):
        crossed(value)


def test_pickle_crosses_where_it_is_allowed_and_nowhere_else(monkeypatch):
    monkeypatch.setattr(rpc_values, "_pickle_allowed", True)
    data, tensors, _ = _core._encode_values(Plain(), rpc_values.reduce, rpc_values.CLASSES)
    assert isinstance(_core._decode_values(data, tensors, rpc_values.rebuild, rpc_values.CLASSES)[0], Plain)
    monkeypatch.setattr(rpc_values, "_pickle_allowed", False)
    with pytest.raises(PermissionError, match="came as a pickle"):
        _core._decode_values(data, tensors, rpc_values.rebuild, rpc_values.CLASSES)


HARMLESS = [
    datetime.datetime(2026, 1, 2, 3, 4, 5, 6, datetime.timezone(datetime.timedelta(hours=1), "one")),
    datetime.date(2026, 1, 2), datetime.time(1, 2, 3, fold=1), datetime.timedelta(-1, 2, 3), datetime.timezone.utc,
    decimal.Decimal("1.10"), uuid.UUID(int=5), pathlib.PurePosixPath("a/b"), pathlib.Path("c"),
    collections.deque([1, 2], 3), collections.defaultdict(int, {"a": 1}), ..., "\udc80 alone", 3 + 4j,
]  # fmt: skip


@pytest.mark.parametrize("value", HARMLESS, ids=lambda value: type(value).__name__)
def test_harmless_values_of_the_standard_library_cross_without_pickle(value):
    made = crossed(value)
    assert type(made) is type(value) and made == value
    if isinstance(value, collections.deque):
        assert made.maxlen == value.maxlen
    if isinstance(value, collections.defaultdict):
        assert made.default_factory is int


def test_scalars_of_numpy_cross():
    numpy = pytest.importorskip("numpy")
    for value in (numpy.float32(1.5), numpy.int8(-3), numpy.bool_(True), numpy.datetime64("2026-01-02")):
        made = crossed(value)
        assert type(made) is type(value) and made == value


@pytest.mark.filterwarnings("ignore::UserWarning")  # of torch: both kinds are deprecated, or in beta
def test_csr_and_quantized_tensors_cross():
    csr = torch.eye(3).to_sparse_csr()
    made = crossed(csr)
    assert made.layout == torch.sparse_csr and torch.equal(made.to_dense(), csr.to_dense())
    quantized = torch.quantize_per_tensor(torch.tensor([1.0, 2.0]), 0.5, 3, torch.quint8)
    made = crossed(quantized)
    assert made.is_quantized and torch.equal(made.dequantize(), quantized.dequantize())


def test_the_same_object_twice_is_one_object_on_the_other_side():
    for value in (Point(1, 2), torch.ones(2), torch.ones(3, 4).t(), [1], {1, 2}, torch.eye(2).to_sparse()):
        first, second = crossed((value, value))
        assert first is second


@pytest.mark.parametrize(
    "name",
    [("os", "system"), ("builtins", "eval"), ("subprocess", "Popen"), ("pickle", "loads"), ("posix", "system"),
     ("importlib", "import_module"), ("collections", "_sys.modules"), ("tempfile", "_os.system")],
)  # fmt: skip
def test_names_that_run_programs_are_refused(name):
    with pytest.raises((PermissionError, AttributeError)):
        functions.look_up(*name)


# --- parts that no sender made

kinds = st.one_of(st.sampled_from(sorted(rpc_values._MAKERS.keys() - {"pickle", "module"})), st.text(max_size=3))


@settings(max_examples=1000, deadline=None, derandomize=True)
@given(kinds, st.lists(values, max_size=4))
def test_any_parts_are_a_value_or_an_error(kind, parts):
    try:
        rpc_values.rebuild(kind, *parts)
    except Exception as error:
        assert not isinstance(error, (MemoryError, RecursionError, SystemError))


@pytest.mark.parametrize("make", [
    lambda: torch.zeros(1025), lambda: torch.zeros(4, 4).t()[1:], lambda: torch.randn(3, 3, dtype=torch.complex64).mH,
    lambda: torch.randn(4, 4, dtype=torch.complex64).conj()[:, ::2], lambda: torch.randn(3, dtype=torch.complex64).conj().imag,
    lambda: torch.ones(3, dtype=torch.complex64).conj(), lambda: torch.ones(5)[::7], lambda: torch.ones(0, 3).t(),
    lambda: torch.ones(3).expand(2, 3), lambda: torch.arange(6)[::2],
])  # fmt: skip
def test_odd_tensors_arrive_with_their_elements(make):
    tensor = make()
    made = crossed(tensor)
    assert torch.equal(made.resolve_conj().resolve_neg(), tensor.resolve_conj().resolve_neg())
    assert made.shape == tensor.shape and made.dtype == tensor.dtype and not made._is_view()


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("count", [0, 3, 5000])
@pytest.mark.parametrize("view", [lambda t: t, lambda t: t[::2], lambda t: t.conj()], ids=["whole", "a step", "conj"])
def test_complex32_crosses(count, view):
    tensor = view(torch.arange(2 * count).to(torch.float16).view(torch.complex32))
    made = crossed(tensor)
    assert made.dtype == torch.complex32 and not made._is_view()
    assert torch.equal(torch.view_as_real(made), torch.view_as_real(tensor.resolve_conj()))


def test_a_tensor_that_crossed_has_memory_of_its_own():
    made = crossed(torch.arange(3.0))
    made.resize_(7)


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
    with pytest.raises(ValueError, match=text):
        device_maps.check_maps({"a": mine, "b": theirs})


def test_device_maps_that_can_be_are_taken():
    device_maps.check_maps(
        {"a": told({"b": {"cuda:0": "cuda:1", "cuda:1": "cpu"}}, ["cuda:0", "cuda:1"]), "b": told(count=-1)}
    )


def test_a_device_below_zero_is_refused():
    options = rpc.TensorPipeRpcBackendOptions()
    for bad in ({-1: 0}, {0: -1}):
        with pytest.raises(RuntimeError, match="Device index must not be negative"):
            options.set_device_map("worker1", bad)
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
    for bytes_ in damaged(data, draw):
        read_call(bytes_)


# --- both readers of the format: objects of Python, and values of a program in C++


def read_as_object(data, tensors=()):
    """The value, or the class of the refusal."""
    try:
        return _core._decode_values(data, list(tensors), rpc_values.rebuild, rpc_values.CLASSES)[0]
    except (onecopy.BadHandle, onecopy.Unsupported, TypeError, ValueError, AttributeError) as error:
        return type(error)


def read_in_cpp(data, tensors=()):
    """The bytes and tensors that a program in C++ writes of the value, or the class of the refusal."""
    try:
        return _core._rewrite_value(data, list(tensors))
    except (onecopy.BadHandle, onecopy.Unsupported) as error:
        return type(error)


@settings(max_examples=750)
@given(VALID, st.data())
def test_both_readers_of_the_format_take_the_same_damaged_bytes_for_the_same_value(data, draw):
    for bytes_ in (data, *damaged(data, draw)):
        both_readers_agree(bytes_)


@settings(max_examples=750)
@given(st.binary(max_size=100))
@example(b"\xa2\xd2\0\0\0\0\xc0")  # a tuple within itself
@example(b"\xb1\xd2\0\0\0\0")  # a list within itself
@example(b"\xa2\xb1\x05\xd2\x01\0\0\0")  # the same list twice
@example(b"\xb9\xb0\x05")  # a list as a key
@example(b"\xc7\x09\0\0\0" + b"\xff" * 8 + b"\x01")  # an int of more than 64 bits
@example(b"\xd3\x00\x00")
def test_both_readers_of_the_format_take_the_same_bytes_for_the_same_value(data):
    both_readers_agree(data)


def both_readers_agree(data, tensors=()):
    value, rewritten = read_as_object(data, tensors), read_in_cpp(data, tensors)
    if isinstance(rewritten, tuple):  # a program in C++ has lists of pairs, whose keys need no hash
        again, has_tensors = read_as_object(*rewritten), rewritten[1] != []  # which it writes as torch tensors
        assert repr(again) == repr(value) or (has_tensors and not isinstance(value, type))
    elif rewritten is onecopy.BadHandle:
        assert value is onecopy.BadHandle


def test_both_readers_agree_about_the_corpus_of_the_fuzzer():
    """fuzz_rpc_value has no interpreter: it feeds one reader, and keeps the inputs that lead to new places of it."""
    tensors = [onecopy.empty((2,), "float32") for _ in range(3)]
    corpus = pathlib.Path(__file__).parents[3] / "fuzz/corpus/fuzz_rpc_value"
    inputs = [file.read_bytes() for file in corpus.iterdir()]
    assert inputs
    for count, *data in filter(None, inputs):
        for size in range(len(data) + 1):  # also cut off
            both_readers_agree(bytes(data[:size]), tensors[: count % 4])
