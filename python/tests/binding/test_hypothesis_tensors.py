# SPDX-License-Identifier: Apache-2.0
"""Any dtype, shape, stride and view: the same elements on every way in and out."""

import pickle
import struct
import subprocess
import sys
import threading
from multiprocessing.reduction import ForkingPickler

import pytest

import onecopy

np = pytest.importorskip("numpy")
hypothesis = pytest.importorskip("hypothesis")
import contextlib

from hypothesis import strategies as st

hypothesis.settings.register_profile("onecopy", deadline=None, max_examples=150, derandomize=True)
hypothesis.settings.load_profile("onecopy")

DTYPES = {
    "bool": "?", "uint8": "u1", "int8": "i1", "uint16": "u2", "int16": "i2", "uint32": "u4", "int32": "i4",
    "uint64": "u8", "int64": "i8", "float16": "f2", "float32": "f4", "float64": "f8", "complex64": "c8",
    "complex128": "c16",
}  # fmt: skip
BITS = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8", "float8_e8m0fnu": "uint8"}

shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)


@st.composite
def arrays(draw, names=tuple(DTYPES)):
    """A dtype's name, and an array with random bits."""
    name, shape = draw(st.sampled_from(names)), draw(shapes)
    dtype = np.dtype({**DTYPES, **BITS}[name])
    count = int(np.prod(shape, dtype=int))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    if name == "bool":
        return name, rng.integers(0, 2, shape).astype(bool)
    return name, np.frombuffer(rng.bytes(count * dtype.itemsize), dtype).reshape(shape).copy()


@st.composite
def keys(draw, shape):
    """The dtypes of both numpy and onecopy."""
    key = []
    for size in shape:
        kind = draw(st.sampled_from(["int", "slice", "all", "new"]))
        if kind == "new":
            key.append(None)
        if kind == "int" and size > 0:
            key.append(draw(st.integers(-size, size - 1)))
        elif kind == "slice":
            bound = st.none() | st.integers(-size - 1, size + 1)
            key.append(slice(draw(bound), draw(bound), draw(st.none() | st.integers(1, 3))))
        else:
            key.append(slice(None))
    if draw(st.booleans()):
        cut = draw(st.integers(0, len(key)))
        return (*key[:cut], ..., *(key[cut:] if draw(st.booleans()) else []))
    return (*key, ...)  # without it, numpy gives a number instead of an array of no dimensions


@st.composite
def views(draw):
    """An array of numpy with any strides: parts, transposed, reversed, broadcast."""
    name, array = draw(arrays())
    view = array[draw(keys(array.shape))]
    if draw(st.booleans()):
        view = view.T
    if view.ndim and draw(st.booleans()):
        view = view[:: draw(st.sampled_from([-1, -2, 2]))]
    if draw(st.booleans()):
        view = np.broadcast_to(view, (2, *view.shape))
    return name, view


def tensor_of(array) -> onecopy.Tensor:
    t = onecopy.empty(array.shape, array.dtype)
    t.copy_from(array)
    return t


def same(tensor, array) -> bool:
    return tensor.shape == array.shape and tensor.numpy().tobytes() == array.tobytes()


@hypothesis.given(views())
def test_any_array_of_numpy_is_shared_with_its_elements(named):
    name, view = named
    opened = onecopy.open(onecopy.share(view))
    assert opened.dtype == name and same(opened, view)
    assert onecopy.open(onecopy.share({"a": [view]})).tree()["a"][0].numpy().tobytes() == view.tobytes()


@hypothesis.given(st.data())
def test_parts_are_those_of_numpy(data):
    _, array = data.draw(arrays())
    t = tensor_of(array)
    key = data.draw(keys(array.shape))
    part, expected = t[key], array[key]
    assert same(part, expected)
    if expected.size:
        offset = expected.__array_interface__["data"][0] - array.__array_interface__["data"][0]
        assert part.data_ptr - t.data_ptr == offset
        walked = [i for i, size in enumerate(expected.shape) if size > 1]
        assert [part.strides[i] * t.itemsize for i in walked] == [expected.strides[i] for i in walked]
    assert repr(part.tolist()) == repr(expected.tolist())


@hypothesis.given(st.data())
def test_every_way_in_and_out_keeps_the_elements_and_the_memory(data):
    name, array = data.draw(arrays())
    key = data.draw(keys(array.shape))
    part, expected = tensor_of(array)[key], array[key]
    ways = [
        onecopy.from_dlpack(np.from_dlpack(part)),
        onecopy.from_dlpack(part),
        onecopy.open(onecopy.share(part)),
        onecopy.open(onecopy.share(part.numpy())),
        onecopy.open(onecopy.share(part.memoryview())),
        pickle.loads(ForkingPickler.dumps(part)),
        onecopy.open(onecopy.share([part]))[0],
        onecopy.open(onecopy.share((part, 1)), access="read").tree()[0],
    ]
    for way in ways:
        assert way.dtype == name and same(way, expected)
        if expected.size:
            assert way.data_ptr == part.data_ptr
    assert part.memoryview().tobytes() == expected.tobytes() == bytes(part)
    saved = pickle.loads(pickle.dumps(part))
    assert saved.dtype == name and same(saved, expected)


@hypothesis.given(st.data())
def test_writing_into_parts_is_writing_as_numpy_does(data):
    _, array = data.draw(arrays())
    t = tensor_of(array)
    key = data.draw(keys(array.shape))
    values = np.roll(array[key], 1)
    t[key] = values
    array[key] = values
    assert same(t, array)
    if array.dtype.kind in "iu":
        t[key] = 7
        array[key] = 7
    assert same(t, array)


@hypothesis.given(arrays(tuple(BITS)))
def test_types_that_numpy_lacks_keep_their_bits(named):
    name, bits = named
    t = tensor_of(bits).view(name)
    for way in (onecopy.open(onecopy.share(t)), pickle.loads(pickle.dumps(t)), onecopy.from_dlpack(t), t.copy()):
        assert way.dtype == name and same(way.view(bits.dtype), bits)


@hypothesis.given(arrays(tuple(DTYPES)), st.sampled_from(tuple(DTYPES) + tuple(BITS)))
def test_view_reinterprets_as_numpy_does(named, dtype):
    _, array = named
    t = tensor_of(array)
    try:
        expected = array.view({**DTYPES, **BITS}[dtype])
    except ValueError:
        with pytest.raises(onecopy.InvalidArgument):
            t.view(dtype)
    else:
        bits = t.view(dtype).view(BITS[dtype]) if dtype in BITS else t.view(dtype)
        assert same(bits, expected)


@pytest.fixture(scope="module")
def other_process():
    """Opens handles and answers with dtype, shape and bytes."""
    code = """
import sys, onecopy
for line in sys.stdin:
    t = onecopy.open(line.strip())
    print(t.dtype, t.shape, t.copy().reshape(-1).view("uint8").memoryview().hex(), sep=";", flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield process
    process.communicate()
    assert process.returncode == 0


@hypothesis.given(views())
def test_another_process_sees_the_same(other_process, named):
    name, view = named
    handle = onecopy.share(view)
    other_process.stdin.write(f"{handle}\n")
    other_process.stdin.flush()
    assert other_process.stdout.readline() == f"{name};{view.shape};{view.tobytes().hex()}\n"


# ---- torch


TORCH_DTYPES = [
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex64",
    "complex128", "float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64",
]  # fmt: skip


@st.composite
def torch_views(draw, torch):
    """A torch tensor with any strides and offset, and the tensor it is a view of."""
    shape = draw(shapes)
    dtype = getattr(torch, draw(st.sampled_from(TORCH_DTYPES)))
    count = int(np.prod(shape, dtype=int))
    base = torch.arange(count * dtype.itemsize, dtype=torch.uint8) % 2
    base = base.view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)
    view = base
    if view.dim() and draw(st.booleans()):
        view = view.permute(draw(st.permutations(range(view.dim()))))
    view = view[tuple(k for k in draw(keys(view.shape)))]
    if draw(st.booleans()):
        view = view.expand(2, *view.shape)
    return base, view


@hypothesis.given(st.data())
def test_any_view_of_torch_keeps_its_storage(data):
    torch = pytest.importorskip("torch")
    base, view = data.draw(torch_views(torch))
    expected = view.clone()
    opened = onecopy.open(onecopy.share(view), framework="torch")
    bundled = onecopy.open(onecopy.share({"v": view, "b": base}), framework="torch").tree()["v"]
    for other in (opened, bundled):
        assert other.dtype == view.dtype and other.shape == view.shape
        assert other.numel() == 0 or other.stride() == view.stride()
        assert bytes_of(torch, other) == bytes_of(torch, expected)
        if view.numel():
            assert other.data_ptr() == view.data_ptr()
            assert other.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()
    copied = onecopy.open(onecopy.share(view, copy=True), framework="torch")
    assert bytes_of(torch, copied) == bytes_of(torch, expected)
    assert copied.numel() == 0 or copied.data_ptr() != view.data_ptr()


def bytes_of(torch, tensor) -> bytes:
    dense = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)  # contiguous() keeps strides of one element
    return bytes(dense.flatten().view(torch.uint8).tolist()) if tensor.numel() else b""


# ---- torch, by every strategy, start method and way to send


WAYS = ["Queue", "SimpleQueue", "Pipe", "Pool"]


def describe(tensor):
    """A receiver's view of a tensor, without its memory. No elements lie nowhere: their offset may be 0."""
    offset = tensor.storage_offset() if tensor.numel() else 0
    return (str(tensor.dtype), tuple(tensor.shape), tensor.stride(), offset, tensor.untyped_storage().nbytes(),
            tensor.requires_grad, bytes_of(sys.modules["torch"], tensor.detach()))  # fmt: skip


def see_and_invert(pair):
    """Describes both, inverts the storage of the first; says whether the second sees that."""
    torch = sys.modules["torch"]
    base, view = pair
    seen = [describe(base), describe(view)]
    raw = torch.empty(0, dtype=torch.uint8).set_(base.untyped_storage())
    raw.bitwise_xor_(1)
    seen.append(describe(view))
    return seen, base, view


def answer(receive, send):
    """Does so for all that comes, until None comes."""
    while (pair := receive()) is not None:
        send(see_and_invert(pair))
        del pair


def serve(ends):
    """A thread for each way, in the one worker of a pool."""
    for receiving, sending in ends:
        methods = getattr(receiving, "get", None) or receiving.recv, getattr(sending, "put", None) or sending.send
        threading.Thread(target=answer, args=methods, daemon=True).start()


class Correspondent:
    """A process that can be reached by each of WAYS."""

    def __init__(self, mp, method):
        context = mp.get_context(method)
        self._queues = [getattr(context, name)() for name in ("Queue", "Queue", "SimpleQueue", "SimpleQueue")]
        there, back, simply_there, simply_back = self._queues
        self._ours, theirs = context.Pipe()
        ends = [(there, back), (simply_there, simply_back), (theirs, theirs)]
        self._pool = context.Pool(1, serve, (ends,))
        self._send = {"Queue": there.put, "SimpleQueue": simply_there.put, "Pipe": self._ours.send}
        self._receive = {"Queue": back.get, "SimpleQueue": simply_back.get, "Pipe": self._ours.recv}

    def ask(self, way, pair):
        """The result of see_and_invert() over there."""
        if way == "Pool":
            return self._pool.apply(see_and_invert, (pair,))
        self._send[way](pair)
        return self._receive[way]()

    def end(self):
        for send in self._send.values():
            send(None)
        self._pool.close()
        self._pool.join()
        for end in (*self._queues, self._ours):
            end.close()


@pytest.fixture(scope="module", params=["fork", "spawn", "forkserver"])
def correspondent(request):
    pytest.importorskip("torch")
    import onecopy.multiprocessing as mp

    made = Correspondent(mp, request.param)
    yield made
    made.end()


@pytest.mark.parametrize("way", WAYS)
@hypothesis.settings(max_examples=15)
@hypothesis.given(data=st.data(), sharing=st.sampled_from(["file_descriptor", "file_system"]))
def test_any_view_keeps_its_values_strides_and_aliases_on_every_way(correspondent, way, data, sharing):
    torch = sys.modules["torch"]
    import onecopy.multiprocessing as mp

    base, view = data.draw(torch_views(torch))
    if base.dtype.is_floating_point and base.dtype.itemsize > 1 and data.draw(st.booleans()):
        base, view = base.requires_grad_(), view.detach()
    before, bits = [describe(base), describe(view)], bytes_of(torch, view)
    strategy = mp.get_sharing_strategy()
    mp.set_sharing_strategy(sharing)
    try:
        (*seen, after), base_back, view_back = correspondent.ask(way, (base, view))
    finally:
        mp.set_sharing_strategy(strategy)
    assert seen == before
    assert after[-1] == bytes_of(torch, view) == bytes(bit ^ 1 for bit in bits), "the other side wrote elsewhere"
    assert describe(view_back) == after
    if base.untyped_storage().nbytes():
        one = base.untyped_storage()._cdata
        assert {t.untyped_storage()._cdata for t in (view, base_back, view_back)} == {one}


# ---- input from outside may be anything


@hypothesis.given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_opened(data):
    with contextlib.suppress(onecopy.Error):
        onecopy.open(data)


CRC_TABLE = []
for byte in range(256):
    code = byte
    for _ in range(8):
        code = (code >> 1) ^ (0x82F63B78 if code & 1 else 0)
    CRC_TABLE.append(code)


def crc32c(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ CRC_TABLE[(crc ^ byte) & 255]
    return struct.pack("<I", crc ^ 0xFFFFFFFF)


def table_of(handle) -> onecopy.Tensor:
    """The memory of a bundle's table: the same handle without the flag that says bundle."""
    data = bytearray(handle.to_bytes())
    data[92] &= 0xFE
    data[12:16] = bytes(4)
    data[12:16] = crc32c(data)
    return onecopy.open(data)


def seal(table) -> None:
    """Checksums that fit, as a malicious maker would write them."""
    view = table.memoryview()
    view[12:16] = crc32c(view[64:])
    view[8:12] = bytes(4)
    view[8:12] = crc32c(view[:64])


def read_everything(handle) -> None:
    bundle = onecopy.open(handle)
    for read in (bundle.tree, bundle.keys, bundle.values, lambda: repr(bundle), lambda: bundle["b.0"]):
        with contextlib.suppress(onecopy.Error, UnicodeDecodeError, KeyError):
            read()


VALUE = {"a": onecopy.zeros(3), "b": [onecopy.zeros(1), "text", 5], "again": [NAMED := onecopy.zeros((2, 2)), NAMED]}


@hypothesis.given(st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), min_size=1, max_size=4), st.booleans())
def test_a_bundle_that_its_maker_scribbles_on_never_crashes_its_reader(changes, sealed):
    handle = onecopy.share(VALUE)
    table = table_of(handle)
    assert bytes(table.memoryview()[:5]) == b"1CBND"
    for at, byte in changes:
        table[64 + at % (table.size - 64)] = byte
    if sealed:
        seal(table)
    with contextlib.suppress(onecopy.BadHandle):
        read_everything(handle)


@hypothesis.given(st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), min_size=1, max_size=4))
def test_a_bundle_that_changes_while_it_is_open_never_crashes_its_reader(changes):
    handle = onecopy.share(VALUE)
    bundle = onecopy.open(handle)
    table = table_of(handle)
    for at, byte in changes:
        table[at % table.size] = byte
    for read in (bundle.keys, bundle.values, lambda: bundle["again.1"], bundle.tree):
        with contextlib.suppress(onecopy.Error, UnicodeDecodeError, KeyError):
            read()
