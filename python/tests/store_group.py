# SPDX-License-Identifier: Apache-2.0
"""etcd, really started, and hosts of a group, for tests."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request

import pytest


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class Etcd:
    """A cluster of one member, whose data stay when it is stopped."""

    def __init__(self, directory):
        if shutil.which("etcd") is None:
            pytest.skip("wants etcd")
        self.directory = directory
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = None
        self.start()

    def start(self):
        peers = f"http://127.0.0.1:{free_port()}"
        self.process = subprocess.Popen(
            ["etcd", "--data-dir", str(self.directory), "--listen-client-urls", self.url,
             "--advertise-client-urls", self.url, "--listen-peer-urls", peers,
             "--initial-advertise-peer-urls", peers, "--initial-cluster", f"default={peers}", "--logger", "zap",
             "--log-level", "error"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        deadline = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=1) as answer:
                    if b"true" in answer.read():
                        return
            except (OSError, urllib.error.URLError):
                pass
            assert time.monotonic() < deadline and self.process.poll() is None
            time.sleep(0.05)

    def stop(self):
        self.process.kill()
        self.process.wait()

    def lose_data(self):
        """Begins anew at the same address, as from an empty disk."""
        self.stop()
        shutil.rmtree(self.directory)
        self.start()

    def ctl(self, *arguments):
        done = subprocess.run(
            ["etcdctl", "--endpoints", self.url, *arguments],
            env={"ETCDCTL_API": "3", "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout


def join(host, name, url, *options):
    """Lets a host of store_hosts.py join the group "prod"."""
    state = host.environment["ONECOPY_STORE_DIR"] + "-state"
    host.name = name
    host.server = host.start(
        "serve", "--listen", "127.0.0.1:0", "--group", "prod", "--etcd", url, "--name", name, "--state", state, *options
    )
    line = host.server.stdout.readline()
    found = re.fullmatch(r"Other hosts pull from (\S+)\.\n", line)
    assert found, (line, host.server.communicate())
    host.address = found.group(1)
    return host
