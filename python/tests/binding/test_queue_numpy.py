# SPDX-License-Identifier: Apache-2.0
"""Arrays of numpy in queues: their memory when it is onecopy's, or else one copy in shared memory."""

import pickle

import pytest

import onecopy
from onecopy import _core
from support.processes import running

np = pytest.importorskip("numpy")

LARGE = 1 << 16


class Other:
    """Something that has to be pickled."""

    def __init__(self, value):
        self.value = value


WAYS = {
    "alone": (lambda x: x, lambda x: x),
    "in a dict": (lambda x: {"x": [x, 1]}, lambda tree: tree["x"][0]),
    "in a pickle": (Other, lambda other: other.value),
}


@pytest.fixture(params=WAYS)
def way(request):
    return WAYS[request.param]


def through_queue(value):
    queue = onecopy.Queue()
    queue.put(value)
    return queue.get()


def test_memory_of_onecopy_arrives_as_that_memory(way):
    wrap, unwrap = way
    for size in (3, LARGE):
        array = onecopy.zeros(size, "int32").numpy()
        got = unwrap(through_queue(wrap(array)))
        assert type(got) is np.ndarray and got.ctypes.data == array.ctypes.data
        got[0] = 5
        assert array[0] == 5


def test_other_arrays_are_copied_into_shared_memory(way):
    wrap, unwrap = way
    array = np.arange(LARGE, dtype="float32").reshape(16, -1)
    got = unwrap(through_queue(wrap(array)))
    assert type(got) is np.ndarray and got.flags.writeable and got.dtype == array.dtype
    assert np.array_equal(got, array) and onecopy.asarray(got, copy=False).is_shared
    got[0, 0] = 7
    assert array[0, 0] == 0


def test_the_message_of_a_large_array_is_a_tensor_and_no_pickle():
    data, tensors = _core._encode_values({"x": np.zeros(LARGE), "y": np.ones(LARGE)})
    assert len(data) < 64 and [t.nbytes for t in tensors] == [LARGE * 8] * 2


def test_an_array_that_is_there_twice_arrives_as_one():
    array = np.zeros(LARGE)
    a, b = through_queue([array, array])
    assert a is b


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "uint64", "float16", "float64", "complex128", "bfloat16"])
def test_dtypes_arrive_as_they_were(dtype):
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    array = np.ones(LARGE, dtype)
    got = through_queue(array)
    assert got.dtype == array.dtype and np.array_equal(got, array) and got.flags.writeable


@pytest.mark.parametrize(
    "array",
    [
        np.asfortranarray(np.arange(LARGE).reshape(64, -1)),
        np.arange(LARGE)[::-1],
        np.arange(4 * LARGE).reshape(4, -1)[:, ::2],
        np.arange(LARGE).reshape(2, 4, -1).transpose(2, 0, 1),
        np.broadcast_to(np.float32(3), (LARGE,)),
    ],
    ids=["column-major", "backwards", "every other", "transposed", "broadcast"],
)
def test_strides_are_no_matter(array):
    got = through_queue(array)
    assert np.array_equal(got, array) and got.flags.writeable
    assert got.flags.f_contiguous == pickle.loads(pickle.dumps(array)).flags.f_contiguous


@pytest.mark.parametrize(
    "array",
    [
        np.array([{"a": 1}, None] * 5000), np.array(["ab", "c"] * 9000), np.zeros(9000, [("a", int), ("b", float)]),
        np.zeros(LARGE, ">f4"), np.zeros(LARGE, "M8[s]"), np.zeros(LARGE, "S3"), np.zeros(LARGE, np.longdouble),
        np.ma.masked_array(np.zeros(LARGE), False), np.zeros((0, 3)), np.array(5), np.zeros((256, 256)).view(np.matrix),
    ],
    ids=["object", "str", "structured", "big-endian", "datetime", "bytes", "longdouble", "masked", "empty", "0-d", "matrix"],
)  # fmt: skip
def test_what_no_tensor_has_is_pickled_as_before(array, way):
    wrap, unwrap = way
    got = unwrap(through_queue(wrap(array)))
    assert type(got) is type(array) and got.dtype == array.dtype and np.array_equal(got, array)
    assert got.flags.writeable


def test_what_was_opened_for_reading_arrives_so():
    array = onecopy.open(onecopy.share(onecopy.full(LARGE, 3)), access="read").numpy()
    got = through_queue(array)
    assert not got.flags.writeable and got[0] == 3


def test_arrays_cross_processes_and_outlive_the_putter(run_python):
    queue = onecopy.Queue()
    import onecopy.multiprocessing as mp

    with running(mp.get_context("spawn"), put_and_end, queue):
        got = queue.get(timeout=60)
    assert np.array_equal(got["image"], np.arange(LARGE)) and got["image"].flags.writeable


def put_and_end(queue) -> None:
    queue.put({"image": np.arange(LARGE)})


def test_pipes_and_queues_of_multiprocessing_do_so_too():
    import onecopy.multiprocessing as mp

    array = onecopy.zeros(4).numpy()
    here, there = onecopy.Pipe()
    here.send(array)
    assert there.recv().ctypes.data == array.ctypes.data
    queue = mp.get_context("spawn").Queue()
    queue.put([array])
    assert queue.get()[0].ctypes.data == array.ctypes.data


def test_no_array_is_copied_when_the_value_has_to_be_pickled():
    """The walk that finds out copies nothing: of a large array there is one copy, in the pickle's rows."""
    queue = onecopy.Queue()
    before = onecopy.stats()["live_bytes"]
    queue.put([np.zeros(LARGE), Other(1)])
    assert onecopy.stats()["live_bytes"] - before < 2 * LARGE * 8
    queue.get()


@pytest.mark.parametrize("length", [3, 100_000])
def test_arrays_that_were_read_only_arrive_writable_whatever_their_size(length):
    """A queue of multiprocessing does the same: the copy is the receiver's own."""
    from_bytes = np.frombuffer(bytes(8 * length), np.int64)
    frozen = np.ones((2, length))
    frozen.setflags(write=False)
    constant = np.broadcast_to(np.float64(3), (length,))
    queue = onecopy.Queue()
    for value in (from_bytes, [from_bytes, {"x": frozen}], (frozen[1:], constant)):
        assert not from_bytes.flags.writeable
        queue.put(value)
        for array, sent in zip(arrays_in(queue.get()), arrays_in(value)):
            assert array.flags.writeable
            np.testing.assert_array_equal(array, sent)


def arrays_in(value):
    """The arrays of a nested value."""
    if isinstance(value, np.ndarray):
        return [value]
    return [array for item in (value.values() if isinstance(value, dict) else value) for array in arrays_in(item)]
