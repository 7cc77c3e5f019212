# SPDX-License-Identifier: Apache-2.0
"""Bad input of onecopy.graphs: a clear error or the eager result, and all is as it was."""

from __future__ import annotations

import types

import pytest

torch = pytest.importorskip("torch", reason="wants torch installed")

from onecopy import InvalidArgument, OutOfMappings, OutOfMemory, Unsupported, graphs
from onecopy.graphs import _compile, _context

pytestmark = pytest.mark.usefixtures("fresh_compiler")


def compiled(function, pool, **options):
    return torch.compile(function, backend=graphs.backend(pool, **options), dynamic=False, fullgraph=True)


def test_a_captured_function_inside_another_one_is_part_of_that():
    pool, other = graphs.arena(), graphs.arena()
    inner = compiled(lambda x: x * 2, other)
    outer = compiled(lambda x: inner(x) + 1, pool)
    x = torch.randn(5)
    for _ in range(3):
        assert torch.equal(outer(x), x * 2 + 1)
    assert torch.equal(inner(x), x * 2)


def test_a_capture_inside_a_capture_is_refused(monkeypatch):
    class Arena:
        def bind(self, device):
            pass

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(InvalidArgument, match="captures cannot nest"), _context.graph(object(), Arena()):
        raise AssertionError("the block has run")


class Elsewhere(torch.Tensor):
    device = property(lambda self: torch.device("cuda", self.ordinal))


def on_card(ordinal):
    tensor = torch.Tensor._make_subclass(Elsewhere, torch.zeros(2))
    tensor.ordinal = ordinal
    return tensor


def test_tensors_of_two_cards_are_refused_with_their_names():
    graph = types.SimpleNamespace(graph=types.SimpleNamespace(nodes=[]))
    assert _compile._device_of(graph, [on_card(1), torch.zeros(2)]) == torch.device("cuda", 1)
    with pytest.raises(Unsupported, match="this one uses cuda:0, cuda:1; compile the parts apart"):
        _compile._device_of(graph, [on_card(1), on_card(0)])


def test_a_parameter_whose_memory_was_freed_is_an_error_and_works_again_with_memory():
    layer, pool = torch.nn.Linear(8, 8), graphs.arena()
    call, x = compiled(layer, pool), torch.randn(3, 8)
    call(x)
    want, weight = call(x), layer.weight.detach().clone()
    storage = layer.weight.untyped_storage()
    bytes_ = storage.nbytes()
    storage.resize_(0)
    with pytest.raises(RuntimeError, match="out of bounds"):
        call(x)
    storage.resize_(bytes_)
    layer.weight.copy_(weight)
    assert torch.allclose(call(x), want)


def test_an_arena_of_another_device_is_refused_before_anything_is_compiled():
    pool = graphs.arena("cpu")
    with pytest.raises(InvalidArgument, match="arena is on cpu, and this graph on cuda:1"):
        graphs.backend(pool)(types.SimpleNamespace(graph=types.SimpleNamespace(nodes=[])), [on_card(1)])
    assert pool.footprint.windows == 0 and str(pool.device) == "cpu"


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_of_nothing_is_refused(limit):
    with pytest.raises(InvalidArgument, match=f"limit is {limit}.*at least 1"):
        graphs.backend(limit=limit)
    with pytest.raises(InvalidArgument, match=f"limit is {limit} bytes.*above 0"):
        graphs.arena(limit=limit)


@pytest.mark.parametrize("error", [OutOfMappings, OutOfMemory])
def test_without_addresses_or_memory_for_another_window_a_shape_runs_eagerly_and_others_go_on(error, monkeypatch):
    pool = graphs.arena()
    call, known, new = compiled(lambda x: x * 2 + 1, pool), torch.randn(5), torch.randn(7)
    call(known)
    before = pool.footprint.windows

    def refuse(nbytes):
        raise error("of a test")

    monkeypatch.setattr(pool, "open", refuse)
    for _ in range(2):
        assert torch.equal(call(new), new * 2 + 1)
    assert pool.footprint.windows == before and graphs.report(pool).eager == {"no room: of a test": 2}
    assert torch.equal(call(known), known * 2 + 1) and graphs.report(pool).replays == 1


def test_an_arena_on_a_card_in_a_process_forked_from_one_that_used_cuda_is_refused_with_torchs_text(monkeypatch):
    """graphs-compatibility.md has the text."""
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    with pytest.raises(Unsupported, match="Cannot re-initialize CUDA in forked subprocess"):
        graphs.arena("cuda:0")
    assert graphs.arena("cpu").device.type == "cpu"
