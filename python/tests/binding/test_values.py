# SPDX-License-Identifier: Apache-2.0
"""Plain values as bytes: the decoded value equals the encoded one, and nonsense is refused without harm."""

import contextlib
import ctypes
import math
import pickle
import struct
import sys

import pytest
from hypothesis import example, given, settings, strategies as st

import onecopy
from onecopy import _core
from support.plain_values import VALID, VALUES, damaged, encode


def there_and_back(value):
    return _core._decode_values(*encode(value))


def same(a, b):
    """Returns whether values are equal, and of equal types, at every depth."""
    if type(a) is not type(b):
        return False
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return same(list(a.items()), list(b.items()))
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    return a == b


@given(VALUES)
@example([-(2**63), 2**63 - 1, 2**63, -(2**63) - 1, 2**1000, -(2**1000), 127, 128, -128, -129])
@example([32767, 32768, -32768, -32769, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1])
@example(["", "x" * 31, "x" * 32, "x" * 255, "x" * 256, "ä" * 16, b"", b"x" * 255, b"x" * 256])
@example([tuple(range(15)), tuple(range(16)), list(range(7)), list(range(8))])
@example([dict.fromkeys(range(7)), dict.fromkeys(range(8)), {}, (), []])
@example([0.0, -0.0, math.inf, 5e-324])
def test_plain_values_come_back_equal_and_of_the_same_type(value):
    assert same(there_and_back(value), value)


def test_every_bit_of_a_nan_comes_back():
    (nan,) = struct.unpack("<d", bytes.fromhex("efbeaddeadbef87f"))
    assert struct.pack("<d", there_and_back(nan)) == struct.pack("<d", nan)


def test_small_values_take_few_bytes():
    assert encode(5) == (b"\x05", [])
    assert encode(None) == (b"\xc0", [])
    assert encode(("step", 7)) == (b"\xa2\x84step\x07", [])
    assert encode({"loss": 0.5})[0] == b"\xb9\x84loss\xc8" + struct.pack("<d", 0.5)


@pytest.mark.parametrize(
    "value",
    [
        {1, 2},
        object(),
        range(3),
        bytearray(b"x"),
        "\ud800",
        [print],
        {"deep": ({1},)},
        type("Int", (int,), {})(5),
        type("Str", (str,), {})("x"),
        type("Dict", (dict,), {})(),
        type("List", (list,), {})(),
        type("Tuple", (tuple,), {})(),
    ],
    ids=repr,
)
def test_other_types_and_subclasses_are_left_to_pickle(value):
    assert _core._encode_values(value) is None


def nested(depth):
    value = 1
    for _ in range(depth):
        value = [value]
    return value


def test_depth_is_bounded_and_the_deeper_left_to_pickle():
    assert there_and_back(nested(32)) == nested(32)
    assert _core._encode_values(nested(33)) is None
    assert _core._encode_values(nested(100_000)) is None


def test_what_occurs_twice_is_one_object_on_the_other_side():
    inner, text = [1], "x" * 300
    a, b, c, d = there_and_back((inner, inner, text, {"again": inner, "text": text}))
    assert a == [1] and a is b and d["again"] is a
    assert c == text and d["text"] is c


def test_a_list_or_dict_may_be_in_itself():
    value = [1]
    value += [value, {"up": value}]
    copy = there_and_back(value)
    assert copy[0] == 1 and copy[1] is copy and copy[2]["up"] is copy


def test_a_tuple_that_is_in_itself_is_left_to_pickle():
    value = ([],)
    value[0].append(value)
    assert _core._encode_values(value) is None
    assert pickle.loads(pickle.dumps(value))[0][0] is not None


def test_tuples_of_tuples_do_not_explode():
    value = (1,)
    for _ in range(30):
        value = (value, value)
    assert len(encode(value)[0]) < 1000


class Point:
    def __init__(self, x, y):
        self.x, self.y = x, y


def reduce(value):
    if isinstance(value, Point):
        return "point", value.x, value.y
    raise TypeError(f"a {type(value).__name__} has no form")


def rebuild(kind, *parts):
    assert kind == "point"
    return Point(*parts)


def as_a_call(value):
    data, tensors, _ = _core._encode_values(value, reduce)
    return _core._decode_values(data, tensors, rebuild)[0]


def test_objects_of_other_types_cross_by_their_parts():
    inner = Point(1, [2])
    first, again, outer = as_a_call((inner, inner, Point(inner, {"p": Point(None, ())})))
    assert (first.x, first.y) == (1, [2])
    assert again is first and outer.x is first
    assert outer.y["p"].y == ()


def test_numbers_agree_around_objects_and_their_parts():
    shared = [1]
    point = Point(shared, (shared, "x" * 300))
    a, b, c, d = as_a_call((point, shared, point, [point.y]))
    assert a is c and a.x is b and a.y[0] is b and d[0] is a.y


def test_the_reducers_refusal_comes_through_and_nothing_else_is_made_of_it():
    with pytest.raises(TypeError, match="a set has no form"):
        as_a_call([1, {2}])


def test_calls_name_the_reason_for_which_a_value_cannot_cross():
    with pytest.raises(TypeError, match="32 deep"):
        as_a_call(nested(33))
    loop = Point(1, None)
    loop.y = [loop]
    with pytest.raises(TypeError, match="contains itself"):
        as_a_call(loop)
    loop = [1]
    loop.append(loop)
    with pytest.raises(TypeError, match="contains itself"):
        as_a_call(loop)


def test_an_object_of_a_call_is_refused_elsewhere():
    data, tensors, _ = _core._encode_values(Point(1, 2), reduce)
    with pytest.raises(onecopy.errors.BadHandle, match="only calls have"):
        _core._decode_values(data, tensors)


def chain(levels, width=1):
    """A tuple that holds the one before `width` times, and so on, and all of them in a row: each comes as a reference."""
    inner, row = (1, 2), []
    for _ in range(levels):
        inner = (inner,) * width
        row.append(inner)
    return row


def test_tuples_nested_deep_through_references_are_left_to_pickle():
    assert there_and_back(chain(31)) == chain(31)
    assert _core._encode_values(chain(32)) is None


def with_key(row):
    """The row with a dict at its end whose key is its last tuple, put there unhashed: this process must not hash it."""
    key = tuple(None for _ in "x")  # a literal is a constant of the code object, which hashes it
    item = {key: 1}
    ctypes.c_ssize_t.from_address(id(row[-1])).value += 1
    ctypes.c_void_p.from_address(id(key) + tuple.__itemsize__ * 3).value = id(row[-1])
    return [*row, item]


@pytest.mark.skipif(
    sys.implementation.name != "cpython" or sys.version_info >= (3, 14), reason="writes into a tuple of CPython's"
)
@pytest.mark.parametrize(("levels", "width"), [(2000, 1), (31, 2)])
def test_a_key_that_nobody_can_hash_is_refused_where_it_is_put(levels, width):
    item = with_key(chain(levels, width))
    with pytest.raises(onecopy.InvalidArgument, match="a key of a dict"):
        _core._encode_values(item)
    queue = onecopy.Queue()
    with pytest.raises(onecopy.InvalidArgument, match="a key of a dict"):
        queue.put(item)


def referring(levels, width, end):
    """The bytes of a row of tuples, each of `width` references to the one before, with `end` behind them."""
    rows = [bytes([0xA0 | width]) + width * (b"\xd2" + struct.pack("<I", i)) for i in range(1, levels)]
    return b"\xcf" + struct.pack("<I", levels + 1) + b"\xa1\x01" + b"".join(rows) + end


def test_an_item_nested_deep_through_references_is_refused():
    fine = referring(32, 1, b"\x05")
    assert _core._decode_values(fine, [])[-1] == 5
    with pytest.raises(onecopy.BadHandle, match="nested too deeply"):
        _core._decode_values(referring(33, 1, b"\x05"), [])
    with pytest.raises(onecopy.BadHandle, match="nested too deeply"):
        _core._decode_values(referring(200_000, 1, b"\xb9\xd2" + struct.pack("<I", 200_000) + b"\x01"), [])


def test_a_key_that_takes_for_ever_to_hash_is_refused():
    """Two references to the tuple before, thirty times: 250 bytes, and a billion hashes."""
    key = b"\xb9\xd2" + struct.pack("<I", 30) + b"\x01"
    with pytest.raises(onecopy.BadHandle, match="too many parts"):
        _core._decode_values(referring(30, 2, key), [])
    key = b"\xb9\xd2" + struct.pack("<I", 15) + b"\x01"
    assert len(_core._decode_values(referring(15, 2, key), [])[-1]) == 1
    many = b"\xb9\xa1\xd2" + struct.pack("<I", 15) + b"\x01"
    data = referring(15, 2, many)
    data = data[:1] + struct.pack("<I", 15 + 1000) + data[5:] + 999 * many
    with pytest.raises(onecopy.BadHandle, match="too many parts"):
        _core._decode_values(data, [])


def test_large_keys_that_occur_again_are_values_like_others():
    large = tuple(range(10_000))
    value = [large, {large: 1}, {(large, large): 2}] + [{(1, 2, i % 7): large[:3]} for i in range(1000)]
    assert there_and_back(value) == value


def test_numbers_of_what_was_seen_count_every_container():
    lists = [[i] for i in range(1000)]
    copy = there_and_back(lists + lists[::-1])
    assert all(copy[i] is copy[1999 - i] for i in range(1000))
    assert [x for [x] in copy[:1000]] == list(range(1000))


@settings(max_examples=1000)
@given(st.binary(max_size=200))
@example(b"")
@example(b"\xff")
@example(b"\xce\xff\xff\xff\xff")  # a tuple of 2**32 - 1
@example(b"\xcb\xff\xff\xff\xffx")  # a str of 4 GiB
@example(b"\xc7\xff\xff\xff\xff")
@example(b"\xb9\xb0\x01")  # a list as a key
@example(b"\xa1\xd2\x00\x00\x00\x00")  # a tuple in itself
@example(b"\xa1" * 1000)
@example(b"\xb1" * 100_000)
@example(b"\xbb\x01\xb0\x01\xb0\xd2\x01\x00\x00\x00\x01")  # to a list that its dict has lost
def test_nonsense_is_refused_or_a_value(data):
    try:
        value = _core._decode_values(data, [])
    except onecopy.errors.BadHandle:
        return
    # Accepted bytes are a plain value: it can be written again.
    repr(value)


@settings(max_examples=500)
@given(VALID, st.data())
def test_damaged_values_are_refused_or_values(data, draw):
    for bytes_ in damaged(data, draw):
        try:
            repr(_core._decode_values(bytes_, []))
        except onecopy.errors.BadHandle:
            continue


@given(VALID)
def test_what_follows_a_value_is_refused(data):
    with pytest.raises(onecopy.errors.BadHandle, match="follow"):
        _core._decode_values(data + b"\x00", [])


@pytest.mark.parametrize("data", [b"\xd1\x01", b"\xd1\x00", b"\xd1", b"\xd2\x00\x00\x00\x00"])
def test_tensors_that_are_not_there_are_refused(data):
    with pytest.raises(onecopy.errors.BadHandle):
        _core._decode_values(data, [])


def test_the_examples_of_the_documentation(repository):
    """docs/design/formats/python-message-v1.md says how values look; so they do."""
    torch = pytest.importorskip("torch")
    rows = (repository / "docs/design/formats/python-message-v1.md").read_text().splitlines()
    examples = [row.split("|")[1:3] for row in rows if row.count("`") == 4 and row.startswith("| `")]
    assert len(examples) == 5
    for value, expected in examples:
        source = value.split("`")[1]
        encoded, tensors = encode(eval(source, {"t": torch.zeros(1)}))
        assert encoded.hex(" ") == expected.strip(" `"), source
        assert len(tensors) == source.count("[t,")


@given(VALID)
@settings(max_examples=300)
def test_python_and_cpp_read_and_write_one_format(data):
    """test_rpc_values.py compares what both readers refuse."""
    assert encode(_core._decode_values(data, []))[0] == data
    with contextlib.suppress(onecopy.errors.Unsupported):  # an int of more than 64 bits
        assert _core._rewrite_value(data, [])[0] == data
