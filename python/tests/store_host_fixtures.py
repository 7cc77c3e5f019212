# SPDX-License-Identifier: Apache-2.0
"""Fixtures that make hosts, for the tests of versions that go from host to host; conftest.py imports them."""

from __future__ import annotations

import pytest

from store_hosts import Cable, Host


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
