# SPDX-License-Identifier: Apache-2.0
"""A CUDA device for tests: a real one, or the simulated driver over memory of the host.

Whatever touches the device runs in processes of its own that are spawned for it: the driver is chosen once a
process, and its users must not be forked. ``ONECOPY_CUDA_DRIVER=libcuda.so.1`` chooses the machine's own.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
import shutil
import subprocess
import threading
import traceback
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


# --- where the driver is ----------------------------------------------------------------------------


def _built_simulator() -> Path | None:
    # Those of the presets with sanitizers do not load into a Python without them.
    found = [*ROOT.glob("build/release/simulators/cuda/libcuda.so.1"), *ROOT.glob("build/dev/simulators/cuda/libcuda.so.1")]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def _build_simulator() -> Path | None:
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    sources = sorted(str(path) for path in (ROOT / "tests/simulators/cuda").glob("*.cpp"))
    if compiler is None or not sources:
        return None
    target = ROOT / "build/python-tests/simulators/cuda/libcuda.so.1"
    target.parent.mkdir(parents=True, exist_ok=True)
    made = target.with_suffix(f".{os.getpid()}")
    options = ["-std=c++20", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread", f"-I{ROOT}/src"]
    subprocess.run([compiler, *options, *sources, "-o", str(made)], check=True)
    made.rename(target)
    return target


@functools.cache
def driver() -> str | None:
    """The library to load, or None: then there is nothing to test on."""
    if chosen := os.environ.get("ONECOPY_CUDA_DRIVER"):
        return chosen
    path = _built_simulator() or _build_simulator()
    return str(path) if path else None


def is_simulated() -> bool:
    return "simulators" in (driver() or "")


# --- processes that use it --------------------------------------------------------------------------

_peers: dict[str, object] = {}


def _start(name: str, daemon: bool):
    from conftest import Peer

    if name not in _peers:
        os.environ["ONECOPY_CUDA_DRIVER"] = driver()
        try:
            _peers[name] = Peer("spawn", daemon=daemon)
        finally:
            if not daemon:  # in the process of the tests; children of the owner's have it for good
                del os.environ["ONECOPY_CUDA_DRIVER"]
    return _peers[name]


def end_peers() -> None:
    """For the end of a module of tests."""
    for name in [*_peers]:
        _peers.pop(name).end()


def borrower(function, *arguments):
    """Calls a function in the second process. For bodies of tests, which run in the first."""
    return _start("borrower", daemon=True)(function, *arguments)


def _run(module: str, name: str, arguments: dict) -> str | None:
    """In the owner: a test's body. The text of what went wrong: tracebacks do not cross processes."""
    try:
        getattr(importlib.import_module(module), name).__wrapped__(**arguments)
    except BaseException:
        return traceback.format_exc()
    return None


def _device_count() -> int:
    cuda = Driver()
    count = ctypes.c_int()
    cuda.call("cuDeviceGetCount", ctypes.byref(count))
    return count.value


@functools.cache
def device_count() -> int:
    if driver() is None:
        return 0
    try:
        return _start("owner", daemon=False)(_device_count)
    except (OSError, RuntimeError):  # no driver, or no device
        if is_simulated():
            raise
        return 0


def on_device(test=None, *, devices: int = 1):
    """The test's body runs in a process that may use CUDA, with another one at hand: ``borrower()``."""
    if test is None:
        return functools.partial(on_device, devices=devices)

    @functools.wraps(test)
    def outer(**arguments):
        if device_count() < devices:
            pytest.skip(f"wants {devices} CUDA GPUs, or the simulated driver and a compiler for it")
        failure = _start("owner", daemon=False)(_run, test.__module__, test.__name__, arguments)
        if failure is not None:
            pytest.fail(failure, pytrace=False)

    return outer


# --- the driver, as another library uses it ---------------------------------------------------------

NOT_READY = 600
Callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Driver:
    """Calls of libcuda by name, in the primary context of a device."""

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
        """What is put into the stream from now on waits until the event is set."""
        gate = threading.Event()
        callback = Callback(lambda _: gate.wait(60))
        _given_out.append(callback)
        self.call("cuLaunchHostFunc", ctypes.c_void_p(stream), callback, None)
        return gate


class _DLTensor(ctypes.Structure):
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
        ("dl_tensor", _DLTensor),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", Callback),
    )


_given_out: list = []  # what consumers point at: they may give it back after the array is gone


class ForeignArray:
    """A row of int32 in memory of cudaMalloc that knows nothing of onecopy but DLPack, as cupy's."""

    def __init__(self, cuda: Driver, count: int, ordinal: int = 0) -> None:
        self.cuda, self.count, self.ordinal = cuda, count, ordinal
        self.at = cuda.memory(4 * count)
        self.streams: list = []  # what consumers asked for
        self.given_back = 0

    def __dlpack_device__(self):
        return (2, self.ordinal)

    def __dlpack__(self, stream=None):
        self.streams.append(stream)
        shape = (ctypes.c_int64 * 1)(self.count)
        tensor = _DLTensor(self.at, 2, self.ordinal, 1, 0, 32, 1, shape, None, 0)
        managed = _DLManagedTensor(tensor, None, Callback(self._give_back))
        _given_out.append((self, shape, managed))
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(managed), b"dltensor", None)

    def _give_back(self, _) -> None:
        self.given_back += 1
