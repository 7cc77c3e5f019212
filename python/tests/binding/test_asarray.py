# SPDX-License-Identifier: Apache-2.0
"""Tensors made of arrays and numbers, and the results of other libraries' asarray() for tensors."""

import pytest

import onecopy

np = pytest.importorskip("numpy")

DTYPES = ["bool", "uint8", "int16", "int64", "float16", "float32", "float64", "complex64"]


# --- of other libraries -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*DTYPES, "bfloat16"])
def test_torch_asarray_is_the_same_memory_dtype_and_shape(dtype):
    torch = pytest.importorskip("torch")
    t = onecopy.full((2, 3), 1, dtype)
    for make in (torch.asarray, torch.as_tensor):
        x = make(t)
        assert (str(x.dtype), tuple(x.shape)) == (f"torch.{dtype}", (2, 3))
        assert x.data_ptr() == t.data_ptr and x.real.float().tolist() == [[1] * 3] * 2


def test_torch_asarray_of_a_view_and_of_scalars():
    torch = pytest.importorskip("torch")
    t = onecopy.zeros((4, 4), "int64")
    t[:, 1] = 7
    assert torch.asarray(t[:, 1]).tolist() == [7] * 4
    assert torch.asarray(onecopy.full((), 5, "int32")).shape == ()
    assert torch.tensor(t[:, 1]).tolist() == [7] * 4


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_asarray_is_the_same_memory_dtype_and_shape(dtype):
    t = onecopy.full((2, 3), 1, dtype)
    x = np.asarray(t)
    assert x.dtype.name == dtype and x.shape == (2, 3) and x.ctypes.data == t.data_ptr and x.flags.writeable
    assert np.stack([t, t]).shape == (2, 2, 3)
    assert np.array(t).ctypes.data != t.data_ptr


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "float16", "float32", "bfloat16"])
def test_jax_asarray_has_the_dtype_and_shape(dtype):
    jnp = pytest.importorskip("jax.numpy")
    t = onecopy.full((2, 3), 1, dtype)
    x = jnp.asarray(t)
    assert (x.dtype.name, x.shape) == (dtype, (2, 3)) and x.astype("float32").tolist() == [[1] * 3] * 2
    assert jnp.asarray(t, dtype="float32").dtype == "float32"


# --- into onecopy -----------------------------------------------------------------------------------


def test_asarray_of_memory_of_onecopy_is_that_memory():
    t = onecopy.zeros((2, 3))
    assert onecopy.asarray(t) is t
    for view in (t.numpy(), t.numpy()[:1], t.memoryview()):
        assert onecopy.asarray(view, copy=False).data_ptr == t.data_ptr


def test_asarray_copies_an_array_of_numpy_once_into_shared_memory():
    a = np.arange(6, dtype="int16").reshape(2, 3)
    t = onecopy.asarray(a)
    assert t.is_shared and (t.dtype, t.tolist()) == ("int16", [[0, 1, 2], [3, 4, 5]])
    a[0, 0] = 9
    assert t[0, 0].item() == 0
    with pytest.raises(onecopy.InvalidArgument, match="copy=False, but this array lies in memory of another library"):
        onecopy.asarray(a, copy=False)


def test_asarray_moves_a_torch_tensor_as_share_does():
    torch = pytest.importorskip("torch")
    x = torch.arange(3)
    t = onecopy.asarray(x, copy=False)
    x[0] = 7
    assert t.tolist() == [7, 1, 2] and t.is_shared


def test_array_is_always_new():
    t = onecopy.zeros(2)
    for source in (t, t.numpy()):
        other = onecopy.array(source)
        other[0] = 1
        assert t.tolist() == [0, 0] and other.is_shared


@pytest.mark.parametrize("dtype", [*DTYPES, float, np.int8, np.dtype("uint32")])
def test_asarray_converts_to_a_dtype(dtype):
    for source in (onecopy.full((2,), 1, "int32"), np.ones(2, "int32"), [1, 1]):
        t = onecopy.asarray(source, dtype)
        assert t.dtype == onecopy.empty(0, dtype).dtype and np.asarray(t).real.tolist() == [1, 1]


def test_asarray_converts_to_bfloat16():
    assert onecopy.asarray([1.5, 2], "bfloat16").tolist() == [1.5, 2]


@pytest.mark.parametrize(
    "numbers, dtype",
    [
        (3, "int64"), (True, "bool"), (1.5, "float32"), (2j, "complex64"), ([1, 2.5], "float32"), ([True, 2], "int64"),
        ([[1], [2]], "int64"), ([], "float32"), ([[], []], "float32"), ((1, (2))[:1], "int64"), ([1, 2j], "complex64"),
    ],
)  # fmt: skip
def test_numbers_become_tensors(numbers, dtype):
    t = onecopy.asarray(numbers)
    assert t.dtype == dtype and t.shape == np.shape(numbers)
    assert np.asarray(t).tolist() == np.asarray(numbers).tolist()


@pytest.mark.parametrize(
    "obj, error, message",
    [
        ([[1, 2], [3]], onecopy.InvalidArgument, "rows of one length"),
        ([1, [2]], onecopy.InvalidArgument, "rows of one length"),
        ([[2], 1], onecopy.InvalidArgument, "rows of one length"),
        ("text", TypeError, "or lists of numbers, not 'text'"),
        ([None], TypeError, "or lists of numbers, not None"),
        ([np.ones(2)], TypeError, "stack them first"),
        (object(), TypeError, "or lists of numbers, not <object"),
    ],
)
def test_what_is_no_array_is_refused_with_what_to_do(obj, error, message):
    with pytest.raises(error, match=message):
        onecopy.asarray(obj)


def test_numbers_that_do_not_fit_are_refused():
    with pytest.raises(OverflowError):
        onecopy.asarray([300], "uint8")
    with pytest.raises(onecopy.InvalidArgument, match="numbers have no memory"):
        onecopy.asarray([1], copy=False)


def test_from_numpy_is_the_same_memory():
    a = np.zeros(3)
    t = onecopy.from_numpy(a)
    a[1] = 2
    assert t.tolist() == [0, 2, 0] and not t.is_shared
    ours = onecopy.zeros(3)
    assert onecopy.from_numpy(ours.numpy()).is_shared
    with pytest.raises(TypeError, match=r"must be a numpy.ndarray, not list; asarray\(\)"):
        onecopy.from_numpy([1])


def test_ones():
    assert onecopy.ones((2, 2), "int8").tolist() == [[1, 1], [1, 1]] and onecopy.ones(2).dtype == "float32"


@pytest.mark.parametrize("x", [onecopy.zeros((2, 3), "int16"), np.zeros((2, 3), "int16")], ids=["onecopy", "numpy"])
def test_tensors_like_another(x):
    assert onecopy.zeros_like(x).tolist() == [[0] * 3] * 2
    assert onecopy.ones_like(x).tolist() == [[1] * 3] * 2
    made = onecopy.empty_like(x)
    assert (made.shape, made.dtype, made.device) == ((2, 3), "int16", "cpu")
    assert onecopy.zeros_like(x, "float64").dtype == "float64"
    with pytest.raises(TypeError, match="x must be an array"):
        onecopy.zeros_like([1, 2])


def test_tensors_like_one_of_torch():
    torch = pytest.importorskip("torch")
    assert onecopy.zeros_like(torch.empty(2, 3, dtype=torch.bfloat16)).dtype == "bfloat16"
