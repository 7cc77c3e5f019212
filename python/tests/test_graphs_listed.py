# SPDX-License-Identifier: Apache-2.0
"""Arenas of captured graphs in listings of this machine's processes."""

from __future__ import annotations

import gc
import os

import pytest

import onecopy

torch = pytest.importorskip("torch", reason="wants torch installed")

from onecopy import graphs  # noqa: E402


def listed():
    return [arena for owner in onecopy.list_owners() if owner["pid"] == os.getpid() for arena in owner["arenas"]]


def test_an_arena_is_listed_with_its_size_until_it_has_gone():
    before = len(listed())
    arena = graphs.arena("cpu")
    window = arena.open(5 << 20)
    (mine,) = listed()[before:]
    assert mine == {
        "device": "cpu", "shared": 6 << 20, "own": 0, "mapped": 6 << 20, "windows": 1, "parked": False
    }  # fmt: skip
    arena.park()
    assert listed()[before]["parked"] and listed()[before]["shared"] == 0
    arena.resume()
    del window, arena
    gc.collect()
    assert len(listed()) == before
