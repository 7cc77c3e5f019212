# SPDX-License-Identifier: Apache-2.0
"""Tensors as bytes: memoryview(), files, and other objects with the buffer protocol."""

import array
import gc

import pytest

import onecopy

FORMATS = {
    "bool": "?", "uint8": "B", "int8": "b", "uint16": "H", "int16": "h", "uint32": "I", "int32": "i",
    "uint64": "L", "int64": "l", "float16": "e", "float32": "f", "float64": "d",
    "complex64": "Zf", "complex128": "Zd",
}  # fmt: skip


@pytest.mark.parametrize("dtype", FORMATS)
def test_memoryview_sees_the_tensor(dtype):
    t = onecopy.full((2, 3), 1, dtype)
    view = t.memoryview()
    assert view.format == FORMATS[dtype]
    assert view.shape == (2, 3) and view.nbytes == t.nbytes and view.itemsize == t.itemsize
    assert view.strides == (3 * t.itemsize, t.itemsize)
    assert not view.readonly
    assert view.tobytes() == bytes(t.view("uint8").reshape(-1).tolist())


def test_writes_go_through_both_ways():
    t = onecopy.zeros(3, "int32")
    view = t.memoryview()
    view[1] = 5
    t[2] = 6
    assert t.tolist() == view.tolist() == [0, 5, 6]


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"])
def test_types_without_a_format_are_refused_with_what_to_do(dtype):
    with pytest.raises(BufferError, match=r"no format .*use \.torch\(\)"):
        onecopy.empty(2, dtype).memoryview()
    assert bytes(onecopy.full(2, 0, dtype).view("uint8").memoryview()) != b""


def test_strides_and_contiguity():
    t = onecopy.zeros((4, 4), "uint8")
    column = t[:, 1].memoryview()
    assert column.strides == (4,) and column.tolist() == [0, 0, 0, 0]
    assert not column.c_contiguous
    with pytest.raises(BufferError, match="contiguous"):
        bytes_io_write(t[:, 1].memoryview())
    bytes_io_write(t.memoryview())


def bytes_io_write(source) -> None:
    """Wants contiguous bytes."""
    import io

    io.BytesIO().write(source)


def test_files_read_straight_into_tensors(tmp_path):
    (tmp_path / "file").write_bytes(bytes(range(8)))
    t = onecopy.zeros(8, "uint8")
    with open(tmp_path / "file", "rb") as file:
        assert file.readinto(t.memoryview()) == 8
        read_only = onecopy.open(onecopy.share(t), access="read")
        with pytest.raises((BufferError, TypeError)):
            file.readinto(read_only.memoryview())
    assert t.tolist() == list(range(8))


def test_empty_and_0d():
    assert onecopy.empty((0, 3)).memoryview().shape == (0, 3)
    assert onecopy.full((), 2.0).memoryview().tolist() == 2.0
    assert onecopy.full((), 2.0).memoryview()[()] == 2.0


def test_a_view_keeps_the_memory():
    gc.collect()
    before = onecopy.stats()["live_blocks"]
    t = onecopy.full(4, 7, "uint8")
    view = t.memoryview()
    del t
    gc.collect()
    assert view.tolist() == [7] * 4 and onecopy.stats()["live_blocks"] == before + 1
    view.release()
    del view
    assert onecopy.stats()["live_blocks"] == before


def test_the_tensor_itself_is_no_buffer():
    """torch.asarray() takes any buffer for bytes."""
    with pytest.raises(TypeError, match="bytes-like object is required"):
        memoryview(onecopy.zeros(2, "uint8"))


@pytest.mark.parametrize(
    "source", [b"\1\2\3", bytearray(b"\1\2\3"), memoryview(b"\1\2\3"), array.array("B", [1, 2, 3])]
)
def test_anything_with_a_buffer_can_be_shared_and_copied_from(source):
    opened = onecopy.open(onecopy.share(source))
    assert (opened.dtype, opened.tolist()) == ("uint8", [1, 2, 3])
    t = onecopy.zeros(3, "uint8")
    t.copy_from(source)
    assert t.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    "code, dtype",
    [
        ("b", "int8"),
        ("h", "int16"),
        ("i", "int32"),
        ("l", "int64"),
        ("q", "int64"),
        ("H", "uint16"),
        ("I", "uint32"),
        ("L", "uint64"),
        ("f", "float32"),
        ("d", "float64"),
    ],
)
def test_arrays_of_the_standard_library(code, dtype):
    opened = onecopy.open(onecopy.share(array.array(code, [1, 2])))
    assert opened.dtype == dtype and opened.tolist() == [1, 2]


def test_a_memoryview_of_a_tensor_is_that_tensor():
    t = onecopy.zeros((4, 4), "int16")
    before = onecopy.stats()["live_blocks"]
    opened = onecopy.open(onecopy.share(t.memoryview()[1:3]))
    assert onecopy.stats()["live_blocks"] == before
    opened[0, 0] = 3
    assert t[1, 0].item() == 3


def test_backward_views_are_copied_in_their_order():
    t = onecopy.empty(4, "int32")
    for i in range(4):
        t[i] = i
    assert onecopy.open(onecopy.share(t.memoryview()[::-1])).tolist() == [3, 2, 1, 0]
    other = onecopy.zeros(2, "int32")
    other.copy_from(t.memoryview()[::-2])
    assert other.tolist() == [3, 1]


def test_elements_that_are_no_numbers_are_refused():
    ctypes = pytest.importorskip("ctypes")

    class Pair(ctypes.Structure):
        _fields_ = [("a", ctypes.c_int), ("b", ctypes.c_int)]

    with pytest.raises(onecopy.Unsupported, match=r"x has elements of the format"):
        onecopy.share((Pair * 2)())
    with pytest.raises(onecopy.Unsupported, match="format"):
        onecopy.share((ctypes.c_uint32.__ctype_be__ * 2)())


def test_bytes_of_a_tensor_are_those_of_its_elements():
    assert bytes(onecopy.full(1, 3, "int32")) == b"\3\0\0\0"
    assert bytes(onecopy.full((2, 2), 7, "uint8")) == b"\7" * 4
    assert bytes(onecopy.zeros((4, 4))) == bytes(64)
    assert bytes(onecopy.full((), 1.0)) == b"\0\0\x80\x3f"
    assert bytes(onecopy.full((), 3, "uint8")) == b"\3"
    assert bytes(onecopy.full((2, 2), 1, "bfloat16")) == b"\x80\x3f" * 4
    table = onecopy.zeros((2, 2), "uint8")
    table[:, 1] = 9
    assert bytes(table[:, 1]) == b"\t\t"
