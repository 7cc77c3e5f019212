# SPDX-License-Identifier: Apache-2.0
"""Measures opening device memory of other processes by the driver alone, the limit of any library.

The driver's functions are called directly, without onecopy or torch.
"""

from __future__ import annotations

import array
import ctypes
import os
import resource
import socket
import tempfile
from typing import Any

from peers import Peer, Talk
from samples import time_ns

_MIB = 1 << 20
_EXPORTABLE = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE
_LAZY_PEER_ACCESS = 1
_READ_WRITE = 3


class _Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]


class _Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class _Properties(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("windows", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class _Access(ctypes.Structure):
    _fields_ = [("location", _Location), ("flags", ctypes.c_int)]


class Driver:
    """The functions of libcuda, with a context on the device. Raises RuntimeError with the driver's error number."""

    def __init__(self, ordinal: int) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        self("cuInit", 0)
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), ordinal)
        self("cuCtxSetCurrent", context)
        self.ordinal = ordinal

    def __call__(self, name: str, *arguments: Any) -> None:
        result = getattr(self._library, name)(*arguments)
        if result != 0:
            raise RuntimeError(f"{name} failed with {result}")

    @property
    def access(self) -> _Access:
        return _Access(_Location(1, self.ordinal), _READ_WRITE)


# --- cuMemAlloc and cuIpc -----------------------------------------------------------------------------


def lend_allocations(talk: Talk, ordinal: int) -> None:
    """Answers [count, bytes] with the nanoseconds for all handles, and the file that contains them."""
    driver = Driver(ordinal)
    for count, nbytes in talk.questions():
        places = [ctypes.c_uint64() for _ in range(count)]
        for place in places:
            driver("cuMemAlloc_v2", ctypes.byref(place), ctypes.c_size_t(nbytes))
        handles = (_Handle * count)()

        def export(places: Any = places, handles: Any = handles) -> None:
            for index, place in enumerate(places):
                driver("cuIpcGetMemHandle", ctypes.byref(handles[index]), place)

        took = time_ns(export)
        with tempfile.NamedTemporaryFile(delete=False) as file:
            file.write(bytes(handles))
        talk.say([took, file.name])


def open_allocations(talk: Talk, ordinal: int) -> None:
    """Answers [count, file] with the nanoseconds that opening all took."""
    driver = Driver(ordinal)
    for count, name in talk.questions():
        with open(name, "rb") as file:
            handles = (_Handle * count).from_buffer_copy(file.read())
        os.unlink(name)
        place = ctypes.c_uint64()

        def open_all(handles: Any = handles, place: Any = place) -> None:
            for handle in handles:
                driver("cuIpcOpenMemHandle_v2", ctypes.byref(place), handle, _LAZY_PEER_ACCESS)

        talk.say(time_ns(open_all))


def allocations(ordinal: int, count: int, nbytes: int) -> tuple[int, int]:
    """Returns the nanoseconds for exporting `count` allocations, and for opening them in another new process."""
    with Peer(lend_allocations, ordinal=ordinal) as owner, Peer(open_allocations, ordinal=ordinal) as borrower:
        exported, file = owner.ask([count, nbytes])
        return exported, borrower.ask([count, file])


# --- cuMemCreate and descriptors ----------------------------------------------------------------------


def lend_chunks(talk: Talk, ordinal: int, name: str) -> None:
    """Answers [count, bytes] with the nanoseconds that exporting all took, and sends them to the process that
    connects."""
    driver = Driver(ordinal)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind("\0" + name)
    listener.listen()
    for count, nbytes in talk.questions():
        properties = _Properties(_EXPORTABLE, _EXPORTABLE, _Location(1, ordinal))
        chunks = [ctypes.c_uint64() for _ in range(count)]
        for chunk in chunks:
            driver(
                "cuMemCreate",
                ctypes.byref(chunk),
                ctypes.c_size_t(nbytes),
                ctypes.byref(properties),
                ctypes.c_uint64(0),
            )
        descriptors: list[int] = []

        def export(chunks: Any = chunks, descriptors: Any = descriptors) -> None:
            number = ctypes.c_int()
            for chunk in chunks:
                driver("cuMemExportToShareableHandle", ctypes.byref(number), chunk, _EXPORTABLE, ctypes.c_uint64(0))
                descriptors.append(number.value)

        talk.say(time_ns(export))
        connection, _ = listener.accept()
        for at in range(0, count, 250):
            part = array.array("i", descriptors[at : at + 250])
            connection.sendmsg([b"."], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, part)])
        connection.close()


def open_chunks(talk: Talk, ordinal: int, name: str) -> None:
    """Answers [count, bytes] with the nanoseconds that receiving, importing and mapping all took."""
    driver = Driver(ordinal)
    for count, nbytes in talk.questions():
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.connect("\0" + name)

        def open_all(connection: Any = connection, count: int = count, nbytes: int = nbytes) -> None:
            base = ctypes.c_uint64()
            zero = ctypes.c_size_t(0)
            size = ctypes.c_size_t(nbytes)
            driver(
                "cuMemAddressReserve",
                ctypes.byref(base),
                ctypes.c_size_t(nbytes * count),
                zero,
                ctypes.c_uint64(0),
                ctypes.c_uint64(0),
            )
            received = 0
            while received < count:
                _, ancillary, _, _ = connection.recvmsg(1, socket.CMSG_SPACE(253 * 4))
                part = array.array("i")
                part.frombytes(ancillary[0][2])
                for descriptor in part:
                    chunk = ctypes.c_uint64()
                    driver(
                        "cuMemImportFromShareableHandle", ctypes.byref(chunk), ctypes.c_void_p(descriptor), _EXPORTABLE
                    )
                    driver(
                        "cuMemMap",
                        ctypes.c_uint64(base.value + received * nbytes),
                        size,
                        zero,
                        chunk,
                        ctypes.c_uint64(0),
                    )
                    received += 1
                    os.close(descriptor)
            access = driver.access
            driver("cuMemSetAccess", base, ctypes.c_size_t(nbytes * count), ctypes.byref(access), ctypes.c_size_t(1))

        talk.say(time_ns(open_all))


def chunks(ordinal: int, count: int, nbytes: int) -> tuple[int, int]:
    """Returns the nanoseconds for exporting `count` chunks, and for mapping them in another new process."""
    name = f"onecopy-bench-{os.getpid()}"
    with (
        Peer(lend_chunks, ordinal=ordinal, name=name) as owner,
        Peer(open_chunks, ordinal=ordinal, name=name) as borrower,
    ):
        exported = owner.ask([count, nbytes])
        return exported, borrower.ask([count, nbytes])
