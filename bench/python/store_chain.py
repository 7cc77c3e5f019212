# SPDX-License-Identifier: Apache-2.0
"""Measures how a version goes from host to host, which are stores of this machine: one hop, a chain, and a pull that goes on."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

import bare_chain
from effort import Effort
from report import Row, at_least, at_most
from samples import Samples, time_ns

_CHUNK = 16 << 20
_HOSTS = 8
_ROUNDS = 5
_LINK = ("ocpybench0", "ocpybench1")  # this machine's end, and the source's
_ADDRESSES = ("10.213.250.1", "10.213.250.2")

# What a bare copy over TLS 1.3 takes: a process that sends from memory, and one that receives into new memory.
_BARE_SENDER = """
import socket, ssl, sys
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.minimum_version = ssl.TLSVersion.TLSv1_3
context.load_cert_chain(sys.argv[1])
listener = socket.create_server(("127.0.0.1", 0))
data = memoryview(bytearray(b"\\1") * int(sys.argv[2]))
print(listener.getsockname()[1], flush=True)
while True:
    with context.wrap_socket(listener.accept()[0], server_side=True) as peer:
        for begin in range(0, len(data), 1 << 20):
            peer.sendall(data[begin : begin + (1 << 20)])
"""


class _Host:
    """A store of its own on this machine. `enter`: what its commands begin with."""

    def __init__(self, directory: pathlib.Path, name: str, stack: contextlib.ExitStack, enter: list[str]) -> None:
        import onecopy

        self._stack, self._enter = stack, enter
        self._pids: list[int] = []
        self._own = {
            "ONECOPY_STORE_DIR": str(directory / name),
            "ONECOPY_STORE_KEY_FILE": str(directory / "key"),
        }
        os.environ |= self._own
        self.store = onecopy.store.connect(framework="torch")
        stack.callback(self.store.stop)

    def start(self, *words: str) -> subprocess.Popen[str]:
        import onecopy

        command = [*self._enter, onecopy.store._command(), "store", *words]
        started = subprocess.Popen(
            command, env=os.environ | self._own, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._pids.append(started.pid)
        self._stack.callback(started.wait)
        self._stack.callback(started.terminate)
        return started

    def busy_ns(self) -> float:
        """Returns the processor time that all commands of this host have used."""
        return bare_chain.busy_ns(self._pids.copy())

    def signal(self, number: int) -> None:
        """Sends a signal to all commands of this host and to their children."""
        for pid in self._pids:
            children = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout.split()
            for one in (pid, *map(int, children)):
                os.kill(one, number)

    def shows(self, number: int) -> bool:
        import onecopy

        try:
            return self.store.open("weights").version >= number
        except onecopy.StaleHandle:
            return False

    def serve(self, at: str, *options: str) -> str:
        """Returns the address at which others pull."""
        server = self.start("serve", "--listen", f"{at}:0", *options)
        assert server.stdout
        return server.stdout.readline().split()[-1].rstrip(".")


@contextlib.contextmanager
def _hosts(count: int, enter: list[str] | None = None) -> Iterator[list[_Host]]:
    """Makes hosts, of which the first one runs its commands by `enter`."""
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        place = pathlib.Path(directory)
        (place / "key").write_text("a secret of these benchmarks, of 40 bytes\n")
        yield [_Host(place, f"store{i}", stack, (enter or []) if i == 0 else []) for i in range(count)]


def _publish(host: _Host, size: int, number: int) -> None:
    import torch

    host.store.publish("weights", {"w": torch.full((size // 4,), float(number))}, keep=1)


def _pull(host: _Host, *addresses: str) -> subprocess.Popen[str]:
    also = [word for address in addresses[1:] for word in ("--also", address)]
    return host.start("pull", addresses[0], "weights", *also)


def _await(pull: subprocess.Popen[str]) -> str:
    out, _ = pull.communicate()
    assert pull.returncode == 0, out
    return out


@contextlib.contextmanager
def _certificate() -> Iterator[str]:
    """Returns the path of a file with a key and its certificate."""
    with tempfile.TemporaryDirectory() as directory:
        certificate = f"{directory}/own.pem"
        make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=own", "-days", "1"]
        subprocess.run([*make, "-keyout", certificate, "-out", f"{directory}/c.pem"], check=True, capture_output=True)
        with open(certificate, "a") as both:
            both.write(pathlib.Path(f"{directory}/c.pem").read_text())
        yield certificate


@contextlib.contextmanager
def _bare_sender(size: int) -> Iterator[int]:
    """Returns the port at which a process sends so many bytes to each that connects."""
    with _certificate() as certificate:
        command = [sys.executable, "-c", _BARE_SENDER, certificate, str(size)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as sender:
            assert sender.stdout
            yield int(sender.stdout.readline())
            sender.kill()


def _receive(port: int, size: int) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    into = memoryview(bytearray(size))
    with context.wrap_socket(socket.create_connection(("127.0.0.1", port))) as peer:
        at = 0
        while at < size:
            at += peer.recv_into(into[at : at + (1 << 20)])


def hop(effort: Effort) -> Row:
    """Measures a pull of one version beside a bare copy over TLS."""
    size = 1 << 28 if effort.quick else 1 << 30
    row = Row("A version goes to another host", "≥ 0.85 x the speed of a bare copy over TLS 1.3 by the same loopback")
    pulls, bare = Samples(), Samples()
    with _hosts(2) as (source, host), _bare_sender(size) as port:
        address = source.serve("127.0.0.1")
        for number in range(1, effort.rounds(_ROUNDS) + 3):
            _publish(source, size, number)
            pulls.append(time_ns(lambda: _await(_pull(host, address))))
            bare.append(time_ns(lambda: _receive(port, size)))
    per_gib = size / 2**30
    row.add("bare copy over TLS, a GiB", bare.median() / per_gib, "ns")
    speed = 1 / pulls.ratio_to(bare)
    row.judge_ratio("pull, a GiB", pulls.median() / per_gib, "ns", "the bare copy's speed", at_least(speed, 0.85))
    return row


@contextlib.contextmanager
def _source_network() -> Iterator[list[str]]:
    """Makes a network of the source's own, and returns what commands there begin with."""
    holder = subprocess.Popen(["unshare", "-n", "sleep", "1000"])
    try:
        time.sleep(0.5)
        enter = ["nsenter", "-t", str(holder.pid), "-n"]
        for command in (
            ["ip", "link", "add", _LINK[0], "type", "veth", "peer", "name", _LINK[1], "netns", str(holder.pid)],
            ["ip", "addr", "add", f"{_ADDRESSES[0]}/24", "dev", _LINK[0]],
            ["ip", "link", "set", _LINK[0], "up"],
            [*enter, "ip", "addr", "add", f"{_ADDRESSES[1]}/24", "dev", _LINK[1]],
            [*enter, "ip", "link", "set", _LINK[1], "up"],
        ):
            subprocess.run(command, check=True)
        yield enter
    finally:
        holder.kill()
        holder.wait()


def _left_source() -> int:
    return int(pathlib.Path(f"/sys/class/net/{_LINK[0]}/statistics/rx_bytes").read_text())


def chain(effort: Effort) -> Row:
    """Measures what leaves the source for hosts that follow each other, and when the first and the last one have it."""
    size = 1 << 28
    count = _HOSTS // 2 if effort.quick else _HOSTS
    row = Row(
        f"A version of {size >> 20} MiB goes along a chain of {count} hosts, which are stores of this machine",
        "≤ 1.05 x the version leaves the source; the last host has it ≤ 1.25 x as late as the first",
    )
    if os.geteuid() != 0:
        row.note("not measured: wants root, who may make network namespaces")
        return row
    left, first, last, busy = (Samples() for _ in range(4))
    bare_first, bare_last, bare_busy = (Samples() for _ in range(3))
    with _source_network() as enter, _hosts(count + 1, enter) as hosts, _certificate() as certificate:
        _follow(*hosts)
        for number in range(2, effort.rounds(_ROUNDS) + 4):
            left_before, busy_before = _left_source(), _busy(hosts)
            _publish(hosts[0], size, number)
            times = _times_of(hosts[1:], number)
            left.append((_left_source() - left_before) / size)
            busy.append(_busy(hosts) - busy_before)
            first.append(min(times))
            last.append(max(times))
            bare = bare_chain.measure(certificate, count, size, _CHUNK)
            bare_first.append(bare.first)
            bare_last.append(bare.last)
            bare_busy.append(bare.busy)
    row.judge("bytes that leave the source, in versions", left.median(), "x", at_most(left.median(), 1.05))
    row.add("the first host has it", first.median(), "ns")
    ratio = at_most(last.ratio_to(first), 1.25)
    row.judge_ratio("the last host has it", last.median(), "ns", "the first host's time", ratio)
    row.add("processor time of all hosts", busy.median(), "ns", busy.ratio_to(last), "the last host's time")
    row.add("the first bare program has it", bare_first.median(), "ns")
    row.add("the last one has it", bare_last.median(), "ns", bare_last.ratio_to(bare_first), "the first one's time")
    row.add("their processor time", bare_busy.median(), "ns", bare_busy.ratio_to(bare_last), "the last one's time")
    row.note(
        f"{os.cpu_count()} processors; bare programs receive, check and send chunks of {_CHUNK >> 20} MiB over TLS"
    )
    return row


def stopped(effort: Effort) -> Row:
    """Measures how much later the other hosts of a chain have a version if one is stopped meanwhile."""
    size = 1 << 28
    count = _HOSTS // 2 if effort.quick else _HOSTS
    row = Row(
        f"A version of {size >> 20} MiB goes along a chain of {count} hosts, of which one is stopped halfway",
        "the last of the other hosts has it ≤ 2 s later than without",
    )
    usual, late = Samples(), Samples()
    with _hosts(count + 1) as hosts:
        _follow(*hosts, at="127.0.0.1")
        middle = hosts[count // 2]
        others = [host for host in hosts[1:] if host is not middle]
        for number in range(2, 2 * effort.rounds(_ROUNDS) + 4, 2):
            _publish(hosts[0], size, number)
            usual.append(max(_times_of(others, number)))
            _times_of([middle], number)
            _publish(hosts[0], size, number + 1)
            time.sleep(usual.median() / 2e9)
            middle.signal(signal.SIGSTOP)
            late.append(max(_times_of(others, number + 1)) + usual.median() / 2)
            middle.signal(signal.SIGCONT)
            _times_of([middle], number + 1)
    row.add("the last host has it", usual.median(), "ns")
    more = late.median() - usual.median()
    row.judge("later with a host stopped", more, "ns", at_most(more, 2e9))
    return row


def _follow(source: _Host, *hosts: _Host, at: str = _ADDRESSES[1]) -> None:
    """Lets each host pull from the one before."""
    addresses = [source.serve(at), *(host.serve("127.0.0.1") for host in hosts)]
    _publish(source, _CHUNK, 1)
    for i, host in enumerate(hosts):
        host.start("pull", addresses[i], "weights", "--follow", "--also", addresses[0])
    _times_of(list(hosts), 1)


def _busy(hosts: list[_Host]) -> float:
    return sum(host.busy_ns() for host in hosts)


def _times_of(hosts: list[_Host], number: int) -> list[float]:
    """Returns the nanoseconds after which each host shows the version."""
    start = time.perf_counter_ns()
    times: dict[int, float] = {}
    while len(times) < len(hosts):
        for i, host in enumerate(hosts):
            if i not in times and host.shows(number):
                times[i] = float(time.perf_counter_ns() - start)
        time.sleep(0.005)
    return list(times.values())


def resumed(effort: Effort) -> Row:
    """Measures what is sent again after the process that pulls was killed."""
    size = 1 << 28
    row = Row("A pull is killed halfway, and begins again", "only chunks that are missing are sent again")
    with _hosts(2) as (source, host):
        address = source.serve("127.0.0.1", "--rate", "200MiB")
        _publish(source, size, 1)
        pull = _pull(host, address)
        time.sleep(0.7)
        pull.kill()
        pull.communicate()
        found = re.search(r", ([\d.]+) MiB of them received", _await(_pull(host, address)))
    assert found
    again = float(found.group(1)) * 2**20 / size
    row.judge("part of the version that the second pull receives", again, "x", at_most(again, 1 - _CHUNK / size))
    return row
