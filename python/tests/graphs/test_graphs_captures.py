# SPDX-License-Identifier: Apache-2.0
"""The surroundings of a capture of onecopy.graphs, where no card is needed."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys

import pytest

from support.devices import on_device

pytest.importorskip("torch", reason="wants torch installed")

import torch

from onecopy import _core, graphs
from onecopy.device import captures
from onecopy.graphs import _pool
from onecopy.graphs._captures import _Collector

pytestmark = pytest.mark.usefixtures("device_processes")


def test_of_two_captures_at_a_time_the_last_one_to_end_lets_the_collector_go_on():
    collector = _Collector()
    first, second = collector.paused(), collector.paused()
    assert gc.isenabled()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not gc.isenabled(), "the second capture is still under way"
    second.__exit__(None, None, None)
    assert gc.isenabled()


def test_pinned_memory_waits_for_captures_from_the_first_arena_on_a_card_on(monkeypatch):
    """A point after all work, which ends dropped pinned memory, would spoil them."""
    done = []
    monkeypatch.setattr(captures, "watch", lambda: done.append("watched"))
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "Stream", lambda: done.append("a stream"))
    monkeypatch.setattr(_core, "_prepare_graphs", lambda _: False)
    graphs.Arena()._prepare_captures(torch.device("cpu"))
    assert done == ["watched", "a stream"]


def test_a_collector_that_was_off_stays_off():
    gc.disable()
    try:
        with _Collector().paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.parametrize("drops", [False, True])
def test_a_look_at_a_pool_leaves_the_numbers_of_its_name_all_their_references(monkeypatch, drops):
    """torch drops one reference too many of each: from pool 257 on that ended in a crash of some later line."""

    def look(pool, include_traces):
        for number in pool if drops else ():
            ctypes.pythonapi.Py_DecRef(ctypes.py_object(number))
        return []

    monkeypatch.setattr(torch.cuda, "memory_snapshot", look)
    _pool._a_look_drops_a_reference.cache_clear()
    number = int("123456")
    before = sys.getrefcount(number)
    for _ in range(10):
        _pool.segments_of((0, number))
    after = sys.getrefcount(number)
    assert after == before
    monkeypatch.undo()
    _pool._a_look_drops_a_reference.cache_clear()


def test_bytes_of_a_pool_keep_its_window_and_nothing_else():
    arena = _core._GraphArena("cpu")
    pool = _core._GraphPool(arena, 1 << 20)
    pool.keep_alive([])
    before = sys.getrefcount(pool)
    views = [_core._graph_bytes(pool, pool.base, 0) for _ in range(3)]
    assert [v.shape for v in views] == [(0,)] * 3 and sys.getrefcount(pool) == before
    del pool
    assert arena.footprint().windows == 1, "a view has the window"
    views.clear()
    assert arena.footprint().windows == 0


@on_device  # of any kind: the call is never run
def test_a_call_knows_whether_its_inputs_are_where_they_were():
    call = _core._GraphCall(_core._ArenaLock(), "cuda:0", 1, [], [])
    first, weight = torch.randn(4, 4), torch.nn.Parameter(torch.randn(4, 4))
    call.add_static_input(0, first)
    call.add_static_input(1, weight)
    assert call.is_in_place([first, weight]) and call.is_in_place([first.detach(), weight.detach()])
    others = {
        "a copy": first.clone(),
        "another order": first.t(),
        "a part": first[:3],
        "another dtype": first.view(torch.int32),
        "a sparse tensor": torch.eye(4).to_sparse(),
        "no tensor": 3,
    }
    for name, other in others.items():
        assert not call.is_in_place([other, weight]), name
    assert not call.is_in_place([first])
    weight.data = torch.randn(4, 4)
    assert not call.is_in_place([first, weight]), "its object is the old one, its memory another"


@on_device
def test_a_call_looks_at_what_a_tensor_is_now_and_not_at_what_its_object_was():
    call = _core._GraphCall(_core._ArenaLock(), "cuda:0", 1, [], [])
    one, other = torch.randn(3), torch.randn(3)
    call.add_static_input(0, one)
    torch.utils.swap_tensors(one, other)
    assert not call.is_in_place([one]) and call.is_in_place([other])
