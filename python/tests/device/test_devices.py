# SPDX-License-Identifier: Apache-2.0
"""Tensors on devices, with the same bodies for all vendors: on the simulated drivers, or on real devices."""

from __future__ import annotations

import gc
import struct
import sys

import pytest

import onecopy
from support.devices import (
    CUDA,
    NPU,
    ForeignArray,
    borrower,
    drop_kept,
    eventually,
    list_kept,
    needs_simulator,
    on_device,
    onecopy_row,
    open_and_keep,
    open_and_list,
    open_and_set,
    open_driver,
    settled,
)  # fmt: skip


@pytest.fixture(params=[CUDA, NPU], ids=lambda vendor: vendor.kind)
def vendor(request):
    return request.param


pytestmark = pytest.mark.usefixtures("device_processes")


# --- what the other process does --------------------------------------------------------------------


def open_bundle(handle: bytes):
    bundle = onecopy.open(handle)
    return {name: bundle[name].tolist() for name in bundle}


def add_one(tensor: onecopy.Tensor) -> list:
    values = [value + 1 for value in tensor.tolist()]
    tensor[:] = onecopy_row(values)
    return values


# --- tensors ----------------------------------------------------------------------------------------


@on_device
def test_tensors_are_made_on_the_device(vendor):
    assert onecopy.empty((2, 3), "int16", vendor.device()).device == vendor.device()
    assert onecopy.zeros((2, 3), "int16", device=vendor.device()).tolist() == [[0, 0, 0]] * 2
    assert onecopy.full((2, 2), 1.5, device=vendor.device()).tolist() == [[1.5, 1.5]] * 2
    assert onecopy.full((), 7, "uint8", vendor.device()).item() == 7
    assert onecopy.zeros(0, device=vendor.device()).tolist() == []


@on_device
def test_a_device_without_a_number_is_the_first_while_torch_has_used_none(vendor):
    tensor = onecopy.full(3, 7, "int32", vendor.kind)
    assert tensor.device == vendor.device()
    assert tensor.to(vendor.kind).data_ptr == tensor.data_ptr
    assert onecopy.open(onecopy.share(tensor), vendor.kind).device == vendor.device()


@on_device
def test_a_large_tensor_is_filled_to_its_last_element(vendor):
    tensor = onecopy.full(3_000_001, 42, "int32", device=vendor.device())
    assert tensor[-2:].tolist() == [42, 42]
    host = tensor.cpu()
    assert bytes(host.memoryview().cast("B")) == struct.pack("i", 42) * 3_000_001


@on_device
def test_elements_are_read_and_written_as_on_the_cpu(vendor):
    tensor = onecopy.zeros((3, 4), "int32", vendor.device())
    tensor[1] = 5
    tensor[2, 1] = 9
    tensor[:, 3] = 7  # strided
    tensor[0, :2] = onecopy_row([1, 2])
    assert tensor.tolist() == [[1, 2, 0, 7], [5, 5, 5, 7], [0, 9, 0, 7]]
    assert tensor[2, 1].item() == 9
    assert int(tensor[0, 0]) == 1
    assert tensor[:, 0].tolist() == [1, 5, 0]
    assert tensor.reshape(2, 6).tolist() == [[1, 2, 0, 7, 5, 5], [5, 7, 0, 9, 0, 7]]
    assert f"on {vendor.device()}" in repr(tensor)


@on_device
def test_copies_go_between_the_cpu_and_the_device(vendor):
    tensor = onecopy.full((2, 2), 3, "int64", vendor.device())
    host = tensor.cpu()
    assert (host.device, host.tolist()) == ("cpu", [[3, 3]] * 2)
    assert host.cpu().data_ptr == host.data_ptr, "what is there is not copied"
    assert tensor.to(vendor.device()).data_ptr == tensor.data_ptr
    host[0, 0] = 8
    there = host.to(vendor.device())
    assert (there.device, there.tolist()) == (vendor.device(), [[8, 3], [3, 3]])
    again = tensor.copy()
    again.copy_from(host)
    assert again.device == vendor.device()
    assert again.tolist() == [[8, 3], [3, 3]]
    assert tensor.tolist() == [[3, 3]] * 2, "copies have memory of their own"
    host.copy_from(tensor)
    assert host.tolist() == [[3, 3]] * 2


@on_device(devices=2)
def test_copies_go_from_one_device_to_the_other(vendor):
    tensor = onecopy.full(1000, 3, "int64", vendor.device())
    there = tensor.to(vendor.device(1))
    assert (there.device, there.tolist()) == (vendor.device(1), [3] * 1000)


@on_device
def test_what_only_memory_of_the_cpu_can_do_is_refused_with_the_way_out(vendor):
    tensor = onecopy.zeros(3, device=vendor.device())
    for refused in (tensor.numpy, tensor.__array__, lambda: onecopy.open(onecopy.share(tensor), framework="numpy")):
        with pytest.raises(onecopy.Unsupported, match=rf"{vendor.device()}.*\.cpu\(\)"):
            refused()
    with pytest.raises(BufferError, match=vendor.device()):
        tensor.memoryview()
    with pytest.raises(onecopy.Unsupported, match=vendor.device()):
        onecopy.open(onecopy.share(tensor), "cpu")


@on_device
def test_a_device_that_is_not_there_is_named(vendor):
    with pytest.raises(onecopy.InvalidArgument, match=f"{vendor.device(99)}.*{vendor.visible}"):
        onecopy.empty(1, device=vendor.device(99))
    with pytest.raises(onecopy.InvalidArgument, match=vendor.device(99)):
        onecopy.empty(1).to(vendor.device(99))


@on_device
def test_stats_count_memory_of_devices(vendor):
    def on_devices() -> tuple[int, int]:
        stats = onecopy.stats()
        return stats["device_segments"], stats["device_bytes"]

    segments, size = settled(on_devices)
    tensor = onecopy.empty(64 << 20, "uint8", vendor.device())
    assert on_devices() == (segments + 1, size + (64 << 20))
    del tensor  # its memory goes once the stream has come past it
    assert eventually(lambda: onecopy.collect() or on_devices() == (segments, size))


@on_device
def test_out_of_memory_is_an_error_with_numbers(vendor):
    with pytest.raises(onecopy.OutOfMemory, match=f"{vendor.device()}.*free"):
        onecopy.empty(1 << 40, "uint8", vendor.device())
    assert onecopy.full(3, 1, "int8", vendor.device()).tolist() == [1, 1, 1]


# --- DLPack and its kin -----------------------------------------------------------------------------


@on_device
def test_dlpack_says_which_device_and_comes_back_as_the_same_memory(vendor):
    tensor = onecopy.full((2, 3), 4, "int32", vendor.device())
    assert tensor.__dlpack_device__() == (vendor.dlpack, 0)
    assert onecopy.empty(1).__dlpack_device__() == (1, 0)
    back = onecopy.from_dlpack(tensor)
    assert (back.device, back.data_ptr, back.is_shared) == (vendor.device(), tensor.data_ptr, True)
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


# --- memory of other libraries ----------------------------------------------------------------------


@on_device
def test_a_foreign_array_can_be_copied_instead(vendor):
    device = open_driver(vendor)
    array = ForeignArray(device, 4)
    device.write(array.at, struct.pack("4i", 1, 2, 3, 4))
    handle = onecopy.share(array, copy=True)
    device.write(array.at, struct.pack("4i", 0, 0, 0, 0))
    assert borrower(open_and_list, handle.to_bytes()) == [1, 2, 3, 4]
    assert array.given_back == 1


# --- between processes ------------------------------------------------------------------------------


@on_device
def test_another_process_sees_the_same_memory(vendor):
    tensor = onecopy.full((2, 2), 1, "int32", vendor.device())
    handle = onecopy.share(tensor)
    assert borrower(open_and_list, handle.to_bytes()) == [[1, 1], [1, 1]]
    assert borrower(open_and_set, handle.to_bytes(), 1, 6) == vendor.device()
    assert tensor.tolist() == [[1, 1], [6, 6]]


@on_device
def test_a_view_is_shared_as_a_view(vendor):
    tensor = onecopy.zeros((4, 4), "int32", vendor.device())
    tensor[1:3, 2] = 5
    assert borrower(open_and_list, onecopy.share(tensor[1:, ::2]).to_bytes()) == [[0, 5], [0, 5], [0, 0]]


@on_device
def test_reading_only_is_enforced(vendor):
    tensor = onecopy.full(3, 1, "int32", vendor.device())
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
def test_a_nested_value_is_one_bundle(vendor):
    halves = onecopy.full(2, 2.5, device=vendor.device())
    handle = onecopy.share({"a": onecopy.full(3, 1, "int32", vendor.device()), "b": [halves, onecopy_row([7])]})
    opened = borrower(open_bundle, handle.to_bytes())
    assert opened == {"a": [1, 1, 1], "b.0": [2.5, 2.5], "b.1": [7]}


@on_device
def test_tensors_cross_queues_and_pipes_by_handle(vendor):
    there, back = onecopy.Queue(), onecopy.Queue()
    tensor = onecopy.full(4, 10, "int32", vendor.device())
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


@on_device(devices=2)
def test_another_device_uses_the_memory_where_it_is(vendor):
    tensor = onecopy.full((2, 2), 1, "int32", vendor.device())
    handle = onecopy.share(tensor)
    assert borrower(open_on_and_set, handle.to_bytes(), vendor.device(1)) == (vendor.device(1), [[1, 1], [1, 1]])
    assert tensor.tolist() == [[8, 8], [8, 8]]
    assert borrower(open_on_and_set, handle.to_bytes(), vendor.device()) == (vendor.device(), [[8, 8], [8, 8]])
    with pytest.raises(onecopy.InvalidArgument, match=vendor.device(99)):
        onecopy.open(handle, vendor.device(99))
    bundle = onecopy.share({"a": tensor, "n": 3})
    assert borrower(bundle_devices, bundle.to_bytes(), vendor.device(1)) == {"a": vendor.device(1)}


def open_on_and_set(handle: bytes, device: str):
    tensor = onecopy.open(handle, device)
    before = tensor.tolist()
    tensor[...] = 8
    return tensor.device, before


def bundle_devices(handle: bytes, device: str) -> dict:
    bundle = onecopy.open(handle, device)
    return {name: bundle[name].device for name in bundle}


@on_device
def test_more_than_the_tensor_is_not_shown_when_that_was_asked_for(vendor):
    tensor = onecopy.full(10_000, 1, "int32", vendor.device())
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
def test_pickled_tensors_cross_pipes_of_the_standard_library(vendor):
    tensor = onecopy.zeros(3, "int32", vendor.device())
    assert borrower(add_one, tensor) == [1, 1, 1]
    assert tensor.tolist() == [1, 1, 1]


@on_device
def test_memory_outlives_its_last_owner_in_a_borrower(vendor):
    handle = onecopy.share(onecopy.full(3, 4, "int32", vendor.device()))
    borrower(open_and_keep, handle.to_bytes())
    del handle
    gc.collect()
    assert borrower(list_kept) == [4, 4, 4]
    borrower(drop_kept)


@on_device
def test_a_stale_handle_is_never_wrong_data(vendor):
    before = settled(lambda: onecopy.stats()["live_blocks"])
    data = onecopy.share(onecopy.zeros(3, device=vendor.device())).to_bytes()
    assert eventually(lambda: onecopy.collect() or onecopy.stats()["live_blocks"] <= before)
    with pytest.raises(onecopy.StaleHandle):
        borrower(open_and_list, data)


# --- faults -----------------------------------------------------------------------------------------


def test_without_a_driver_the_error_says_so(vendor, run_python):
    program = """
        import sys, onecopy
        try:
            onecopy.empty(1, device=sys.argv[1])
        except onecopy.Unsupported as error:
            print(error)
        assert onecopy.full(1, 3, "int8").tolist() == [3], "the rest works"
        assert onecopy.stats()["device_bytes"] == 0
    """
    output = run_python(program, vendor.device(), env={vendor.driver: "/nowhere/libnone.so"})
    assert {"cuda": "no CUDA driver", "npu": "no ACL runtime"}[vendor.kind] in output


OTHER_VISIBLE = """
    import os, subprocess, sys, onecopy
    device, variable, visible, *handle = sys.argv[1:]
    if handle:
        try:
            tensor = onecopy.open(*handle)
            print(tensor.device, tensor.tolist())
        except onecopy.Unsupported as error:
            print(error)
        sys.exit()
    handle = onecopy.share(onecopy.full(2, 5, "int8", device))
    os.environ[variable] = visible
    subprocess.run([sys.executable, __file__, device, variable, visible, str(handle)], check=True)
"""


def test_a_hidden_device_is_named_by_its_uuid(vendor, run_python):
    environment = needs_simulator(vendor)
    output = run_python(OTHER_VISIBLE, vendor.device(1), vendor.visible, "0", env=environment)
    assert "UUID" in output
    assert vendor.visible in output


def test_a_renumbered_device_is_found(vendor, run_python):
    environment = needs_simulator(vendor)
    output = run_python(OTHER_VISIBLE, vendor.device(1), vendor.visible, "1", env=environment)
    assert output == f"{vendor.device(0)} [5, 5]\n"


def test_only_the_card_that_uses_anothers_memory_gets_a_context(run_python):
    """As sglang#22662 wants it; tests/issues/consumer_device_test.cpp has the rest."""
    program = """
        import ctypes, os, subprocess, sys, onecopy

        def has_context(ordinal):
            flags, active = ctypes.c_uint(), ctypes.c_int(-1)
            driver = ctypes.CDLL(os.environ["ONECOPY_CUDA_DRIVER"])
            assert driver.cuDevicePrimaryCtxGetState(ordinal, ctypes.byref(flags), ctypes.byref(active)) == 0
            return active.value

        if handle := sys.argv[1:]:
            tensor = onecopy.open(*handle, "cuda:1")
            print(tensor.device, tensor.tolist(), has_context(0), has_context(1))
            tensor = onecopy.open(*handle)
            print(tensor.device, tensor.tolist(), has_context(0))
            sys.exit()
        handle = onecopy.share(onecopy.full(2, 5, "int8", "cuda:0"))
        subprocess.run([sys.executable, __file__, str(handle)], check=True)
    """
    output = run_python(program, env=needs_simulator(CUDA))
    assert output == "cuda:1 [5, 5] 0 1\ncuda:0 [5, 5] 1\n"


def test_cards_without_a_path_are_said_to_have_none(vendor, run_python):
    environment = needs_simulator(vendor) | {vendor.peers: "none"}
    program = """
        import subprocess, sys, onecopy
        device, other, *handle = sys.argv[1:]
        if handle:
            try:
                onecopy.open(*handle, other)
            except onecopy.Unsupported as error:
                print(error)
            assert onecopy.open(*handle).to(other).tolist() == [5, 5], "the way out"
            sys.exit()
        handle = onecopy.share(onecopy.full(2, 5, "int8", device))
        subprocess.run([sys.executable, __file__, device, other, str(handle)], check=True)
    """
    output = run_python(program, vendor.device(), vendor.device(1), env=environment)
    assert vendor.device() in output
    assert vendor.device(1) in output
    assert "copy" in output


def test_a_forked_child_is_told_to_use_spawn(vendor, run_python):
    environment = needs_simulator(vendor)
    program = """
        import os, sys, onecopy
        tensor = onecopy.zeros(3, device=sys.argv[1])
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
    run_python(program, vendor.device(), env=environment, stderr=None)
