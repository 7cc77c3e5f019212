# SPDX-License-Identifier: Apache-2.0
"""Large bytes, str and bytearray cross as rows of tensors, and arrive as what they were."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch")

from onecopy import _core
from onecopy.distributed import rpc
from onecopy.rpc import values
from support.rpc_group import shared_group

two = shared_group(2)

LARGE = 64 << 10  # bytes from which they are rows


def encoded(value):
    data, rows, _ = _core._encode_values(value, values.reduce, values.CLASSES)
    return data, rows


def again(value):
    return _core._decode_values(*encoded(value), values.rebuild, values.CLASSES)[0]


def content(kind, size):
    pattern = bytes(range(1, 128)) * (size // 127 + 1)
    return {
        "bytes": lambda: pattern[:size],
        "bytearray": lambda: bytearray(pattern[:size]),
        "str": lambda: pattern[:size].decode("ascii"),
        "latin": lambda: "é" * (size // 2),
        "wide": lambda: "€" * (size // 3 + 1),
        "astral": lambda: "\U0001f600" * (size // 4),
    }[kind]()


SIZES = [LARGE - 1, LARGE, LARGE + 1, (2 << 20) + 3, (9 << 20) + 5]  # several threads copy the last


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["bytes", "bytearray", "str", "latin", "wide", "astral"])
def test_a_large_value_is_a_row_and_arrives_as_it_was(kind, size):
    value = content(kind, size)
    found = again(value)
    assert type(found) is type(value) and found == value and found is not value
    assert len(encoded(value)[1]) == (size >= LARGE) or kind in ("latin", "wide", "astral")
    if size >= LARGE + 3:
        assert len(encoded(value)[0]) == 2


def test_a_value_in_two_places_is_one_row_and_one_object():
    text = content("str", LARGE)
    found = again([text, {"a": text}, content("bytes", LARGE)])
    assert found[0] is found[1]["a"] and found[0] == text
    assert len(encoded([text, {"a": text}, content("bytes", LARGE)])[1]) == 2


def test_a_large_key_of_a_dict_arrives():
    key, other = content("bytes", LARGE), content("str", LARGE)
    assert again({key: 1, other: [torch.ones(2000)]})[key] == 1


def test_a_subclass_of_bytearray_arrives_as_a_bytearray():
    class Bytes(bytearray):
        pass

    found = again(Bytes(content("bytes", LARGE)))
    assert type(found) is bytearray and found == content("bytes", LARGE)


def test_lone_surrogates_cross():
    text = "\ud800" * LARGE
    assert again(text) == text


def test_a_row_that_is_not_utf8_is_refused():
    data, rows = encoded(content("str", LARGE))
    damaged = rows[0].torch()
    damaged[100] = 0xFF
    with pytest.raises(ValueError, match="a str is not UTF-8"):
        _core._decode_values(data, rows, values.rebuild, values.CLASSES)


@pytest.mark.parametrize("flags", [0x41, 0xE0, 0xC1])
def test_a_row_with_flags_of_a_tensor_is_refused(flags):
    data, rows = encoded(content("bytes", LARGE))
    with pytest.raises(ValueError, match="has the flags of a tensor"):
        _core._decode_values(data[:1] + bytes([flags]), rows, values.rebuild, values.CLASSES)


def test_a_tensor_that_is_not_a_row_of_bytes_is_refused():
    import onecopy

    data, _ = encoded(content("bytes", LARGE))
    for tensor in (onecopy.empty((4, 4), "uint8"), onecopy.empty((16,), "int32")):
        with pytest.raises(ValueError, match="bytes are not in a row"):
            _core._decode_values(data, [tensor], values.rebuild, values.CLASSES)


def test_a_row_is_no_value_of_a_queue():
    data, rows = encoded(content("bytes", LARGE))
    with pytest.raises(ValueError, match="as only calls have"):
        _core._decode_values(data, rows)


def test_programs_in_cpp_read_rows():
    for kind in ("bytes", "str", "wide"):
        value = content(kind, 2 * LARGE)
        data, rows = _core._rewrite_value(*encoded([value]))
        assert rows == [] and _core._decode_values(data, [], values.rebuild, values.CLASSES)[0] == [value]


def test_a_bytearray_that_shrinks_meanwhile_is_sent_whole_or_not_at_all():
    array, stop = bytearray(b"x" * (4 << 20)), threading.Event()

    def resize():
        while not stop.is_set():
            try:
                del array[LARGE * 2 :]
                array.extend(b"x" * ((4 << 20) - len(array)))
            except BufferError:  # it is being copied
                pass

    thread = threading.Thread(target=resize)
    thread.start()
    try:
        for _ in range(50):
            assert set(again(array)) == {ord("x")}
    finally:
        stop.set()
        thread.join()


def echo(value):
    return value


def length(value):
    return type(value).__name__, len(value)


def crossed(kind):
    value = content(kind, 3 << 20)
    there = rpc.rpc_sync("worker1", length, args=(value,))
    back = rpc.rpc_sync("worker1", echo, args=(value,))
    kept = rpc.remote("worker1", echo, args=([value, value],)).to_here()
    return there == (type(value).__name__, len(value)), back == value, kept[0] == value and kept[0] is kept[1]


@pytest.mark.parametrize("kind", ["bytes", "bytearray", "str", "wide"])
def test_arguments_and_results_cross(two, kind):
    assert two[0](crossed, kind) == (True, True, True)
