# SPDX-License-Identifier: Apache-2.0
"""Arenas of captured graphs in listings of this machine's processes."""

from __future__ import annotations

import gc
import os

import pytest

import onecopy

torch = pytest.importorskip("torch", reason="wants torch installed")

from onecopy import graphs

PAGES = 46 << 20  # of no other test's arena: those may come and go meanwhile


def listed():
    arenas = [arena for owner in onecopy.list_owners() if owner["pid"] == os.getpid() for arena in owner["arenas"]]
    return [arena for arena in arenas if arena["mapped"] == PAGES]


def test_an_arena_is_listed_with_its_size_until_it_has_gone():
    arena = graphs.arena("cpu")
    window = arena.open(45 << 20)
    (mine,) = listed()
    assert mine == {
        "device": "cpu", "shared": PAGES, "own": 0, "mapped": PAGES, "windows": 1, "parked": False
    }  # fmt: skip
    arena.park()
    (mine,) = listed()
    assert mine["parked"] and mine["shared"] == 0
    arena.resume()
    del window, arena
    gc.collect()
    assert not listed()
