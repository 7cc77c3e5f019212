# SPDX-License-Identifier: Apache-2.0
"""Features that only CUDA has, beside test_devices.py: on the simulated driver, or on a GPU (tests/gpu/python.sh)."""

from __future__ import annotations

import copy
import ctypes
import os
import struct
import sys
import time
import warnings

import pytest

import onecopy
import onecopy.multiprocessing
from support.devices import (
    CUDA,
    Driver,
    ForeignArray,
    borrower,
    drop_kept,
    eventually,
    kept,
    list_kept,
    needs_simulator,
    on_device,
    open_and_keep,
    open_and_list,
    open_and_set,
    settled,
)  # fmt: skip
from support.processes import TESTS

pytestmark = pytest.mark.usefixtures("device_processes")


def ints(data: bytes) -> list[int]:
    return list(struct.unpack(f"{len(data) // 4}i", data))


# --- what the other process does --------------------------------------------------------------------


def live_blocks() -> int:
    return onecopy.stats()["live_blocks"]


# --- torch ------------------------------------------------------------------------------------------


@on_device
def test_torch_without_cuda_says_so():
    torch = pytest.importorskip("torch")
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # a torch that has CUDA tries the simulated driver, which has not all that it wants
        if torch.cuda.is_available():
            return
    tensor = onecopy.zeros(3, device="cuda:0")
    for refused in (tensor.torch, lambda: onecopy.open(onecopy.share(tensor), framework="torch")):
        with pytest.raises(onecopy.Unsupported, match=r"torch.*cuda:0.*\.cpu\(\)"):
            refused()
    with pytest.raises(onecopy.Unsupported, match="torch cannot use CUDA"), onecopy.torch.memory("cuda:0"):
        pass


# --- DLPack and its kin -----------------------------------------------------------------------------


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


@on_device
def test_every_stream_that_was_given_the_memory_by_dlpack_is_waited_for():
    cuda = Driver()
    tensor = onecopy.zeros(1000, device="cuda:0")
    before = settled(live_blocks)
    first, second = cuda.stream(), cuda.stream()
    capsules = [tensor.__dlpack__(stream=stream, max_version=(1, 0)) for stream in (first, second)]
    gate = cuda.hold(second)
    try:
        del tensor
        capsules.clear()
        cuda.wait(0)
        cuda.wait(first)
        onecopy.collect()
        in_use = live_blocks()
    finally:
        gate.set()
    assert in_use == before, "the second stream may still use it"
    assert eventually(lambda: live_blocks() < before)


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
def test_a_foreign_array_that_is_no_memory_of_the_device_is_refused():
    cuda = Driver()
    array = ForeignArray(cuda, 4)
    host = onecopy.empty(4, "int32")
    array.at = host.data_ptr
    with pytest.raises(onecopy.Error):
        onecopy.share(array)


@on_device
def test_managed_memory_is_refused_with_the_way_out():
    cuda = Driver()
    array = ForeignArray(cuda, 4)
    at = ctypes.c_uint64()
    cuda.call("cuMemAllocManaged", ctypes.byref(at), ctypes.c_size_t(16), 1)
    array.at = at.value
    before = settled(lambda: onecopy.stats()["segments"])
    for cuda.dlpack in (2, 13):  # as memory of a device, and as what it is: kDLCUDAManaged
        with pytest.raises(onecopy.Unsupported, match=r"managed.*copy"):
            onecopy.share(array)
    assert eventually(lambda: onecopy.stats()["segments"] == before)


def test_a_device_that_another_process_has_for_itself_is_said(run_python):
    environment = needs_simulator(CUDA)
    program = """
        import onecopy
        try:
            onecopy.zeros(3, device="cuda:0")  # memory alone needs no context
        except onecopy.Unsupported as error:
            print(error)
        assert onecopy.zeros(3).tolist() == [0, 0, 0], "the CPU needs no card"
    """
    output = run_python(program, env=environment | {"ONECOPY_SIM_CUDA_FAIL": "cuDevicePrimaryCtxRetain=46"})
    assert "(46)" in output
    assert "compute mode" in output


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
    before = settled(live_blocks)
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
    in_use = live_blocks()
    gate.set()
    assert in_use > before, "what is in the stream may still write it"
    assert eventually(lambda: live_blocks() <= before)
    assert allocate(1 << 50, 0, None) is None, "torch is told by a null pointer"


@on_device
def test_a_block_is_kept_as_long_as_the_tensor_object_that_named_it():
    """For torch's tensors on devices; one of the cpu is an object like any other."""
    torch = pytest.importorskip("torch")
    from onecopy.device.alive import keep_with

    before = settled(live_blocks)
    named = torch.zeros(3)
    for _ in range(3):
        keep_with(named, onecopy.zeros(3, device="cuda:0"))
    # One for each tensor, however often it is shared; the others go once their stream has come past them.
    assert eventually(lambda: live_blocks() == before + 1)
    del named
    assert eventually(lambda: live_blocks() == before)


# --- between processes ------------------------------------------------------------------------------


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


@on_device
def test_a_value_comes_after_what_the_putters_stream_did():
    """The memory is open in both processes already: nothing but the value says that it is written."""
    cuda = Driver()
    tensor = onecopy.zeros(1, "int32", "cuda:0")
    context = onecopy.multiprocessing.get_context("spawn")
    here, there = onecopy.Pipe()
    channels = [onecopy.Queue(), context.Queue(), context.JoinableQueue(), context.SimpleQueue()]
    back = onecopy.Queue()
    getter = context.Process(target=get_values, args=(onecopy.share(tensor).to_bytes(), [*channels, there], back))
    getter.start()
    assert back.get(timeout=60) == "ready"
    values = [7, {"step": "ready"}, range(3), "x" * 100_000]  # the third is pickled
    for step, (put, value) in enumerate((put, value) for put in putters(channels, here) for value in values):
        gate = cuda.hold(0)
        cuda.write_later(tensor.data_ptr, struct.pack("i", step), 0)
        put(value)
        assert not cuda.is_idle(0), "the putter has waited"
        assert back.get(timeout=60) == (value, False), "the getter's stream waits for nothing"
        gate.set()
        assert back.get(timeout=60) == step
        if value is values[-1]:
            put("end")
    getter.join()


def putters(queues, end) -> list:
    return [queue.put for queue in queues] + [end.send]


def get_values(handle: bytes, channels: list, back: onecopy.Queue) -> None:
    cuda, tensor = Driver(), onecopy.open(handle)
    back.put("ready")
    for channel in channels:
        while (got := channel.get() if hasattr(channel, "get") else channel.recv()) != "end":
            back.put((got, cuda.is_idle(0)))
            back.put(tensor.tolist()[0])
            if hasattr(channel, "task_done"):
                channel.task_done()


@on_device
def test_a_lease_ends_when_the_borrowers_stream_has_come_so_far():
    tensor = onecopy.zeros(1000, "int32", "cuda:0")
    data = onecopy.share(tensor).to_bytes()
    borrower(open_hold_and_drop, data)
    del tensor
    onecopy.collect()
    # the owner's stream comes past it, and the borrower's may still use it
    assert eventually(lambda: onecopy.collect() or onecopy.stats()["limbo"] >= 1)
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


@on_device
def test_what_is_made_here_is_kept_until_the_current_stream_has_come_past_its_end():
    """A kernel that was started before the last reference went may still read and write it."""
    cuda = Driver()
    makers = {
        "empty": lambda: onecopy.empty(1000, "float32", "cuda:0"),
        "zeros": lambda: onecopy.zeros(1000, device="cuda:0"),
        "full": lambda: onecopy.full(1000, 7, device="cuda:0"),
        "to": lambda: onecopy.zeros(1000).to("cuda:0"),
        "copy": lambda: copy.deepcopy(onecopy.zeros(1000, device="cuda:0")),
    }
    for name, make in makers.items():
        tensor = make()
        before = settled(live_blocks)
        gate = cuda.hold(0)  # the default stream, which is ours as long as torch is not there
        try:
            del tensor
            onecopy.collect()
            in_use = live_blocks()
        finally:
            gate.set()
        assert in_use == before, f"{name}: the stream may still use it"
        assert eventually(lambda: live_blocks() < before)


def test_a_get_in_a_captured_stream_leaves_the_item_where_it_is(run_python):
    """torch.cuda.graph() makes the captured stream the current one."""
    pytest.importorskip("torch")
    environment = needs_simulator() | {"PYTHONPATH": os.pathsep.join([TESTS, *sys.path])}
    program = """
        import ctypes, onecopy, torch
        from types import SimpleNamespace
        from support.devices import Driver

        if hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):  # where a torch without CUDA knows no streams
            del torch.Tensor.__dlpack_c_exchange_api__
        cuda = Driver()
        captured = cuda.stream()
        queue, (here, there) = onecopy.Queue(), onecopy.Pipe()
        tensor = onecopy.full(3, 7, "int32", "cuda:0")
        gate = cuda.hold(0)
        queue.put(tensor)
        here.send(tensor)
        torch.cuda._initialized = True
        torch.cuda.is_initialized = lambda: True
        torch.cuda.current_device = lambda: 0
        torch.cuda.current_stream = lambda device=None: SimpleNamespace(cuda_stream=captured)
        cuda.call("cuStreamBeginCapture_v2", ctypes.c_void_p(captured), 1)
        for take in queue.try_get, lambda: queue.get(timeout=60), lambda: there.recv(timeout=60):
            try:
                take()
            except onecopy.Unsupported as error:
                assert "captured" in str(error), error
            else:
                raise AssertionError("the graph would wait at each launch")
        host = onecopy.Queue()
        host.put([1, "of the host"])
        print(host.get())
        graph = ctypes.c_void_p()
        cuda.call("cuStreamEndCapture", ctypes.c_void_p(captured), ctypes.byref(graph))
        gate.set()
        print(queue.get(timeout=60).tolist(), there.recv(timeout=60).tolist())
    """
    assert run_python(program, env=environment) == "[1, 'of the host']\n[7, 7, 7] [7, 7, 7]\n"


# --- memory that lies idle --------------------------------------------------------------------------


@on_device
def test_trim_gives_idle_memory_of_a_card_and_of_the_host_back():
    def committed() -> tuple[int, int]:
        stats = onecopy.stats()
        return stats["device_bytes"], stats["bytes_shared"] - stats["device_bytes"]

    onecopy.torch.trim()
    settled(committed)
    before = committed()
    kept = onecopy.zeros(64 << 20, "uint8", "cuda:0")
    for device in "cuda:0", "cpu":
        onecopy.zeros(96 << 20, "uint8", device)  # and goes
    Driver().wait(0)
    assert onecopy.torch.trim("cuda:0") >= 96 << 20, "of the card"
    assert committed()[0] == before[0] + (64 << 20), "what is in use stays"
    assert onecopy.torch.trim("cpu") >= 96 << 20
    assert committed()[1] == before[1]
    assert onecopy.torch.trim() == 0, "there is nothing more"
    assert onecopy.torch.trim(0) == 0
    assert onecopy.torch.trim("cuda:99") == 0, "there is nothing of ours on a device that is not there"
    with pytest.raises(onecopy.InvalidArgument, match="device"):
        onecopy.torch.trim("nonsense")
    assert kept[:3].tolist() == [0, 0, 0]


# --- faults -----------------------------------------------------------------------------------------


def test_what_the_host_waits_for_streams_is_counted(run_python):
    """On a device whose streams cannot wait for a word of memory. It is slower, so stats() tells."""
    environment = needs_simulator() | {
        "ONECOPY_SIM_CUDA_MISSING": "cuStreamWriteValue64,cuStreamWaitValue64",
        "PYTHONPATH": os.pathsep.join([TESTS, os.environ.get("PYTHONPATH", "")]),
    }
    program = """
        import subprocess, sys, threading, time, onecopy
        from support.devices import Driver

        def tell():
            while onecopy.stats()["host_waits"] == 0:
                time.sleep(0.001)
            print("the host waits", flush=True)

        if len(sys.argv) > 1:
            watcher = threading.Thread(target=tell)
            watcher.start()
            print(onecopy.open(sys.argv[1]).tolist(), onecopy.stats()["host_waits"])
            watcher.join()
            sys.exit()
        tensor = onecopy.full(3, 7, "int32", "cuda:0")
        gate = Driver().hold(0)
        arguments = [sys.executable, __file__, str(onecopy.share(tensor))]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as opener:
            print(opener.stdout.readline(), end="")
            gate.set()
            print(opener.stdout.read(), end="")
        print(onecopy.stats()["host_waits"])
    """
    assert run_python(program, env=environment) == "the host waits\n[7, 7, 7] 1\n0\n"


LAST_REFERENCE = """
    import sys, threading, onecopy
    from support.devices import Driver

    last, *others = onecopy.Pipe() if "pipe" in sys.argv[1] else [onecopy.Queue()]
    put = last.send if others else last.put
    tensor = onecopy.zeros(4, "int32", "cuda:0")
    gate = Driver().hold(0)
    put(tensor)  # in a stream that stands still
    del put

    def drop():
        global last
        begun.set()
        if sys.argv[1] == "closed end of a pipe":
            last.close()
        del last

    sys.setswitchinterval(1000)  # threads change where one lets the other, and nowhere else
    begun = threading.Event()
    dropping = threading.Thread(target=drop)
    dropping.start()
    begun.wait()
    gate.set()
    dropping.join()
"""


@pytest.mark.parametrize("last", ["queue", "end of a pipe", "closed end of a pipe"])
def test_other_threads_run_while_the_last_reference_waits_for_a_stream(run_python, last):
    """Nothing is said on stderr: the stream came to its end, because a thread could let it."""
    environment = needs_simulator() | {"PYTHONPATH": os.pathsep.join([TESTS, *sys.path])}
    run_python(LAST_REFERENCE, last, env=environment)


def test_objects_kept_for_borrowers_survive_the_end_of_the_interpreter(run_python):
    """The owner's interpreter ends while a borrower holds its memory, and does not touch the objects of the memory."""
    environment = needs_simulator() | {"PYTHONPATH": os.pathsep.join([TESTS, *sys.path])}
    program = """
        import onecopy
        from support.devices import Driver, ForeignArray
        array = ForeignArray(Driver(), 4)
        handle = onecopy.share(array)
        print("shared")
    """
    assert run_python(program, env=environment, stderr=None) == "shared\n"
