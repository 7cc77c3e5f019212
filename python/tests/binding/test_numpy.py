# SPDX-License-Identifier: Apache-2.0
"""Tensors and numpy."""

import sys

import pytest

import onecopy

np = pytest.importorskip("numpy")

SHARED_WITH_NUMPY = [
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32",
    "float64", "complex64", "complex128",
]  # fmt: skip


@pytest.mark.parametrize("dtype", SHARED_WITH_NUMPY)
def test_numpy_has_the_same_memory_and_type(dtype):
    t = onecopy.full((2, 3), 1, dtype)
    array = t.numpy()
    assert array.dtype.name == dtype and array.shape == (2, 3)
    assert array.ctypes.data == t.data_ptr
    assert array.flags.writeable
    array[0, 0] = 0
    assert t[0, 0].item() == 0
    assert onecopy.empty(1, array.dtype).dtype == onecopy.empty(1, array.dtype.type).dtype == dtype


def test_read_only_tensors_are_read_only_arrays():
    t = onecopy.open(onecopy.share(onecopy.zeros(3)), access="read")
    for array in (t.numpy(), np.asarray(t), onecopy.open(onecopy.share(t), access="read", framework="numpy")):
        assert not array.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_arrays_keep_the_memory():
    array = onecopy.full(3, 2.0).numpy()
    part = array[1:]
    del array
    onecopy.collect()
    assert part.tolist() == [2.0, 2.0]


def test_array_protocol():
    t = onecopy.full(3, 1.5)
    assert np.asarray(t).ctypes.data == t.data_ptr
    assert np.array(t).ctypes.data != t.data_ptr
    assert np.asarray(t, dtype=np.float64).tolist() == [1.5] * 3
    assert t.__array__(np.dtype("float32")).ctypes.data == t.data_ptr
    assert t.__array__(copy=True).ctypes.data != t.data_ptr
    with pytest.raises(onecopy.InvalidArgument, match="copy=False"):
        t.__array__(np.dtype("int8"), copy=False)


def test_a_dtype_of_the_other_byte_order_is_refused():
    other = np.dtype("f4").newbyteorder("S")
    for call in (lambda: onecopy.zeros(3, other), lambda: onecopy.zeros(3).view(other)):
        with pytest.raises(
            onecopy.InvalidArgument, match=r"^dtype must be in this machine's byte order, not .*newbyteorder"
        ):
            call()
    assert onecopy.zeros(3, other.newbyteorder("=")).dtype == "float32"


def test_assignment_converts_and_broadcasts_as_numpy_does():
    t = onecopy.zeros((2, 3))
    t[...] = np.arange(3)
    t[1] = [7, 8, 9]
    t[0, 0] = np.float64(0.5)
    assert t.tolist() == [[0.5, 1, 2], [7, 8, 9]]
    with pytest.raises(ValueError):
        t[...] = np.zeros(4)


def test_a_view_of_the_tensor_itself_is_read_before_it_is_written():
    t = onecopy.zeros(6)
    t[:] = np.arange(6, dtype=np.float32)
    t[:] = t.numpy()[::-1]
    assert t.tolist() == [5, 4, 3, 2, 1, 0]
    square = onecopy.zeros((3, 3))
    square[:] = np.arange(9, dtype=np.float32).reshape(3, 3)
    square.copy_from(square.numpy().T)
    assert square.tolist() == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]


def test_sharing_an_array_copies_it_once():
    array = np.arange(6.0).reshape(2, 3)
    handle = onecopy.share(array.T)
    array[:] = 0
    assert onecopy.open(handle).tolist() == [[0, 3], [1, 4], [2, 5]]


def test_sharing_an_array_on_our_memory_copies_nothing():
    t = onecopy.zeros((4, 6), "int16")
    before = onecopy.stats()["live_bytes"]
    for part in (t.numpy(), t.numpy()[1:3, ::2], np.from_dlpack(t).T, t.numpy().reshape(-1)[5:]):
        opened = onecopy.open(onecopy.share(part), framework="numpy")
        assert opened.ctypes.data == part.ctypes.data and opened.strides == part.strides
    assert onecopy.stats()["live_bytes"] == before


def test_copy_shares_a_copy_of_our_own_memory_as_well():
    t = onecopy.zeros(3)
    handle = onecopy.share(t.numpy(), copy=True)
    t[0] = 1
    assert onecopy.open(handle).tolist() == [0, 0, 0]


def test_a_read_only_array_is_lent_for_reading_only():
    t = onecopy.zeros(3)
    array = t.numpy()
    array.flags.writeable = False
    handle = onecopy.share(array)
    with pytest.raises(onecopy.ReadOnly):
        onecopy.open(handle)
    assert onecopy.open(handle, access="read").tolist() == [0, 0, 0]


@pytest.mark.parametrize("array", ["datetime64[s]", "S3", "U3", ">i4", "i4,f8", object, "longdouble"], ids=str)
def test_elements_that_are_no_plain_numbers_are_refused(array):
    with pytest.raises(onecopy.Unsupported, match=r"\bx\b"):
        onecopy.share(np.zeros(2, dtype=array))


def test_masked_arrays_are_refused_and_their_parts_are_not():
    masked = np.ma.masked_array([1.0, 2.0], mask=[0, 1])
    t = onecopy.zeros(2, "float64")
    for use in (onecopy.share, onecopy.from_dlpack, t.copy_from, lambda x: t.__setitem__(..., x)):
        with pytest.raises(onecopy.Unsupported, match=r"x\.data and x\.mask, or x\.filled\(\)"):
            use(masked)
    with pytest.raises(onecopy.Unsupported, match=r'^x at "a\.0" is a masked array'):
        onecopy.share({"a": [masked]})
    assert t.tolist() == [0, 0]
    tree = onecopy.open(onecopy.share({"data": masked.data, "mask": masked.mask})).tree()
    assert tree["data"].tolist() == [1, 2] and tree["mask"].tolist() == [False, True]
    assert onecopy.open(onecopy.share(masked.filled(9))).tolist() == [1, 9]


def test_masked_arrays_cross_queues_with_their_mask():
    queue = onecopy.Queue()
    queue.put(np.ma.masked_array([1.0, 2.0], mask=[0, 1]))
    assert queue.get(timeout=60).tolist() == [1, None]


@pytest.mark.parametrize(
    "dtype, number, error",
    [
        ("uint8", np.int64(256), OverflowError), ("uint8", np.int8(-1), OverflowError),
        ("int32", np.float32(2.7), TypeError), ("float32", np.complex64(1j), TypeError),
    ],
)  # fmt: skip
def test_numpy_scalars_are_written_as_numbers_are(dtype, number, error):
    t = onecopy.full(2, 1, dtype)
    for value in (number, number.item()):
        with pytest.raises(error, match="value"):
            t[0] = value
    assert t.tolist() == [1, 1]
    t[:] = np.uint8(7)
    assert t.tolist() == [7, 7]


def test_torch_tensors_of_types_that_numpy_lacks_are_converted():
    torch = pytest.importorskip("torch")
    t = onecopy.zeros((2, 3))
    t[:] = torch.tensor([1.5, 2, 3], dtype=torch.bfloat16)
    assert t.tolist() == [[1.5, 2, 3]] * 2
    t[0] = torch.tensor(4.0, dtype=torch.bfloat16)
    assert t.tolist() == [[4, 4, 4], [1.5, 2, 3]]


def test_numpy_scalars():
    assert onecopy.open(onecopy.share(np.float32(2.5))).tolist() == 2.5
    assert onecopy.open(onecopy.share({"n": np.int8(3), "f": np.float64(0.5)})).tree() == {"n": 3, "f": 0.5}


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"])
def test_types_that_numpy_lacks_come_from_ml_dtypes(dtype):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    t = onecopy.full((2, 2), 1, dtype)[:, ::2]
    array = t.numpy()
    assert array.dtype == getattr(ml_dtypes, dtype) and array.ctypes.data == t.data_ptr
    assert onecopy.open(onecopy.share(array)).dtype == dtype


def test_without_ml_dtypes_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(onecopy.Unsupported, match="install the package ml_dtypes"):
        onecopy.empty(2, "bfloat16").numpy()


def test_extended_arrays_are_shared_by_their_name(monkeypatch):
    """An array of ml_dtypes, as it looks without the package: its dtype has an unknown name."""
    array = np.arange(3, dtype=np.uint16)
    opened = onecopy.open(onecopy.share(onecopy.from_dlpack(array).view("bfloat16")))
    assert opened.dtype == "bfloat16" and opened.view("uint16").tolist() == [0, 1, 2]


def test_bytes_of_large_arrays_survive():
    array = np.random.default_rng(1).standard_normal((300, 400)).astype(np.float32)
    for part in (array, array.T, array[::3, 5:], array[::-1], array[:, ::-2]):
        assert (onecopy.open(onecopy.share(part), framework="numpy") == part).all()
