# SPDX-License-Identifier: Apache-2.0
"""Tensors on CUDA devices: on the simulated driver, or on a GPU (tests/gpu/python.sh)."""

from __future__ import annotations

import gc
import os
import struct
import sys
import time

import pytest
from devices import Driver, ForeignArray, borrower, driver, end_peers, is_simulated, on_device

import onecopy


@pytest.fixture(autouse=True, scope="module")
def processes():
    yield
    end_peers()


def eventually(condition, seconds: float = 10.0) -> bool:
    """Whether it holds at last: leases end by the tick of a thread. Python code runs meanwhile."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def ints(data: bytes) -> list[int]:
    return list(struct.unpack(f"{len(data) // 4}i", data))


# --- what the other process does --------------------------------------------------------------------

kept: dict[str, object] = {}


def open_and_list(handle: bytes, **keywords):
    return onecopy.open(handle, **keywords).tolist()


def open_and_set(handle: bytes, index: int, value) -> str:
    tensor = onecopy.open(handle)
    tensor[index] = value
    return tensor.device


def open_and_keep(handle: bytes) -> None:
    kept["tensor"] = onecopy.open(handle)


def drop_kept() -> None:
    kept.clear()
    gc.collect()


def open_bundle(handle: bytes):
    bundle = onecopy.open(handle)
    return {name: bundle[name].tolist() for name in bundle}


def add_one(tensor: onecopy.Tensor) -> list:
    values = [value + 1 for value in tensor.tolist()]
    tensor[:] = onecopy_row(values)
    return values


def onecopy_row(values: list) -> onecopy.Tensor:
    row = onecopy.empty(len(values), "int32")
    for index, value in enumerate(values):
        row[index] = value
    return row


# --- tensors ----------------------------------------------------------------------------------------


@on_device
def test_tensors_are_made_on_the_device():
    assert onecopy.empty((2, 3), "int16", "cuda:0").device == "cuda:0"
    assert onecopy.zeros((2, 3), "int16", device="cuda:0").tolist() == [[0, 0, 0]] * 2
    assert onecopy.full((2, 2), 1.5, device="cuda:0").tolist() == [[1.5, 1.5]] * 2
    assert onecopy.full((), 7, "uint8", "cuda:0").item() == 7
    assert onecopy.zeros(0, device="cuda:0").tolist() == []


@on_device
def test_a_large_tensor_is_filled_to_its_last_element():
    tensor = onecopy.full(3_000_001, 42, "int32", device="cuda:0")
    assert tensor[-2:].tolist() == [42, 42]
    host = tensor.cpu()
    assert bytes(memoryview(host).cast("B")) == struct.pack("i", 42) * 3_000_001


@on_device
def test_elements_are_read_and_written_as_on_the_cpu():
    tensor = onecopy.zeros((3, 4), "int32", "cuda:0")
    tensor[1] = 5
    tensor[2, 1] = 9
    tensor[:, 3] = 7  # strided
    tensor[0, :2] = onecopy_row([1, 2])
    assert tensor.tolist() == [[1, 2, 0, 7], [5, 5, 5, 7], [0, 9, 0, 7]]
    assert tensor[2, 1].item() == 9
    assert int(tensor[0, 0]) == 1
    assert tensor[:, 0].tolist() == [1, 5, 0]
    assert tensor.reshape(2, 6).tolist() == [[1, 2, 0, 7, 5, 5], [5, 7, 0, 9, 0, 7]]
    assert "on cuda:0" in repr(tensor)


@on_device
def test_copies_go_between_the_cpu_and_the_device():
    tensor = onecopy.full((2, 2), 3, "int64", "cuda:0")
    host = tensor.cpu()
    assert (host.device, host.tolist()) == ("cpu", [[3, 3]] * 2)
    assert host.cpu().data_ptr == host.data_ptr, "what is there is not copied"
    assert tensor.to("cuda:0").data_ptr == tensor.data_ptr
    host[0, 0] = 8
    there = host.to("cuda:0")
    assert (there.device, there.tolist()) == ("cuda:0", [[8, 3], [3, 3]])
    again = tensor.copy()
    again.copy_from(host)
    assert again.device == "cuda:0"
    assert again.tolist() == [[8, 3], [3, 3]]
    assert tensor.tolist() == [[3, 3]] * 2, "copies have memory of their own"
    host.copy_from(tensor)
    assert host.tolist() == [[3, 3]] * 2


@on_device(devices=2)
def test_copies_go_from_one_device_to_the_other():
    tensor = onecopy.full(1000, 3, "int64", "cuda:0")
    there = tensor.to("cuda:1")
    assert (there.device, there.tolist()) == ("cuda:1", [3] * 1000)


@on_device
def test_what_only_memory_of_the_cpu_can_do_is_refused_with_the_way_out():
    tensor = onecopy.zeros(3, device="cuda:0")
    for refused in (tensor.numpy, tensor.__array__, lambda: onecopy.open(onecopy.share(tensor), framework="numpy")):
        with pytest.raises(onecopy.Unsupported, match=r"cuda:0.*\.cpu\(\)"):
            refused()
    with pytest.raises(BufferError, match="cuda:0"):
        memoryview(tensor)
    with pytest.raises(onecopy.Unsupported, match="cuda:0"):
        onecopy.open(onecopy.share(tensor), "cpu")


@on_device
def test_torch_without_cuda_says_so():
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        return
    tensor = onecopy.zeros(3, device="cuda:0")
    for refused in (tensor.torch, lambda: onecopy.open(onecopy.share(tensor), framework="torch")):
        with pytest.raises(onecopy.Unsupported, match=r"torch.*cuda:0.*\.cpu\(\)"):
            refused()
    with pytest.raises(onecopy.Unsupported, match="torch cannot use CUDA"):
        with onecopy.torch.memory("cuda:0"):
            pass


@on_device
def test_a_device_that_is_not_there_is_named():
    with pytest.raises(onecopy.InvalidArgument, match=r"cuda:99.*CUDA_VISIBLE_DEVICES"):
        onecopy.empty(1, device="cuda:99")
    with pytest.raises(onecopy.InvalidArgument, match=r"cuda:99"):
        onecopy.empty(1).to("cuda:99")


@on_device
def test_stats_count_memory_of_devices():
    onecopy.collect()
    before = onecopy.stats()
    tensor = onecopy.empty(64 << 20, "uint8", "cuda:0")
    after = onecopy.stats()
    assert after["device_segments"] == before["device_segments"] + 1
    assert after["device_bytes"] - before["device_bytes"] == 64 << 20
    del tensor
    onecopy.collect()
    assert onecopy.stats()["device_bytes"] == before["device_bytes"]


@on_device
def test_out_of_memory_is_an_error_with_numbers():
    with pytest.raises(onecopy.OutOfMemory, match=r"cuda:0.*free"):
        onecopy.empty(1 << 40, "uint8", "cuda:0")
    assert onecopy.full(3, 1, "int8", "cuda:0").tolist() == [1, 1, 1]


# --- DLPack and its kin -----------------------------------------------------------------------------


@on_device
def test_dlpack_says_which_device_and_comes_back_as_the_same_memory():
    tensor = onecopy.full((2, 3), 4, "int32", "cuda:0")
    assert tensor.__dlpack_device__() == (2, 0)
    assert onecopy.empty(1).__dlpack_device__() == (1, 0)
    back = onecopy.from_dlpack(tensor)
    assert (back.device, back.data_ptr, back.is_shared) == ("cuda:0", tensor.data_ptr, True)
    copied = onecopy.from_dlpack(tensor, copy=True)
    assert copied.data_ptr != tensor.data_ptr
    assert copied.tolist() == tensor.tolist()
    on_cpu = onecopy.from_dlpack(tensor, device="cpu")
    assert (on_cpu.device, on_cpu.tolist()) == ("cpu", [[4] * 3] * 2)
    with pytest.raises(onecopy.InvalidArgument, match="copy=False"):
        onecopy.from_dlpack(tensor, device="cpu", copy=False)
    with pytest.raises(BufferError, match="dl_device"):
        tensor.__dlpack__(dl_device=(4, 0))
    assert "dltensor" in repr(tensor.__dlpack__(dl_device=(1, 0), max_version=(1, 0)))


@on_device
def test_a_consumers_stream_waits_for_what_was_done_before():
    cuda = Driver()
    tensor = onecopy.zeros(1000, device="cuda:0")
    consumer = cuda.stream()
    tensor.__dlpack__(stream=consumer, max_version=(1, 0))  # what is made once may wait
    cuda.wait(consumer)
    gate = cuda.hold(0)  # the default stream, which is ours as long as torch is not there
    try:
        capsule = tensor.__dlpack__(stream=consumer, max_version=(1, 0))
        assert not gate.is_set(), "the host has waited"
        assert not cuda.is_idle(consumer)
    finally:
        gate.set()
    cuda.wait(consumer)
    del capsule


@on_device
def test_a_consumer_that_takes_care_of_the_order_waits_for_nothing():
    cuda = Driver()
    tensor = onecopy.zeros(1000, device="cuda:0")
    consumer = cuda.stream()
    gate = cuda.hold(0)
    try:
        tensor.__dlpack__(stream=-1)
        assert cuda.is_idle(consumer)
        for default in (None, 1):  # the one that all is in already
            tensor.__dlpack__(stream=default)
    finally:
        gate.set()
    cuda.wait(0)


@on_device
def test_streams_that_are_none_are_refused():
    tensor = onecopy.zeros(3, device="cuda:0")
    with pytest.raises(onecopy.InvalidArgument, match=r"stream.*\b0\b"):
        tensor.__dlpack__(stream=0)
    with pytest.raises(TypeError, match="stream"):
        tensor.__dlpack__(stream="first")
    with pytest.raises(onecopy.InvalidArgument, match="stream"):
        tensor.__dlpack__(stream=-7)
    with pytest.raises(onecopy.InvalidArgument, match="stream"):
        onecopy.empty(1).__dlpack__(stream=1)
    with pytest.raises(onecopy.InvalidArgument, match="cpu"):
        onecopy.record_stream(onecopy.empty(1), 1)
    with pytest.raises(TypeError, match="tensor"):
        onecopy.record_stream(3, 1)


@on_device
def test_numba_and_cupy_find_what_they_ask_for():
    tensor = onecopy.zeros((4, 6), "float16", "cuda:0")[:, 1:3]
    found = tensor.__cuda_array_interface__
    assert found["shape"] == (4, 2)
    assert found["strides"] == (12, 2)
    assert found["typestr"] == "<f2"
    assert found["data"] == (tensor.data_ptr, False)
    assert (found["version"], found["stream"]) == (3, 1)
    names = {"bool": "|b1", "uint8": "|u1", "int64": "<i8", "uint64": "<u8", "float64": "<f8", "complex64": "<c8"}
    for dtype, expected in names.items():
        assert onecopy.empty(1, dtype, "cuda:0").__cuda_array_interface__["typestr"] == expected
    assert not hasattr(onecopy.empty(1), "__cuda_array_interface__")
    assert not hasattr(onecopy.empty(1, "bfloat16", "cuda:0"), "__cuda_array_interface__")


# --- memory of other libraries ----------------------------------------------------------------------


@on_device
def test_a_foreign_array_is_shared_where_it_is():
    cuda = Driver()
    array = ForeignArray(cuda, 1000)
    cuda.write(array.at, struct.pack("1000i", *range(1000)))
    handle = onecopy.share(array)
    assert array.streams == [1], "our stream is ordered after the producer's"
    assert borrower(open_and_list, handle.to_bytes()) == list(range(1000))
    borrower(open_and_set, handle.to_bytes(), 7, -7)
    assert ints(cuda.read(array.at, 40))[7] == -7, "it is not the same memory"


@on_device
def test_a_foreign_array_is_kept_until_the_last_lease_ends():
    cuda = Driver()
    array = ForeignArray(cuda, 1000)
    handle = onecopy.share(array)
    borrower(open_and_keep, handle.to_bytes())
    del handle
    onecopy.collect()
    time.sleep(0.2)
    assert array.given_back == 0, "a borrower has it"
    borrower(drop_kept)
    assert eventually(lambda: array.given_back == 1)


@on_device
def test_a_foreign_array_can_be_copied_instead():
    cuda = Driver()
    array = ForeignArray(cuda, 4)
    cuda.write(array.at, struct.pack("4i", 1, 2, 3, 4))
    handle = onecopy.share(array, copy=True)
    cuda.write(array.at, struct.pack("4i", 0, 0, 0, 0))
    assert borrower(open_and_list, handle.to_bytes()) == [1, 2, 3, 4]
    assert array.given_back == 1


@on_device
def test_a_foreign_array_that_is_no_memory_of_the_device_is_refused():
    cuda = Driver()
    array = ForeignArray(cuda, 4)
    host = onecopy.empty(4, "int32")
    array.at = host.data_ptr
    with pytest.raises(onecopy.Error):
        onecopy.share(array)


@on_device
def test_what_torchs_allocator_is_given_is_shared_like_any_other_memory():
    """The two functions of the extension module that torch calls, without torch."""
    import ctypes

    from onecopy import _core

    cuda = Driver()
    library = ctypes.CDLL(_core.__file__)
    allocate, free = library.onecopy_cuda_allocate, library.onecopy_cuda_free
    allocate.restype, allocate.argtypes = ctypes.c_void_p, [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    free.restype = None
    free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    before = onecopy.stats()["live_blocks"]
    begin = allocate(2 << 20, 0, None)
    assert begin % 512 == 0, "torch counts on 512 bytes"
    array = ForeignArray(cuda, 16)
    array.at = begin + 4096
    cuda.write(array.at, struct.pack("16i", *range(16)))
    handle = onecopy.share(array)
    assert borrower(open_and_list, handle.to_bytes()) == list(range(16))
    del handle
    stream = cuda.stream()
    gate = cuda.hold(stream)
    free(begin, 2 << 20, 0, stream)
    onecopy.collect()
    in_use = onecopy.stats()["live_blocks"]
    gate.set()
    assert in_use > before, "what is in the stream may still write it"
    assert eventually(lambda: onecopy.stats()["live_blocks"] <= before)
    assert allocate(1 << 50, 0, None) is None, "torch is told by a null pointer"


@on_device
def test_a_block_is_kept_as_long_as_the_tensor_object_that_named_it():
    """For torch's tensors on devices; one of the cpu is an object like any other."""
    torch = pytest.importorskip("torch")
    from onecopy._alive import keep_with

    onecopy.collect()
    before = onecopy.stats()["live_blocks"]
    named = torch.zeros(3)
    for _ in range(3):
        keep_with(named, onecopy.zeros(3, device="cuda:0"))
    assert onecopy.stats()["live_blocks"] == before + 1, "one for each tensor, however often it is shared"
    del named
    assert eventually(lambda: onecopy.stats()["live_blocks"] == before)


# --- between processes ------------------------------------------------------------------------------


@on_device
def test_another_process_sees_the_same_memory():
    tensor = onecopy.full((2, 2), 1, "int32", "cuda:0")
    handle = onecopy.share(tensor)
    assert borrower(open_and_list, handle.to_bytes()) == [[1, 1], [1, 1]]
    assert borrower(open_and_set, handle.to_bytes(), 1, 6) == "cuda:0"
    assert tensor.tolist() == [[1, 1], [6, 6]]


@on_device
def test_a_view_is_shared_as_a_view():
    tensor = onecopy.zeros((4, 4), "int32", "cuda:0")
    tensor[1:3, 2] = 5
    assert borrower(open_and_list, onecopy.share(tensor[1:, ::2]).to_bytes()) == [[0, 5], [0, 5], [0, 0]]


@on_device
def test_reading_only_is_enforced():
    tensor = onecopy.full(3, 1, "int32", "cuda:0")
    assert borrower(open_read_only_and_write, onecopy.share(tensor).to_bytes()) == "ReadOnly"
    assert tensor.tolist() == [1, 1, 1]


def open_read_only_and_write(handle: bytes) -> str:
    tensor = onecopy.open(handle, access="read")
    assert tensor.tolist() == [1, 1, 1]
    try:
        tensor[0] = 2
    except onecopy.Error as error:
        return type(error).__name__
    return "written"


@on_device
def test_a_nested_value_is_one_bundle():
    halves = onecopy.full(2, 2.5, device="cuda:0")
    handle = onecopy.share({"a": onecopy.full(3, 1, "int32", "cuda:0"), "b": [halves, onecopy_row([7])]})
    opened = borrower(open_bundle, handle.to_bytes())
    assert opened == {"a": [1, 1, 1], "b.0": [2.5, 2.5], "b.1": [7]}


@on_device
def test_tensors_cross_queues_and_pipes_by_handle():
    there, back = onecopy.Queue(), onecopy.Queue()
    tensor = onecopy.full(4, 10, "int32", "cuda:0")
    there.put({"x": tensor, "n": 3})
    borrower(pass_on, there, back)
    answer = back.get(timeout=60)
    assert answer["n"] == 3
    assert answer["x"].data_ptr == tensor.data_ptr, "what comes home is the same memory"
    assert tensor.tolist() == [10, 10, 10, 11]
    near, far = onecopy.Pipe()
    near.send(tensor)
    assert far.recv(timeout=60).data_ptr == tensor.data_ptr


def pass_on(there: onecopy.Queue, back: onecopy.Queue) -> None:
    message = there.get(timeout=60)
    message["x"][3] = 11
    back.put(message)


@on_device
def test_what_comes_through_a_queue_is_seen_after_what_the_putters_stream_did():
    cuda = Driver()
    queue = onecopy.Queue()
    tensor = onecopy.zeros(4, "int32", "cuda:0")
    queue.put(tensor)
    borrower(get_and_keep, queue)  # what has to be made once
    gate = cuda.hold(0)
    try:
        cuda.write_later(tensor.data_ptr, struct.pack("4i", 1, 2, 3, 4), 0)
        queue.put({"x": tensor})
        is_idle = borrower(get_and_keep, queue)
    finally:
        gate.set()
    assert not is_idle, "the getter's stream waits for nothing"
    assert borrower(list_kept) == [1, 2, 3, 4]
    borrower(drop_kept)


def get_and_keep(queue: onecopy.Queue) -> bool:
    message = queue.get(timeout=60)
    kept["tensor"] = message["x"] if isinstance(message, dict) else message
    return Driver().is_idle(0)


@on_device(devices=2)
def test_another_device_uses_the_memory_where_it_is():
    tensor = onecopy.full((2, 2), 1, "int32", "cuda:0")
    handle = onecopy.share(tensor)
    assert borrower(open_on_and_set, handle.to_bytes(), "cuda:1") == ("cuda:1", [[1, 1], [1, 1]])
    assert tensor.tolist() == [[8, 8], [8, 8]]
    assert borrower(open_on_and_set, handle.to_bytes(), "cuda:0") == ("cuda:0", [[8, 8], [8, 8]])
    with pytest.raises(onecopy.InvalidArgument, match="cuda:99"):
        onecopy.open(handle, "cuda:99")
    bundle = onecopy.share({"a": tensor, "n": 3})
    assert borrower(bundle_devices, bundle.to_bytes(), "cuda:1") == {"a": "cuda:1"}


def open_on_and_set(handle: bytes, device: str):
    tensor = onecopy.open(handle, device)
    before = tensor.tolist()
    tensor[...] = 8
    return tensor.device, before


def bundle_devices(handle: bytes, device: str) -> dict:
    bundle = onecopy.open(handle, device)
    return {name: bundle[name].device for name in bundle}


@on_device
def test_more_than_the_tensor_is_not_shown_when_that_was_asked_for():
    tensor = onecopy.full(10_000, 1, "int32", "cuda:0")
    assert borrower(open_and_list, onecopy.share(tensor, exact=True).to_bytes())[:2] == [1, 1]
    part = tensor[:10]
    with pytest.raises(onecopy.Unsupported, match="40000"):
        onecopy.share(part, exact=True)
    handle = onecopy.share(part, exact="copy")
    assert handle.storage_nbytes == 40
    assert borrower(open_and_list, handle.to_bytes()) == [1] * 10
    with pytest.raises(TypeError, match="exact"):
        onecopy.share(tensor, exact="please")
    with pytest.raises(onecopy.InvalidArgument, match="exact"):
        onecopy.share([tensor], exact=True)


@on_device
def test_pickled_tensors_cross_pipes_of_the_standard_library():
    tensor = onecopy.zeros(3, "int32", "cuda:0")
    assert borrower(add_one, tensor) == [1, 1, 1]
    assert tensor.tolist() == [1, 1, 1]


@on_device
def test_memory_outlives_its_last_owner_in_a_borrower():
    handle = onecopy.share(onecopy.full(3, 4, "int32", "cuda:0"))
    borrower(open_and_keep, handle.to_bytes())
    del handle
    gc.collect()
    assert borrower(list_kept) == [4, 4, 4]
    borrower(drop_kept)


def list_kept():
    return kept["tensor"].tolist()


@on_device
def test_a_stale_handle_is_never_wrong_data():
    data = onecopy.share(onecopy.zeros(3, device="cuda:0")).to_bytes()
    with pytest.raises(onecopy.StaleHandle):
        borrower(open_and_list, data)


@on_device
def test_a_lease_ends_when_the_borrowers_stream_has_come_so_far():
    tensor = onecopy.zeros(1000, "int32", "cuda:0")
    data = onecopy.share(tensor).to_bytes()
    borrower(open_hold_and_drop, data)
    del tensor
    onecopy.collect()
    assert onecopy.stats()["limbo"] >= 1, "the borrower's stream may still use it"
    borrower(let_go)
    assert eventually(lambda: onecopy.collect() or onecopy.stats()["limbo"] == 0)


def open_hold_and_drop(handle: bytes) -> None:
    cuda = kept["cuda"] = Driver()
    side = cuda.stream()
    tensor = onecopy.open(handle)
    onecopy.record_stream(tensor, side)
    kept["gate"] = cuda.hold(side)


def let_go() -> None:
    kept["gate"].set()
    kept.clear()


# --- faults -----------------------------------------------------------------------------------------


def test_without_a_driver_the_error_says_so(run_python):
    program = """
        import onecopy
        try:
            onecopy.empty(1, device="cuda:0")
        except onecopy.Unsupported as error:
            print(error)
        assert onecopy.full(1, 3, "int8").tolist() == [3], "the rest works"
        assert onecopy.stats()["device_bytes"] == 0
    """
    output = run_python(program, env={"ONECOPY_CUDA_DRIVER": "/nowhere/libcuda.so.1"})
    assert "no CUDA driver" in output


def needs_driver():
    if driver() is None or not is_simulated():
        pytest.skip("is about the simulated driver, which wants a compiler")
    return {"ONECOPY_CUDA_DRIVER": driver()}


def test_a_hidden_device_is_named_by_its_uuid(run_python):
    environment = needs_driver()
    program = """
        import os, subprocess, sys, onecopy
        if len(sys.argv) > 1:
            try:
                onecopy.open(sys.argv[1])
            except onecopy.Unsupported as error:
                print(error)
            sys.exit()
        tensor = onecopy.empty(3, device="cuda:0")
        os.environ["CUDA_VISIBLE_DEVICES"] = "1"
        subprocess.run([sys.executable, __file__, str(onecopy.share(tensor))], check=True)
    """
    output = run_python(program, env=environment)
    assert "UUID" in output
    assert "CUDA_VISIBLE_DEVICES" in output


def test_a_renumbered_device_is_found(run_python):
    environment = needs_driver()
    program = """
        import os, subprocess, sys, onecopy
        if len(sys.argv) > 1:
            tensor = onecopy.open(sys.argv[1])
            print(tensor.device, tensor.tolist())
            sys.exit()
        tensor = onecopy.full(2, 5, "int8", device="cuda:0")
        os.environ["CUDA_VISIBLE_DEVICES"] = "1,0"
        subprocess.run([sys.executable, __file__, str(onecopy.share(tensor))], check=True)
    """
    assert run_python(program, env=environment) == "cuda:1 [5, 5]\n"


def test_a_forked_child_is_told_to_use_spawn(run_python):
    environment = needs_driver()
    program = """
        import os, onecopy
        tensor = onecopy.zeros(3, device="cuda:0")
        pid = os.fork()
        if pid == 0:
            try:
                tensor.tolist()
            except onecopy.Unsupported as error:
                os._exit(0 if "spawn" in str(error) else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert tensor.tolist() == [0, 0, 0]
    """
    if sys.version_info >= (3, 12):
        environment["PYTHONWARNINGS"] = "ignore::DeprecationWarning"  # the simulator's streams are threads
    run_python(program, env=environment, stderr=None)


def test_objects_kept_for_borrowers_survive_the_end_of_the_interpreter(run_python):
    """The owner of shared memory ends while a borrower has it: its objects are not touched any more."""
    environment = needs_driver() | {"PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), *sys.path])}
    program = """
        import onecopy
        from devices import Driver, ForeignArray
        array = ForeignArray(Driver(), 4)
        handle = onecopy.share(array)
        print("shared")
    """
    assert run_python(program, env=environment, stderr=None) == "shared\n"
