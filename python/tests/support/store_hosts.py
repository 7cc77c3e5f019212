# SPDX-License-Identifier: Apache-2.0
"""Hosts of tests, each with a store of its own, and cables between them."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import threading
import time

import pytest

import onecopy

KEY = "a secret of these tests, of 40 characters"
CHUNK = 16 << 20
COMMAND = [os.environ["ONECOPY_COMMAND"]] if "ONECOPY_COMMAND" in os.environ else [sys.executable, "-m", "onecopy"]


class Host:
    """A store of its own, in whose place commands run. `enter`: what they begin with, for a host with a network of its own."""

    def __init__(self, directory, key, enter=()):
        key.write_text(KEY + "\n")
        self.environment = {"ONECOPY_STORE_DIR": str(directory), "ONECOPY_STORE_KEY_FILE": str(key)}
        self.enter = list(enter)
        self.children = []

    def start(self, *arguments, **environment):
        child = subprocess.Popen(
            [*self.enter, *COMMAND, "store", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **self.environment, **environment},
        )
        self.children.append(child)
        return child

    def run(self, *arguments, status=0, **environment):
        """Returns what the command says; what it complains about if it is to fail."""
        child = self.start(*arguments, **environment)
        out, err = child.communicate(timeout=120)
        assert child.returncode == status, (out, err)
        return out if status == 0 else err

    def serve(self, at="127.0.0.1:0", *options):
        """Returns the address at which other hosts pull."""
        self.server = self.start("serve", "--listen", at, *options)
        line = self.server.stdout.readline()
        return re.fullmatch(r"Other hosts pull from (\S+)\.\n", line).group(1)

    def connect(self, **options):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ONECOPY_STORE_DIR", self.environment["ONECOPY_STORE_DIR"])
            return onecopy.store.connect(**options)

    def connect_without_starting(self):
        """Waits for the keeper that serve() starts, which may come after the line that serve() reads."""
        found = []

        def is_there():
            with contextlib.suppress(onecopy.PeerDied):
                found.append(self.connect(autostart=False))
            return found

        wait_until(is_there)
        return found[0]

    def ferry(self):
        """Returns the process that serves other hosts: the child of the command that is not in the keeper's group."""
        children = subprocess.run(["pgrep", "-P", str(self.server.pid)], capture_output=True, text=True).stdout.split()
        keeper = self.connect().keeper()
        return next(int(pid) for pid in children if int(pid) not in keeper.values())

    def end(self):
        for child in self.children:
            if child.poll() is None:
                child.terminate()
        with contextlib.suppress(onecopy.Error):
            self.connect().stop()
        for child in self.children:
            if child.poll() is None:
                child.terminate()
            child.communicate(timeout=60)


class Cable:
    """A way to a host, which counts the bytes that come from there, and which can be cut or made slow."""

    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self.there = (host.strip("[]"), int(port))
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.came, self.at, self.pause = 0, [], 0.0
        self.sockets = []
        self.threads = []
        self._start(self._accept)

    def _start(self, target, *arguments):
        self.threads.append(threading.Thread(target=target, args=arguments, daemon=True))
        self.threads[-1].start()

    def when(self, came, act):
        """Calls `act` once so many further bytes have come."""
        self.at.append((self.came + came, act))

    def cut(self):
        for one in self.sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                here = self.listener.accept()[0]
                try:
                    there = socket.create_connection(self.there)
                except OSError:
                    here.close()
                    continue
                self.sockets += [here, there]
                self._start(self._carry, here, there, False)
                self._start(self._carry, there, here, True)

    def _carry(self, source, sink, counts):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 18):
                if counts:
                    self.came += len(data)
                    for one in [one for one in self.at if self.came >= one[0]]:
                        self.at.remove(one)
                        one[1]()
                    time.sleep(self.pause)
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self):
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)  # ends accept()
        self.threads[0].join()
        self.cut()
        for thread in self.threads:
            thread.join()
        for one in (self.listener, *self.sockets):
            one.close()


def weights(number, chunks=4):
    """Tensors of so many chunks, of which each element is the number."""
    import torch

    return {f"w{i}": torch.full((CHUNK // 4,), float(number)) for i in range(chunks)}


def number_in(version):
    """Returns the number that all elements have."""
    values = {float(bound) for name in version for bound in (version[name].min(), version[name].max())}
    assert len(values) == 1, values
    return values.pop()


def wait_until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
