# SPDX-License-Identifier: Apache-2.0
"""etcd, really started, and hosts of a group, for tests."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import socket
import subprocess
import time

import pytest

import onecopy
from support.store_hosts import wait_until

ELEMENTS = 5_000_000  # two chunks
API = {"ETCDCTL_API": "3", "PATH": os.environ["PATH"]}


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class Etcd:
    """A member of etcd, of a cluster of its own unless cluster_of() makes several; its data stay when it is stopped."""

    def __init__(self, directory, *options, at="127.0.0.1", enter=()):
        if shutil.which("etcd") is None:
            pytest.skip("wants etcd")
        self.directory = directory
        self.options = options
        self.enter = enter  # what its commands begin with
        self.url, self.peer_url = (f"http://{at}:{free_port()}" for _ in range(2))
        self.cluster = [self]
        self.process = None

    @classmethod
    def started(cls, directory, *options, **where):
        made = cls(directory, *options, **where)
        made.start()
        return made

    @classmethod
    def cluster_of(cls, directory, members, where=()):
        cluster = [cls(directory / f"etcd{i}", **(where[i] if where else {})) for i in range(members)]
        for one in cluster:
            one.cluster = cluster
            one.launch()
        for one in cluster:
            one.wait()
        return cluster

    def launch(self):
        names = ",".join(f"{one.directory.name}={one.peer_url}" for one in self.cluster)
        self.process = subprocess.Popen(
            [*self.enter, "etcd", "--name", self.directory.name, "--data-dir", str(self.directory), "--listen-client-urls", self.url,
             "--advertise-client-urls", self.url, "--listen-peer-urls", self.peer_url,
             "--initial-advertise-peer-urls", self.peer_url, "--initial-cluster", names, "--logger", "zap",
             "--log-level", "error", *self.options],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def wait(self):
        deadline = time.monotonic() + 60
        while subprocess.run(self.command("endpoint", "health"), env=API, capture_output=True).returncode != 0:
            assert time.monotonic() < deadline and self.process.poll() is None

    def start(self):
        self.launch()
        self.wait()

    def stop(self):
        self.process.kill()
        self.process.wait()

    def lose_data(self):
        """Begins anew at the same address, as from an empty disk."""
        self.stop()
        shutil.rmtree(self.directory)
        self.start()

    def free_space(self):
        """Drops what ctl() has put, as an administrator does after the alarm."""
        self.ctl("del", "--prefix", "filler")
        self.ctl("compact", re.search(r'"revision":(\d+)', self.ctl("get", "x", "-w", "json")).group(1))
        self.ctl("defrag")
        self.ctl("alarm", "disarm")

    def command(self, *arguments):
        return [*self.enter, "etcdctl", "--endpoints", self.url, *arguments]

    def ctl(self, *arguments):
        done = subprocess.run(self.command(*arguments), env=API, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout


def join(host, name, url, *options, at="127.0.0.1"):
    """Lets a host of store_hosts.py join the group "prod"."""
    state = host.environment["ONECOPY_STORE_DIR"] + "-state"
    host.name = name
    host.server = host.start(
        "serve", "--listen", f"{at}:0", "--group", "prod", "--etcd", url, "--name", name, "--state", state, *options
    )
    line = host.server.stdout.readline()
    found = re.fullmatch(r"Other hosts pull from (\S+)\.\n", line)
    assert found, (line, host.server.communicate())
    host.address = found.group(1)
    return host


def present(host):
    """Returns the names of the members that reach etcd."""
    with contextlib.suppress(onecopy.Error):
        return {one["host"] for one in host.connect().hosts("llama") if one["is_present"] and one["is_member"]}
    return set()


def weights(number, elements=ELEMENTS):
    import numpy as np

    return {"w": np.full(elements, number, np.float32)}


def publish(host, number, *, name="llama", elements=ELEMENTS, **options):
    options = {"everywhere": True, "timeout": 60, **options}
    return host.connect().publish(name, weights(number, elements), **options)


def shown(host, name="llama"):
    """Returns the number of the version that a reader sees, and the number in its elements."""
    try:
        version = host.connect(framework="numpy").open(name)
    except onecopy.StaleHandle:
        return None
    values = next(iter(version.values()))
    assert (values == values[0]).all()
    return version.version, int(values[0])


def wait_for(hosts, number, value):
    wait_until(lambda: [shown(one) for one in hosts] == [(number, value)] * len(hosts))


def save(host, number, elements=ELEMENTS):
    import numpy as np

    path = host.environment["ONECOPY_STORE_DIR"] + f"-{number}.npy"
    np.save(path, weights(number, elements)["w"])
    return path


def version_at(host, name):
    return next(one["version"] for one in host.connect().hosts("llama") if one["host"] == name)


def starve(pid):
    """Lets a process open no more files. Returns a function that lets it open files again."""
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, limits[1]))
    return lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


def problems(hosts):
    """Returns what keeps each host from changing anything."""
    return [host.connect()._core.group_problem() for host in hosts]
