# SPDX-License-Identifier: Apache-2.0
"""Devices for tests: real ones, or the simulated drivers over memory of the host.

Code that touches a device runs in processes of its own that are spawned for it: the driver is chosen once a
process, and its users must not be forked. ``ONECOPY_CUDA_DRIVER=libcuda.so.1`` chooses the machine's own, and so
does ``ONECOPY_ASCEND_RUNTIME=libascendcl.so``.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import importlib
import os
import shutil
import subprocess
import threading
import time
import traceback
from pathlib import Path
from typing import NamedTuple

import pytest

import onecopy

ROOT = Path(__file__).resolve().parents[3]


class Vendor(NamedTuple):
    """A kind of devices, and how its programs find them."""

    kind: str
    driver: str  # the environment variable that names the library
    visible: str  # the one that hides devices
    peers: str  # the one that says which simulated devices have a path
    simulator: str
    dlpack: int

    def device(self, ordinal: int = 0) -> str:
        return f"{self.kind}:{ordinal}"


CUDA = Vendor(
    "cuda",
    "ONECOPY_CUDA_DRIVER",
    "CUDA_VISIBLE_DEVICES",
    "ONECOPY_SIM_CUDA_PEERS",
    "simulators/cuda/libcuda.so.1",
    dlpack=2,
)
NPU = Vendor(
    "npu",
    "ONECOPY_ASCEND_RUNTIME",
    "ASCEND_RT_VISIBLE_DEVICES",
    "ONECOPY_SIM_ASCEND_PEERS",
    "simulators/ascend/libascendcl.so",
    dlpack=12,
)


# --- where the driver is ----------------------------------------------------------------------------


def _built_simulator(vendor: Vendor) -> Path | None:
    # The simulators of the presets with sanitizers do not load into a Python without sanitizers.
    found = [path for preset in ("release", "dev") for path in ROOT.glob(f"build/{preset}/{vendor.simulator}")]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def _build_simulator(vendor: Vendor) -> Path | None:
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    folders = ((ROOT / "tests" / vendor.simulator).parent, ROOT / "tests/simulators/common")
    sources = sorted(str(path) for folder in folders for path in folder.glob("*.cpp"))
    if compiler is None or not sources:
        return None
    target = ROOT / "build/python-tests" / vendor.simulator
    target.parent.mkdir(parents=True, exist_ok=True)
    made = target.with_suffix(f".{os.getpid()}")
    options = ["-std=c++20", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread", "-Wl,-Bsymbolic"]
    includes = [f"-I{ROOT}/src", f"-I{ROOT}/tests"]
    subprocess.run([compiler, *options, *includes, *sources, "-o", str(made)], check=True)
    made.rename(target)
    return target


@functools.cache
def driver(vendor: Vendor = CUDA) -> str | None:
    """The library to load, or None: then there is nothing to test on."""
    if chosen := os.environ.get(vendor.driver):
        return chosen
    path = _built_simulator(vendor) or _build_simulator(vendor)
    return str(path) if path else None


def is_simulated(vendor: Vendor = CUDA) -> bool:
    return "simulators" in (driver(vendor) or "")


def needs_simulator(vendor: Vendor = CUDA) -> dict[str, str]:
    """The environment of a program that is to use it."""
    if not is_simulated(vendor):
        pytest.skip("is about the simulated driver, which wants a compiler")
    return {vendor.driver: driver(vendor)}


# --- processes that use it --------------------------------------------------------------------------

_peers: dict[str, object] = {}


def _start(name: str, daemon: bool):
    from conftest import Peer

    if name not in _peers:
        before = dict(os.environ)
        os.environ.update({vendor.driver: path for vendor in (CUDA, NPU) if (path := driver(vendor))})
        try:
            _peers[name] = Peer("spawn", daemon=daemon)
        finally:
            if not daemon:  # in the process of the tests; children of the owner's have it for good
                for variable in (CUDA.driver, NPU.driver):
                    if variable not in before:
                        os.environ.pop(variable, None)
    return _peers[name]


def end_peers() -> None:
    """Called at the end of a module of tests."""
    for name in [*_peers]:
        _peers.pop(name).end()


def borrower(function, *arguments):
    """Calls a function in the second process. For bodies of tests, which run in the first."""
    return _start("borrower", daemon=True)(function, *arguments)


def _run(module: str, name: str, arguments: dict) -> str | None:
    """Runs a test's body in the owner. Returns the traceback as text, since tracebacks cannot be sent, or None."""
    try:
        getattr(importlib.import_module(module), name).__wrapped__(**arguments)
    except BaseException:
        return traceback.format_exc()
    return None


def _device_count(vendor: Vendor) -> int:
    name = {"cuda": "cuDeviceGetCount", "npu": "aclrtGetDeviceCount"}[vendor.kind]
    count = ctypes.c_int()
    open_driver(vendor).call(name, ctypes.byref(count))
    return count.value


@functools.cache
def device_count(vendor: Vendor = CUDA) -> int:
    if driver(vendor) is None:
        return 0
    try:
        return _start("owner", daemon=False)(_device_count, vendor)
    except (OSError, RuntimeError):  # no driver, or no device
        if is_simulated(vendor):
            raise
        return 0


def on_device(test=None, *, devices: int = 1):
    """Runs the test's body in a process that may use devices. ``borrower()`` calls a function in a second one.

    The devices are of the test's parameter `vendor`, or else of CUDA.
    """
    if test is None:
        return functools.partial(on_device, devices=devices)

    @functools.wraps(test)
    def outer(**arguments):
        vendor = arguments.get("vendor", CUDA)
        if device_count(vendor) < devices:
            pytest.skip(f"wants {devices} devices ({vendor.kind}), or the simulated driver and a compiler for it")
        failure = _start("owner", daemon=False)(_run, test.__module__, test.__name__, arguments)
        if failure is not None:
            pytest.fail(failure, pytrace=False)

    return outer


def eventually(condition, seconds: float = 60.0) -> bool:
    """Waits until the condition holds, and returns False after `seconds`. Python code runs between the checks, and threads
    tick, which ends leases."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def settled(numbers):
    """Its result once that has not changed for a while: drops end by the tick of a thread."""
    seen: list = []

    def is_unchanging() -> bool:
        onecopy.collect()
        seen.append(numbers())
        return len(seen) >= 20 and all(again == seen[-1] for again in seen[-20:])

    assert eventually(is_unchanging)
    return seen[-1]


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


def list_kept():
    return kept["tensor"].tolist()


def drop_kept() -> None:
    kept.clear()
    gc.collect()


def onecopy_row(values: list) -> onecopy.Tensor:
    row = onecopy.empty(len(values), "int32")
    for index, value in enumerate(values):
        row[index] = value
    return row


# --- the driver, as another library uses it ---------------------------------------------------------

NOT_READY = 600
Callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Driver:
    """Calls of libcuda by name, in the primary context of a device."""

    dlpack = CUDA.dlpack

    def __init__(self, ordinal: int = 0) -> None:
        self.library = ctypes.CDLL(os.environ["ONECOPY_CUDA_DRIVER"])
        self.call("cuInit", 0)
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ordinal)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments) -> None:
        result = getattr(self.library, name)(*arguments)
        if result != 0:
            raise RuntimeError(f"{name} failed with {result}")

    def memory(self, nbytes: int) -> int:
        at = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(nbytes))
        return at.value

    def free(self, at: int) -> None:
        self.call("cuMemFree_v2", ctypes.c_uint64(at))

    def write(self, at: int, data: bytes) -> None:
        self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(at), data, ctypes.c_size_t(len(data)))

    def write_later(self, at: int, data: bytes, stream: int) -> None:
        """In the order of a stream, from memory that the device reads itself: the host does not wait."""
        pinned = ctypes.c_void_p()
        self.call("cuMemAllocHost_v2", ctypes.byref(pinned), ctypes.c_size_t(len(data)))
        ctypes.memmove(pinned, data, len(data))
        self.call(
            "cuMemcpyHtoDAsync_v2",
            ctypes.c_uint64(at), pinned, ctypes.c_size_t(len(data)), ctypes.c_void_p(stream),
        )  # fmt: skip

    def read(self, at: int, nbytes: int) -> bytes:
        data = ctypes.create_string_buffer(nbytes)
        self.call("cuMemcpyDtoH_v2", data, ctypes.c_uint64(at), ctypes.c_size_t(nbytes))
        return data.raw

    def stream(self) -> int:
        """One that does not wait for the default stream."""
        made = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(made), 1)
        return made.value

    def is_idle(self, stream: int) -> bool:
        return self.library.cuStreamQuery(ctypes.c_void_p(stream)) != NOT_READY

    def wait(self, stream: int) -> None:
        self.call("cuStreamSynchronize", ctypes.c_void_p(stream))

    def hold(self, stream: int) -> threading.Event:
        """Work that is put into the stream from now on waits until the event is set."""
        gate = threading.Event()
        callback = Callback(lambda _: gate.wait(60))
        _given_out.append(callback)
        self.call("cuLaunchHostFunc", ctypes.c_void_p(stream), callback, None)
        return gate


class AscendRuntime:
    """Calls of libascendcl by name, on a device."""

    dlpack = NPU.dlpack
    REPEATED = 100002

    def __init__(self, ordinal: int = 0) -> None:
        self.library = ctypes.CDLL(os.environ[NPU.driver])
        if (result := self.library.aclInit(None)) not in (0, self.REPEATED):
            raise RuntimeError(f"aclInit failed with {result}")
        self.call("aclrtSetDevice", ordinal)

    call = Driver.call

    def memory(self, nbytes: int) -> int:
        at = ctypes.c_void_p()
        self.call("aclrtMalloc", ctypes.byref(at), ctypes.c_size_t(nbytes), 0)
        return at.value

    def free(self, at: int) -> None:
        self.call("aclrtFree", ctypes.c_void_p(at))

    def write(self, at: int, data: bytes) -> None:
        self._copy(ctypes.c_void_p(at), data, len(data), 1)

    def read(self, at: int, nbytes: int) -> bytes:
        data = ctypes.create_string_buffer(nbytes)
        self._copy(data, ctypes.c_void_p(at), nbytes, 2)
        return data.raw

    def _copy(self, to, source, nbytes: int, direction: int) -> None:
        size = ctypes.c_size_t(nbytes)
        self.call("aclrtMemcpy", to, size, source, size, direction)

    def hold(self, stream: int) -> threading.Event:
        """Work that is put into the stream from now on waits until the event is set."""
        gate = threading.Event()
        callback = Callback(lambda _: gate.wait(60))
        _given_out.append(callback)
        self.call("aclrtLaunchHostFunc", ctypes.c_void_p(stream), callback, None)
        return gate


def open_driver(vendor: Vendor):
    return AscendRuntime() if vendor == NPU else Driver()


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _DLManagedTensor(ctypes.Structure):
    _fields_ = (
        ("dl_tensor", DLTensor),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", Callback),
    )


_given_out: list = []  # what consumers point at: they may give it back after the array is gone


class ForeignArray:
    """A row of int32 in memory of the vendor's allocator that knows nothing of onecopy but DLPack, as cupy's."""

    def __init__(self, cuda: Driver | AscendRuntime, count: int, ordinal: int = 0) -> None:
        self.cuda, self.count, self.ordinal = cuda, count, ordinal
        self.at = cuda.memory(4 * count)
        self.streams: list = []  # what consumers asked for
        self.given_back = 0

    def __dlpack_device__(self):
        return (self.cuda.dlpack, self.ordinal)

    def __dlpack__(self, stream=None):
        self.streams.append(stream)
        shape = (ctypes.c_int64 * 1)(self.count)
        tensor = DLTensor(self.at, self.cuda.dlpack, self.ordinal, 1, 0, 32, 1, shape, None, 0)
        managed = _DLManagedTensor(tensor, None, Callback(self._give_back))
        _given_out.append((self, shape, managed))
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(managed), b"dltensor", None)

    def _give_back(self, _) -> None:
        self.given_back += 1
