# SPDX-License-Identifier: Apache-2.0
"""Fixtures that make hosts, for the tests of versions that go from host to host; conftest.py imports them."""

from __future__ import annotations

import contextlib

import pytest

from support import networks
from support.store_group import Etcd, join, present
from support.store_hosts import Cable, Host, wait_until


@pytest.fixture
def hosts(tmp_path):
    """A function that makes hosts, which end with the test."""
    made = []

    def make(enter=()):
        made.append(Host(tmp_path / f"store{len(made)}", tmp_path / f"key{len(made)}", enter))
        return made[-1]

    yield make
    for host in made:
        host.end()


@pytest.fixture
def cable():
    made = []

    def make(address):
        made.append(Cable(address))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def pair(hosts, cable):
    """A host that serves, the cable to it, and a host that pulls."""
    there, here = hosts(), hosts()
    return there, cable(there.serve()), here


@pytest.fixture
def etcd(tmp_path):
    made = Etcd.started(tmp_path / "etcd")
    yield made
    made.stop()


@pytest.fixture
def group(hosts, etcd):
    """Three hosts that are members of a group."""
    made = [join(hosts(), f"h{i}", etcd.url) for i in range(3)]
    wait_until(lambda: present(made[0]) == {"h0", "h1", "h2"})
    return made


@pytest.fixture
def connected():
    """A function that makes network namespaces which are connected with each other."""
    if why := networks.obstacle():
        pytest.skip(why)
    with contextlib.ExitStack() as stack:

        def connect(count):
            made = networks.Networks(count)
            stack.callback(made.close)
            return made

        yield connect
