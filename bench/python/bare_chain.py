# SPDX-License-Identifier: Apache-2.0
"""A chain of bare programs, each of which receives bytes over TLS 1.3, computes a checksum and sends whole chunks on."""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import sys
import time

# Has all bytes from the beginning if no port is given. A thread sends each chunk on once the chunk is whole.
_HOP = """
import mmap, queue, socket, ssl, sys, threading, time, zlib
certificate, size, chunk, is_last, source = sys.argv[1], *map(int, sys.argv[2:])
piece, data, whole = 1 << 20, memoryview(mmap.mmap(-1, size)), queue.SimpleQueue()

def send():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with context.wrap_socket(listener.accept()[0], server_side=True) as peer:
        for _ in range(0, size, chunk):
            begin = whole.get()
            for at in range(begin, begin + chunk, piece):
                zlib.crc32(data[at : at + piece])
                peer.sendall(data[at : at + piece])

def receive():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with context.wrap_socket(socket.create_connection(("127.0.0.1", source))) as peer:
        print("connected", flush=True)
        for begin in range(0, size, chunk):
            at = begin
            while at < begin + chunk:
                count = peer.recv_into(data[at : min(at + piece, begin + chunk)])
                zlib.crc32(data[at : at + count])
                at += count
            whole.put(begin)
        print(time.monotonic_ns(), flush=True)

listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
sender = threading.Thread(target=send)
if not is_last:
    sender.start()
if source:
    receive()
else:
    data[:] = bytes(size)
    print("ready", flush=True)
    sys.stdin.readline()
    for begin in range(0, size, chunk):
        whole.put(begin)
if not is_last:
    sender.join()
"""


@dataclasses.dataclass(frozen=True)
class Times:
    """The nanoseconds until the first and the last program had all bytes, and the processor time of all programs meanwhile."""

    first: float
    last: float
    busy: float


def busy_ns(pids: list[int]) -> float:
    """Returns the processor time that processes and their children have used."""
    ticks = 0
    while pids:
        pid = pids.pop()
        with contextlib.suppress(OSError):  # it has ended
            with open(f"/proc/{pid}/stat") as file:
                ticks += sum(map(int, file.read().rpartition(")")[2].split()[11:13]))
            with open(f"/proc/{pid}/task/{pid}/children") as file:
                pids += map(int, file.read().split())
    return ticks * 1e9 / 100


def measure(certificate: str, count: int, size: int, chunk: int) -> Times:
    """Measures a chain of `count` programs behind the one that has the bytes first."""
    with contextlib.ExitStack() as stack:
        programs: list[subprocess.Popen[str]] = []
        port = 0
        for i in range(count + 1):
            words = [certificate, *map(str, (size, chunk, int(i == count), port))]
            made = subprocess.Popen([sys.executable, "-c", _HOP, *words], stdin=-1, stdout=-1, text=True)
            programs.append(stack.enter_context(made))
            stack.callback(made.kill)
            port = int(_line(made))
        for one in programs:
            _line(one)
        pids = [one.pid for one in programs]
        before, start = busy_ns(pids.copy()), time.monotonic_ns()
        assert programs[0].stdin
        print("go", file=programs[0].stdin, flush=True)
        ends = [int(_line(one)) - start for one in programs[1:]]
        return Times(ends[0], ends[-1], busy_ns(pids) - before)


def _line(program: subprocess.Popen[str]) -> str:
    assert program.stdout
    return program.stdout.readline()
