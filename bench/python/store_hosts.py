# SPDX-License-Identifier: Apache-2.0
"""Measures a group of hosts, which are stores of this machine: what they cost while nothing happens, and how they switch."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

from effort import Effort
from footprint import processor_seconds
from report import Row, at_most
from samples import Samples

_HOSTS = 8
_IDLE_SECONDS = 20
_SWITCHES = 20


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class _Group:
    """etcd, and the hosts of a group."""

    def __init__(self, directory: pathlib.Path, stack: contextlib.ExitStack) -> None:
        import onecopy

        url, peers = (f"http://127.0.0.1:{_free_port()}" for _ in range(2))
        etcd = [
            "etcd",
            "--data-dir",
            str(directory / "etcd"),
            "--listen-client-urls",
            url,
            "--advertise-client-urls",
            url,
        ]
        etcd += ["--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--log-level", "error"]
        self._start([*etcd, "--logger", "zap", "--initial-cluster", f"default={peers}"], {}, stack)
        (directory / "key").write_text("a secret of these benchmarks, of 40 bytes\n")
        self.stores: list[Any] = []
        self.servers = []
        for i in range(_HOSTS):
            own = {
                "ONECOPY_STORE_DIR": str(directory / f"store{i}"),
                "ONECOPY_STORE_KEY_FILE": str(directory / "key"),
            }
            command = [onecopy.store._command(), "store", "serve", "--listen", "127.0.0.1:0", "--group", "bench"]
            command += ["--etcd", url, "--name", f"h{i}", "--state", str(directory / f"state{i}")]
            server = self._start(command, own, stack)
            assert server.stdout and server.stdout.readline()
            self.servers.append(server.pid)
            os.environ |= own
            self.stores.append(onecopy.store.connect(framework="torch"))
            stack.callback(self.stores[-1].stop)
        while sum(one["is_present"] for one in self._hosts()) != _HOSTS:
            time.sleep(0.1)

    def _hosts(self) -> list[dict[str, Any]]:
        import onecopy

        with contextlib.suppress(onecopy.Error):
            return list(self.stores[0].hosts("weights"))
        return []

    @staticmethod
    def _start(command: list[str], own: dict[str, str], stack: contextlib.ExitStack) -> subprocess.Popen[str]:
        started = subprocess.Popen(
            command, env=os.environ | own, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        stack.callback(started.wait)
        stack.callback(started.terminate)
        return started

    def processes(self) -> list[int]:
        """Returns the processes of all hosts: the commands, their children, and the keepers' halves."""
        found = set(self.servers)
        for server in self.servers:
            children = subprocess.run(["pgrep", "-P", str(server)], capture_output=True, text=True).stdout
            found |= {int(pid) for pid in children.split()}
        for store in self.stores:
            found |= set(store.keeper().values())
        return sorted(found)


@contextlib.contextmanager
def _group() -> Iterator[_Group]:
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        yield _Group(pathlib.Path(directory), stack)


def _private_bytes(pid: int) -> int:
    """Returns the bytes of a process that it shares with no other one, and its part of those that it shares."""
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("Pss:"))


def hosts(effort: Effort) -> Row:
    """Measures a group of 8 hosts on this machine."""
    row = Row(
        f"A group of {_HOSTS} hosts, which are stores of this machine",
        "a host takes ≤ 0.1 % of a processor while nothing happens, and ≤ 24 MiB; hosts switch within 50 ms",
    )
    if shutil.which("etcd") is None:
        row.note("not measured: etcd is not installed")
        return row
    with _group() as group:
        _publish(group, 0)
        pids = group.processes()
        before = sum(map(processor_seconds, pids))
        time.sleep(effort.rounds(_IDLE_SECONDS))
        used = (sum(map(processor_seconds, pids)) - before) / effort.rounds(_IDLE_SECONDS) / _HOSTS * 100
        row.judge("processor of a host while nothing happens", used, "%", at_most(used, 0.1))
        mib = sum(map(_private_bytes, pids)) / _HOSTS / 2**20
        row.judge("memory of a host", mib, "MiB", at_most(mib, 24))
        late = Samples(_switch(group, number) for number in range(1, effort.rounds(_SWITCHES) + 1))
        row.judge("from the first host's switch to the last one's", late.median(), "ns", at_most(late.median(), 50e6))
    return row


def _publish(group: _Group, number: int) -> None:
    import torch

    group.stores[0].publish("weights", {"w": torch.full((1024,), float(number))}, everywhere=True)


def _switch(group: _Group, number: int) -> float:
    """Returns the nanoseconds between the first and the last host that shows the next version."""
    times = []
    ready = threading.Barrier(_HOSTS + 1)

    def follow(store: Any) -> None:
        watch = store.watch("weights")
        next(watch)  # the version that is current already
        ready.wait()
        next(watch)
        times.append(time.perf_counter_ns())

    threads = [threading.Thread(target=follow, args=(store,)) for store in group.stores]
    for thread in threads:
        thread.start()
    ready.wait()
    _publish(group, number)
    for thread in threads:
        thread.join()
    return float(max(times) - min(times))
