# SPDX-License-Identifier: Apache-2.0
"""Messages of common mistakes say what to write instead."""

import uuid
import warnings

import pytest

import onecopy


@pytest.mark.parametrize(
    ("call", "meant"),
    [
        (lambda handle: onecopy.zeros(3, dtype="flaot32"), "float32"),
        (lambda handle: onecopy.open(handle, framework="pytorch"), "torch"),
        (lambda handle: onecopy.open(handle, access="read_write"), "readwrite"),
        (lambda handle: onecopy.set_strategy("file-system"), "file_system"),
    ],
)
def test_a_mistyped_word_is_answered_with_the_one_that_was_meant(call, meant):
    with pytest.raises(onecopy.InvalidArgument) as error:
        call(onecopy.share(onecopy.zeros(3)))
    assert str(error.value).endswith(f'; did you mean "{meant}"?')


def test_a_word_of_another_kind_is_answered_without_a_guess():
    with pytest.raises(onecopy.InvalidArgument, match=r"not 'quaternion'$"):
        onecopy.zeros(3, dtype="quaternion")


def calls_with_timeout():
    queue = onecopy.Queue()
    ours, theirs = onecopy.Pipe()
    address = f"unix:@onecopy-test-{uuid.uuid4()}"
    listener = onecopy.Listener(address, b"key")
    return {
        "put": lambda timeout: queue.put(1, timeout),
        "get": queue.get,
        "send": theirs.send,  # keeps the other end
        "recv": ours.recv,
        "poll": ours.poll,
        "accept": listener.accept,
        "connect": lambda timeout: onecopy.connect(address, b"key", timeout),
    }


@pytest.mark.parametrize("name", ["put", "get", "recv", "poll", "accept", "connect"])
def test_a_timeout_of_a_wrong_type_is_named(name):
    call = calls_with_timeout()[name]
    with pytest.raises(TypeError, match=r"^timeout must be a number of seconds or None, not str$"):
        call("1")
    with pytest.raises(TypeError, match=r"^timeout must be a number of seconds or None, not list$"):
        call([1])


def test_a_queue_of_multiprocessing_names_a_timeout_of_a_wrong_type_too():
    mp = pytest.importorskip("onecopy.multiprocessing")
    with pytest.raises(TypeError, match="timeout must be a number of seconds or None, not str"):
        mp.Queue().get(timeout="1")


def test_the_text_of_a_handle_may_come_as_bytes():
    """As a file or a pipe gives it."""
    tensor = onecopy.full(3, 7)
    handle = onecopy.share(tensor)
    for text in (str(handle).encode(), bytearray(str(handle).encode()), memoryview(str(handle).encode())):
        assert onecopy.open(text).tolist() == [7, 7, 7]
    with pytest.raises(onecopy.BadHandle):
        onecopy.open(b"onecopy:xyz")


@pytest.mark.parametrize(
    "calculate",
    [
        lambda w: w + 1,
        lambda w: 1 + w,
        lambda w: w * 2.5,
        lambda w: w @ w,
        lambda w: w - w,
        lambda w: w < 1,
        lambda w: w**2,
    ],
)
def test_an_operator_names_the_arrays_that_have_it(calculate):
    with pytest.raises(TypeError, match=r"a onecopy.Tensor has no operators; .numpy\(\) and .torch\(\) return arrays"):
        calculate(onecopy.zeros((2, 2)))


def test_operators_of_arrays_of_numpy_go_on():
    numpy = pytest.importorskip("numpy")
    tensor = onecopy.full(3, 2)
    assert (tensor + numpy.ones(3)).tolist() == [3, 3, 3]
    assert (numpy.ones(3) - tensor).tolist() == [-1, -1, -1]
    assert (tensor * numpy.float32(2)).tolist() == [4, 4, 4]


def test_a_sparse_tensor_is_refused_by_its_layout():
    torch = pytest.importorskip("torch")
    with pytest.raises(onecopy.Unsupported, match=r"layout torch.sparse_coo, .*its indices\(\) and values\(\)"):
        onecopy.share(torch.eye(3).to_sparse())
    with warnings.catch_warnings():  # torch warns of its first tensor with this layout in a process
        warnings.simplefilter("ignore", UserWarning)
        csr = torch.eye(3).to_sparse_csr()
    with pytest.raises(onecopy.Unsupported, match=r'x at "a" is .*torch.sparse_csr, .*its crow_indices\(\), '):
        onecopy.share({"a": csr})


def test_a_tensor_without_memory_is_refused_by_its_device():
    torch = pytest.importorskip("torch")
    with pytest.raises(onecopy.Unsupported, match="torch.float32 on the device meta"):
        onecopy.share(torch.ones(3, device="meta"))


def test_a_conjugated_tensor_is_refused_with_both_ways_out():
    torch = pytest.importorskip("torch")
    conjugated = torch.ones(3, dtype=torch.cfloat).conj()
    with pytest.raises(onecopy.Unsupported, match=r"resolve_conj\(\).resolve_neg\(\), or a bundle"):
        onecopy.share(conjugated)


def test_long_doubles_and_dates_are_refused_with_a_way_out():
    numpy = pytest.importorskip("numpy")
    long_doubles = numpy.ones(3, numpy.longdouble)
    with pytest.raises(onecopy.Unsupported, match=r'x.astype\("float64"\)'):
        onecopy.share(long_doubles)
    days = numpy.array(["2026-01-01", "2026-01-02"], "datetime64[D]")
    with pytest.raises(onecopy.Unsupported, match=r'x.view\("int64"\), and view them as "datetime64\[D\]" again'):
        onecopy.share(days)
    handle = onecopy.share(days.view("int64"))
    assert (onecopy.open(handle, framework="numpy").view("datetime64[D]") == days).all()


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # what an import of a package that is not there meets
import onecopy
try:
    import {package}
except onecopy.MissingPackage as error:
    print(error)
"""


@pytest.mark.parametrize(
    "package", ["onecopy.rpc", "onecopy.graphs", "onecopy.distributed.rpc", "onecopy.distributed.optim"]
)
def test_a_package_that_needs_torch_says_what_to_install(run_python, package):
    said = run_python(WITHOUT_TORCH.format(package=package))
    assert "which is not installed: pip install torch" in said and "onecopy.rpc, onecopy.graphs" in said


def test_ends_of_pipes_and_queues_of_multiprocessing_show_their_state():
    ours, theirs = onecopy.Pipe()
    theirs.send(1)
    theirs.send(2)
    assert repr(ours) == "<onecopy.PipeEnd 2 objects>"
    ours.close()
    assert repr(ours) == "<onecopy.PipeEnd, closed>"
    mp = pytest.importorskip("onecopy.multiprocessing")
    queue = mp.Queue(4)
    queue.put(1)
    assert repr(queue) == "<onecopy.multiprocessing.Queue 1 of 4 objects>"
    queue.close()
    assert repr(queue) == "<onecopy.multiprocessing.Queue 1 of 4 objects, closed here>"
    assert repr(mp.SimpleQueue()) == "<onecopy.multiprocessing.SimpleQueue 0 objects>"
