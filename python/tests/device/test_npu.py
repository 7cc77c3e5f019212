# SPDX-License-Identifier: Apache-2.0
"""Features that only Ascend has, beside test_devices.py: on the simulated runtime, or on real cards.

And the published guide to sharing memory between its processes, step by step, with tensors of onecopy.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import subprocess
import sys
import threading

import pytest

import onecopy
from support.devices import NPU, AscendRuntime, DLTensor, ForeignArray, borrower, driver, needs_simulator, on_device


@pytest.fixture(params=[NPU], ids=["npu"])
def vendor(request):
    return request.param


pytestmark = pytest.mark.usefixtures("device_processes")


# --- the guide --------------------------------------------------------------------------------------


def through_queue(queue, answers) -> None:
    tensor = queue.get()
    answers.put((tensor.shape, tensor.device, tensor.tolist()))
    tensor[...] = 2
    answers.put("changed")


def by_handle(text: str, device: str | None) -> tuple:
    tensor = onecopy.open(text, device)
    seen = tensor.shape, tensor.device, tensor.tolist()
    tensor[0] = 7
    return seen


def change_a_copy(text: str, device: str) -> list:
    tensor = onecopy.open(text)
    here = tensor.to(device)
    here[...] = 9
    tensor.copy_from(here)
    return [here.device, tensor.device]


@on_device
def test_the_guide_by_a_queue_of_the_standard_library(vendor):
    context = multiprocessing.get_context("spawn")
    tensors, answers = context.Queue(), context.Queue()
    process = context.Process(target=through_queue, args=(tensors, answers))
    process.start()
    tensor = onecopy.full(5, 1.0, device="npu:0")
    tensors.put(tensor)
    assert answers.get(timeout=60) == ((5,), "npu:0", [1.0] * 5)
    assert answers.get(timeout=60) == "changed"
    process.join()
    assert process.exitcode == 0
    assert tensor.tolist() == [2.0] * 5, "the receiver's change is not visible"


@on_device
def test_the_guide_by_a_handle_on_the_same_card(vendor):
    tensor = onecopy.full(5, 3, "int32", "npu:0")
    handle = onecopy.share(tensor)
    assert handle.device_type == "npu"
    assert onecopy.Handle.from_text(str(handle)) == handle
    assert borrower(by_handle, str(handle), None) == ((5,), "npu:0", [3] * 5)
    assert tensor.tolist() == [7, 3, 3, 3, 3]


@on_device(devices=2)
def test_the_guide_by_a_handle_for_the_other_card(vendor):
    tensor = onecopy.full(5, 3, "int32", "npu:0")
    handle = onecopy.share(tensor)
    assert borrower(by_handle, str(handle), "npu:1") == ((5,), "npu:1", [3] * 5)
    assert tensor.tolist() == [7, 3, 3, 3, 3], "it is the first card's memory"


@on_device(devices=2)
def test_the_guide_by_copies_from_card_to_card(vendor):
    tensor = onecopy.full(5, 3, "int32", "npu:0")
    assert borrower(change_a_copy, str(onecopy.share(tensor)), "npu:1") == ["npu:1", "npu:0"]
    assert tensor.tolist() == [9] * 5


@on_device
def test_a_handles_arguments_name_the_other_card_by_its_number(vendor):
    """The guide's use of the arguments of reduce_tensor(): they have a number, and the handle has the kind."""
    from onecopy.multiprocessing._storages import device_asked

    handle = onecopy.share(onecopy.zeros(5, device="npu:0")).to_bytes()
    assert device_asked(handle, 1, named=0) == "npu:1"
    assert device_asked(handle, 0, named=0) is None, "where the memory is"


# --- DLPack, as torch_npu reads it ------------------------------------------------------------------


@on_device
def test_dlpack_without_arguments_is_what_torch_npu_reads(vendor):
    tensor = onecopy.zeros((4, 6), "int32", "npu:0")[1:, 2:4]
    capsule = tensor.__dlpack__()
    assert '"dltensor"' in repr(capsule), "the form without a version"
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    there = DLTensor.from_address(get(capsule, b"dltensor"))
    assert (there.device_type, there.device_id) == (12, 0)
    assert (there.data, there.byte_offset) == (tensor.data_ptr, 0), "torch_npu does not add the offset"
    assert (there.shape[0], there.shape[1], there.strides[0], there.strides[1]) == (3, 2, 6, 1)


@on_device
def test_dlpack_waits_for_the_work_as_consumers_there_name_no_stream(vendor):
    runtime = AscendRuntime()
    tensor = onecopy.zeros(1000, device="npu:0")
    gate = runtime.hold(0)  # the default stream, which is ours as long as torch_npu is not there
    threading.Timer(0.1, gate.set).start()
    tensor.__dlpack__()
    assert gate.is_set(), "the work in the stream was not done"


@on_device
def test_sharing_waits_for_the_stream_and_lets_other_threads_run(vendor):
    """The stream's work may need Python itself: it waited for ever where sharing kept the interpreter's lock."""
    runtime = AscendRuntime()
    tensor = onecopy.zeros(1000, device="npu:0")
    queue, (near, _far) = onecopy.Queue(), onecopy.Pipe()
    for hand_over in (
        lambda: onecopy.share(tensor),
        lambda: onecopy.share({"a": tensor}),
        lambda: queue.put(tensor),
        lambda: near.send(tensor),
    ):
        hand_over()  # what has to be made once
        gate = runtime.hold(0)
        threading.Timer(0.1, gate.set).start()
        hand_over()
        assert gate.is_set(), "there are no words that a stream of the opener could wait for"


# --- refusals --------------------------------------------------------------------------------


@on_device
def test_memory_of_other_libraries_has_to_be_copied(vendor):
    array = ForeignArray(AscendRuntime(), 4)
    with pytest.raises(onecopy.Unsupported, match="npu.*cannot be shared in place.*copy"):
        onecopy.share(array)
    assert onecopy.share(array, copy=True).device_type == "npu", "which the bodies of all vendors look at"


@on_device
def test_torch_without_torch_npu_says_so(vendor):
    torch = pytest.importorskip("torch")
    if hasattr(torch, "npu"):
        return
    tensor = onecopy.zeros(3, device="npu:0")
    for refused in (tensor.torch, lambda: onecopy.open(onecopy.share(tensor), framework="torch")):
        with pytest.raises(onecopy.Unsupported, match=r"npu:0.*import torch_npu.*\.cpu\(\)"):
            refused()


@pytest.mark.parametrize(
    ("variable", "version", "least"),
    [
        ("ONECOPY_SIM_ASCEND_CANN", "8.2.RC1", "8.3.RC1"),
        ("ONECOPY_SIM_ASCEND_DRIVER", "25.2.0", "25.3.RC1"),
    ],
)
def test_software_that_is_too_old_is_named_with_both_versions(run_python, variable, version, least):
    program = """
        import onecopy
        try:
            onecopy.empty(1, device="npu:0")
        except onecopy.Unsupported as error:
            print(error)
        assert onecopy.full(1, 3, "int8").tolist() == [3], "the rest works"
    """
    output = run_python(program, env=needs_simulator(NPU) | {variable: version})
    assert version in output
    assert least in output


# --- torch_npu, as far as its absence allows --------------------------------------------------------


def test_the_current_stream_is_that_of_torch_npu(run_python):
    pytest.importorskip("torch")
    program = """
        from types import SimpleNamespace
        import torch
        from onecopy import _core
        assert _core._current_stream("npu:1") == 0
        torch.npu = SimpleNamespace(
            is_initialized=lambda: torch.npu.used,
            current_stream=lambda ordinal: SimpleNamespace(npu_stream=4096 + ordinal),
            used=False,
        )
        assert _core._current_stream("npu:1") == 0, "before it has used a device"
        torch.npu.used = True
        assert _core._current_stream("npu:1") == 4097
        assert _core._current_stream("cuda:1") == 0
    """
    run_python(program)


# --- death ------------------------------------------------------------------------------------------


OWNER = """
import signal, onecopy
tensor = onecopy.full(4, 5, "int32", "npu:0")
print(onecopy.share(tensor), flush=True)
signal.pause()
"""

BORROWER = """
import sys, onecopy
tensor = onecopy.open(sys.argv[1])
print("open", flush=True)
input()
"""

READS = """
print(tensor.tolist())
"""

IS_REFUSED = """
import time
while True:  # until the death was noticed
    try:
        onecopy.open(sys.argv[1])
        time.sleep(0.01)
    except onecopy.OwnerDied as error:
        print(error)
        break
"""


class Program(subprocess.Popen):
    """Python over pipes; killed and waited for at the end."""

    def __init__(self, text: str, *arguments: str, env: dict) -> None:
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", text, *arguments]
        super().__init__(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=os.environ | env)

    def __exit__(self, *error) -> None:
        self.kill()
        super().__exit__(*error)


@contextlib.contextmanager
def borrower_of_a_killed_owner(then: str, environment: dict):
    """A process that had memory open when its owner was killed, and its later use of it."""
    with Program(OWNER, env=environment) as owner:
        with Program(BORROWER + then, owner.stdout.readline().strip(), env=environment) as opener:
            assert opener.stdout.readline() == "open\n"
            owner.kill()
            owner.wait()
            opener.stdin.write("\n")
            opener.stdin.flush()
            yield opener


def test_what_is_open_stays_valid_when_its_owner_is_killed():
    with borrower_of_a_killed_owner(READS, needs_simulator(NPU)) as opener:
        assert opener.stdout.readline() == "[5, 5, 5, 5]\n"


def test_memory_by_key_ends_with_its_owner_and_that_is_said(tmp_path):
    """Where the runtime has no memory with shareable handles."""
    needs_simulator(NPU)
    older = tmp_path / "libascendcl.so"
    with open(driver(NPU), "rb") as library:
        older.write_bytes(library.read().replace(b"\0aclrtMallocPhysical\0", b"\0-clrtMallocPhysical\0"))
    with borrower_of_a_killed_owner(IS_REFUSED, {NPU.driver: str(older)}) as opener:
        assert "ends with its process" in opener.stdout.readline()
        assert any("are invalid now" in line for line in opener.stderr), "whoever has it open is not told"


def test_what_an_ended_producer_left_in_a_queue_is_said_to_be_lost(run_python):
    program = """
        import onecopy
        import onecopy.multiprocessing as mp
        def produce(queue):
            queue.put(onecopy.zeros(3, device="npu:0"))
        if __name__ == "__main__":
            queue = onecopy.Queue()
            producer = mp.get_context("spawn").Process(target=produce, args=(queue,))
            producer.start()
            producer.join()
            assert producer.exitcode == 0
            try:
                queue.get(timeout=60)
            except onecopy.OwnerDied as error:
                print(error)
    """
    assert "lost" in run_python(program, env=needs_simulator(NPU))
