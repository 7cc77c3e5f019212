# SPDX-License-Identifier: Apache-2.0
"""onecopy.graphs on a card: only where torch has a GPU (tests/gpu/python.sh runs them there)."""

from __future__ import annotations

import gc
import sys
import threading

import pytest

torch = pytest.importorskip("torch", reason="wants torch installed")

from onecopy import InvalidArgument, graphs
from onecopy.graphs._pool import segments_of
from support.graph_programs import SHAPES, Place, compiled, no_card, poison
from support.processes import in_threads, interpret

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.skipif(bool(no_card()), reason=no_card()),
]

DEVICE = "cuda:0"
CARD = Place(DEVICE)
WIDTH, rows, same, Layers = CARD.width, CARD.rows, CARD.same, CARD.layers


def test_without_an_exchange_of_memory_a_held_output_is_moved_and_a_view_of_it_is_refused(monkeypatch):
    monkeypatch.setattr(torch.UntypedStorage, "_swap_data_ptr_", None, raising=False)  # as before torch 2.12
    model, pool = Layers(), graphs.arena(DEVICE)
    call = compiled(model, pool, outputs="view", dynamic=False)
    x = rows(5)
    call(x)
    held = call(x)
    want = held.clone()
    other = call(x * 2)
    assert torch.equal(held, want) and same(other, model(x * 2)) and graphs.report(pool).held_outputs == 1
    part = other[1:2]
    want = part.clone()
    with pytest.raises(graphs.OutputInUse, match="release them"):
        call(x)
    del other
    with pytest.raises(graphs.OutputInUse):
        call(x)
    assert torch.equal(part, want)
    del part
    assert same(call(x), model(x))


def test_an_output_in_place_outlives_its_graph():
    call = compiled(Layers(), graphs.arena(DEVICE), outputs="view", dynamic=False)
    x = rows(5)
    call(x)
    held = call(x)
    want = held.clone()
    torch._dynamo.reset()
    del call
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.equal(held, want)


def test_a_pending_call_keeps_the_cache_that_it_was_given():
    model, plain, mine, theirs = CARD.decoders()
    call = compiled(model, graphs.arena(DEVICE), dynamic=False)
    inputs = [(rows(2), torch.tensor([turn, turn + 5], device=DEVICE)) for turn in range(9)]
    for which in range(3):
        call(*inputs[0][:1], mine[which], inputs[0][1])
        plain(*inputs[0][:1], theirs[which], inputs[0][1])
    torch.cuda._sleep(200_000_000)
    outs = [call(x, mine[turn % 3], at)[0] for turn, (x, at) in enumerate(inputs)]
    wanted = [plain(x, theirs[turn % 3], at)[0] for turn, (x, at) in enumerate(inputs)]
    assert all(same(a, b) for a, b in zip(outs, wanted, strict=True))


def test_threads_with_caches_of_their_own_never_write_each_others():
    """Another thread may move a graph between a thread's comparison of its cache and the launch."""

    def step(x, cache, at):
        cache.index_copy_(0, at, x * 2)
        return cache.sum(0)

    call = compiled(step, graphs.arena(DEVICE), dynamic=False)
    caches = [torch.zeros(32, WIDTH, device=DEVICE) for _ in range(3)]
    inputs = [rows(2) for _ in caches]
    places = [torch.tensor([at, at + 16], device=DEVICE) for at in range(16)]
    for x, cache in zip(inputs, caches, strict=True):
        call(x, cache, places[0])

    def work(x, cache):
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
            for turn in range(160):
                call(x, cache, places[turn % 16])
            torch.cuda.current_stream().synchronize()

    torch.cuda.synchronize()
    in_threads(work, zip(inputs, caches, strict=True))
    for x, cache in zip(inputs, caches, strict=True):
        assert torch.equal(cache, torch.cat([(x * 2)[:1].expand(16, -1), (x * 2)[1:].expand(16, -1)]))


class Tables(torch.nn.Module):
    """Makes a table in its first call, and keeps it."""

    def __init__(self):
        super().__init__()
        self.table = None

    def __call__(self, boxed):
        (x,) = boxed
        if self.table is None:
            self.table = torch.arange(x.shape[1], device=DEVICE, dtype=torch.float32) * 2
        return [x + self.table]


def test_what_a_function_keeps_of_its_first_call_is_never_overwritten():
    from onecopy.graphs._cuda_run import CudaRun

    pool, tables = graphs.arena(DEVICE), Tables()
    x = rows(64)
    run = CudaRun(tables, [x], set(), pool)
    graph = run.make([x], "copy")
    want = torch.arange(WIDTH, device=DEVICE, dtype=torch.float32) * 2
    for _ in range(3):
        poison(pool)
        assert torch.equal(tables.table, want)
        assert torch.equal(graph.replay([x])[0], x + want)


def test_what_a_capture_leaves_alive_is_never_overwritten():
    from onecopy.graphs._cuda import CudaGraph

    pool, kept = graphs.arena(DEVICE), []

    def keep(boxed):
        (x,) = boxed
        kept.append(x * 3)
        return [kept[-1] + 1]

    x = rows(64)
    graph = CudaGraph(keep, [x], set(), pool, "copy")
    (out,) = graph.replay([x])
    poison(pool)
    assert same(kept[0], x * 3) and same(out, x * 3 + 1)
    assert graph.private_bytes > 0


def test_numbers_in_tensors_of_the_cpu_are_not_baked_in():
    pool = graphs.arena(DEVICE)
    call = compiled(lambda x, by: x * by, pool, dynamic=False)
    x = rows(4)
    for by in (2.0, 3.0, 2.0, 5.0):
        assert same(call(x, torch.tensor(by)), x * by)
    assert graphs.report(pool).captures == 3


def test_a_capture_that_fails_leaves_no_trace_and_the_call_its_result():
    pool, model = graphs.arena(DEVICE), Layers()
    good = compiled(model, pool, dynamic=False)
    x = rows(8)
    good(x)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()  # gives addresses back that its warm-up had
    before = pool.footprint.windows, pool.footprint.shared

    def waits(boxed):
        (y,) = boxed
        return [y * y.sum().item()]

    def breaks(boxed):
        (y,) = boxed
        if torch.cuda.is_current_stream_capturing():
            raise ValueError("in the middle")
        return [y * 2]

    from onecopy.graphs._cuda_run import CudaRun
    from onecopy.graphs._operators import NotReplayable

    for function, words in ((waits, "capture"), (breaks, "in the middle")):
        run = CudaRun(function, [x], set(), pool)
        assert run.results[0].shape == x.shape
        with pytest.raises(NotReplayable, match=words):
            run.make([x], "copy")
        gc.collect()
        assert same(good(x), model(x))
    torch.cuda.empty_cache()
    assert (pool.footprint.windows, pool.footprint.shared) == before
    other = compiled(Layers(), pool, dynamic=False)
    for _ in range(2):
        other(x)
    assert graphs.report(pool).captures == 2 and not graphs.report(pool).eager


def test_pinned_memory_that_is_dropped_meanwhile_spoils_no_capture():
    import onecopy

    model, done, failed = Layers(), threading.Event(), []

    def drop_pinned_memory():
        try:
            while not done.is_set():
                onecopy.empty(4096, pin=True)
        except Exception as error:
            failed.append(error)

    other = threading.Thread(target=drop_pinned_memory)
    other.start()
    try:
        for _ in range(5):
            pool = graphs.arena(DEVICE)
            call = compiled(model, pool)
            for count in SHAPES:
                call(rows(count))
            report = graphs.report(pool)
            assert report.captures == len(report.graphs) > 1 and not report.eager, str(report)
    finally:
        done.set()
        other.join()
    assert not failed


def test_two_streams_take_turns_in_one_arena():
    pool, model = graphs.arena(DEVICE), Layers(2048)
    call = compiled(model, pool, dynamic=False)
    streams = [torch.cuda.Stream() for _ in range(2)]
    inputs = [rows(count, 2048) for count in (1024, 800)]
    wanted = [model(x) for x in inputs]
    for x in inputs:
        call(x)
    torch.cuda.synchronize()
    for _ in range(50):
        outs = []
        for stream, x in zip(streams, inputs, strict=True):
            with torch.cuda.stream(stream):
                outs.append(call(x))
        torch.cuda.synchronize()
        assert all(same(a, b) for a, b in zip(outs, wanted, strict=True))


def test_a_call_while_another_graph_is_captured_runs_eagerly_in_it():
    pool, model = graphs.arena(DEVICE), Layers()
    call = compiled(model, pool, dynamic=False)
    x = rows(4)
    call(x), call(x)
    torch.cuda.synchronize()
    outer = torch.cuda.CUDAGraph()
    with torch.cuda.graph(outer):
        out = call(x)
    x.copy_(rows(4))
    outer.replay()
    assert same(out, model(x))
    assert any("another graph" in reason for reason in graphs.report(pool).eager)


def test_an_engine_that_captures_for_itself_shares_memory_by_one_changed_line():
    pool, model = graphs.arena(DEVICE), Layers()
    runners, counts = {}, (500, 64, 8)
    model(rows(500)), torch.cuda.synchronize()
    for count in counts:
        static, captured = rows(count), torch.cuda.CUDAGraph()
        with graphs.graph(captured, pool):
            out = model(static)
        runners[count] = (captured, static, out)
    largest = pool.footprint.shared
    assert pool.footprint.own < largest * len(counts)
    held = []
    for count in (8, 500, 64, 500, 8):
        captured, static, out = runners[count]
        x = rows(count)
        static.copy_(x)
        captured.replay()
        poison(pool)
        held.append((out, model(x)))
        assert same(*held[-1])
    assert same(*held[-1]) and same(*held[-2])
    windows = pool.footprint.windows
    del captured, static, out, held
    runners.clear()
    gc.collect()
    torch.cuda.empty_cache()
    pool.collect()
    torch.cuda.empty_cache()
    assert pool.footprint.windows < windows and pool.footprint.shared == 0


def test_a_capture_of_ones_own_that_fails_leaves_no_trace():
    pool = graphs.arena(DEVICE)
    x = rows(4)
    with pytest.raises(ValueError, match="in the middle"), graphs.graph(torch.cuda.CUDAGraph(), pool):
        x * 2
        raise ValueError("in the middle")
    with pytest.raises(RuntimeError), graphs.graph(torch.cuda.CUDAGraph(), pool):
        x.sum().item()
    gc.collect()
    torch.cuda.empty_cache()
    assert pool.footprint.windows == 0 and pool.footprint.shared == 0
    captured = torch.cuda.CUDAGraph()
    with graphs.graph(captured, pool):
        out = x * 2
    captured.replay()
    assert same(out, x * 2)


def test_a_capture_inside_a_capture_is_refused_and_the_outer_one_goes_on():
    pool, x = graphs.arena(DEVICE), rows(4)
    outer = torch.cuda.CUDAGraph()
    with torch.cuda.graph(outer):
        first = x * 2
        with (
            pytest.raises(InvalidArgument, match="captures cannot nest"),
            graphs.graph(torch.cuda.CUDAGraph(), pool),
        ):
            raise AssertionError("the block has run")
        out = first + 1
    outer.replay()
    assert same(out, x * 2 + 1) and pool.footprint.windows == 0


def test_out_of_memory_in_the_middle_of_a_capture_leaves_no_trace():
    pool, x = graphs.arena(DEVICE, limit=8 << 20), rows(64)
    with pytest.raises(torch.OutOfMemoryError), graphs.graph(torch.cuda.CUDAGraph(), pool):
        x + 1
        torch.empty(64 << 20, dtype=torch.uint8, device=DEVICE)
    gc.collect()
    torch.cuda.empty_cache()
    assert pool.footprint.windows == 0 and pool.footprint.shared == 0
    captured = torch.cuda.CUDAGraph()
    with graphs.graph(captured, pool):
        out = x + 1
    captured.replay()
    assert same(out, x + 1)


def test_calls_of_a_known_shape_need_no_python():
    pool, model = graphs.arena(DEVICE), Layers()
    call = compiled(model, pool)
    inputs = [rows(count) for count in SHAPES]
    for x in inputs:
        call(x)
    (function,) = pool.functions
    assert all(entry.is_quick for entry in function.entries.values()), str(graphs.report(pool))
    function._call = None  # Python's part
    for x in inputs * 3:
        assert same(call(x), model(x))
    assert graphs.report(pool).replays == 3 * len(SHAPES)


def test_calls_that_are_queued_behind_others_keep_their_inputs_and_results():
    model = Layers()
    call = compiled(model, dynamic=False)
    inputs = [rows(8) for _ in range(20)]
    wanted = [model(x) for x in inputs]
    call(inputs[0])
    torch.cuda._sleep(200_000_000)
    outs = [call(x) for x in inputs]
    assert all(same(out, want) for out, want in zip(outs, wanted, strict=True))


def test_results_are_memory_that_other_streams_may_note():
    call = compiled(Layers(), dynamic=False)
    x = rows(8)
    call(x)
    out = call(x)
    side = torch.cuda.Stream()
    out.record_stream(side)
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)
        want = out.clone()
    address = out.data_ptr()
    del out
    assert torch.empty(8, WIDTH, device=DEVICE).data_ptr() != address  # the side stream has not come to it yet
    torch.cuda.synchronize()
    assert same(want, call(x))


def test_results_that_nobody_holds_are_given_back():
    call = compiled(Layers(), dynamic=False)
    x = rows(64)
    call(x), call(x)
    before = torch.cuda.memory_allocated()
    for _ in range(20):
        call(x)
    assert torch.cuda.memory_allocated() == before


def test_many_inputs_take_several_copies():
    def add(tensors):
        return [t * 2 for t in tensors]

    tensors = [torch.randn(n + 1, device=DEVICE) for n in range(130)]
    call = compiled(add, dynamic=False)
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(call(tensors), add(tensors), strict=True))
        tensors = [torch.randn_like(t) for t in tensors]


def test_hundreds_of_pools_leave_all_numbers_their_references():
    """Their names go beyond the numbers that Python keeps for ever; see segments_of()."""
    pool = graphs.arena(DEVICE)
    for _ in range(300):
        torch.cuda.MemPool()  # takes a number
    for _ in range(20):
        number = pool.open_pool().id[1]
        before = sys.getrefcount(number)
        segments_of((0, number))
        after = sys.getrefcount(number)
        assert number > 256 and after == before


def test_addresses_of_captures_that_have_gone_are_used_again():
    """torch keeps them until it empties its caches, and each window takes as many as the card has bytes."""
    pool = graphs.arena(DEVICE)
    for _ in range((1 << 47) // torch.cuda.get_device_properties(DEVICE).total_memory + 20):
        window = pool.open_pool()
        with window.use():
            torch.empty(1 << 20, device=DEVICE)
        window.close()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.float32, torch.float64])
def test_inputs_at_odd_addresses(dtype):
    call = compiled(lambda x: x + 1, dynamic=False)
    base = (torch.rand(4099, device=DEVICE) * 100).to(dtype)
    for first in (0, 1, 2, 3, 5, 8):
        x = base[first : first + 4000]
        for _ in range(2):
            assert torch.equal(call(x), x + 1)


def test_a_thread_for_each_shape():
    pool, model = graphs.arena(DEVICE), Layers()
    call = compiled(model, pool)
    inputs = [rows(count) for count in SHAPES]
    wanted = [model(x) for x in inputs]
    for x in inputs:
        call(x)
    torch.cuda.synchronize()
    wrong = []

    def work(x, want):
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                out = call(x)
                torch.cuda.current_stream().synchronize()
                if not same(out, want):
                    wrong.append(x.shape)

    in_threads(work, zip(inputs, wanted, strict=True))
    assert not wrong


def test_an_arena_of_another_device_is_refused():
    with pytest.raises(Exception, match="arena is on cpu, and this graph on cuda:0"):
        compiled(lambda x: x + 1, graphs.arena("cpu"))(rows(2))


# --- caches at several addresses ---------------------------------------------------------------------


def write_at(x, cache, at):
    cache.index_copy_(0, at, x)
    return cache.sum(0)


def in_turn(call, order: list[int], caches: int) -> None:
    """Calls with the cache of each number in turn, and compares all results and caches with the results and caches of eager
    calls."""
    mine, theirs = [[torch.zeros(32, WIDTH, device=DEVICE) for _ in range(caches)] for _ in range(2)]
    for turn, which in enumerate(order):
        x, at = rows(1), torch.tensor([turn % 32], device=DEVICE)
        assert same(call(x, mine[which], at), write_at(x, theirs[which], at)), turn
        assert all(same(a, b) for a, b in zip(mine, theirs, strict=True)), turn


def test_caches_that_take_turns_are_captured_once_each():
    pool = graphs.arena(DEVICE)
    call = compiled(write_at, pool, dynamic=False)
    in_turn(call, [0, 1, 2, 3] * 12, caches=4)
    report = graphs.report(pool)
    assert report.captures == 1 and report.recaptured == 3 and report.moves == 47 and not report.eager, str(report)


def test_a_fifth_cache_takes_the_graph_of_the_one_that_was_used_longest_ago():
    pool = graphs.arena(DEVICE)
    call = compiled(write_at, pool, dynamic=False)
    in_turn(call, [0] * 3 + [1] * 9 + [2] * 9 + [3] * 9 + [4] * 9 + [1, 2, 3, 4] * 3, caches=5)
    assert graphs.report(pool).recaptured == 4
    assert not graphs.report(pool).eager


def test_a_graph_does_not_keep_a_cache_that_the_program_has_dropped():
    call = compiled(write_at, graphs.arena(DEVICE), dynamic=False)
    cache = torch.zeros(1 << 16, WIDTH, device=DEVICE)
    x, at = torch.ones(1, WIDTH, device=DEVICE), torch.tensor([1], device=DEVICE)
    for _ in range(3):
        call(x, cache, at)
    torch.cuda.synchronize()
    nbytes, before = cache.nbytes, torch.cuda.memory_allocated(DEVICE)
    del cache
    assert torch.cuda.memory_allocated(DEVICE) <= before - nbytes


# --- what attacks have found ------------------------------------------------------------------------


two_cards = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="wants two CUDA GPUs")


@two_cards
@pytest.mark.parametrize("codegen", ["aot", "inductor"])
def test_g14_a_graph_on_another_card_than_the_current_one(codegen):
    """torch made the pool on the current card, and its end was an assertion in torch."""
    here, pool = torch.cuda.current_device(), graphs.arena("cuda:1")
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU(), torch.nn.Linear(512, 512)).to("cuda:1")
    call, held = compiled(model, pool, dynamic=False, codegen=codegen), []
    for turn in range(24):
        x = torch.randn((64, 3, 200)[turn % 3], 512, device="cuda:1")
        held.append((call(x), model(x)))
    assert all(same(got, want) for got, want in held)
    report = graphs.report(pool)
    assert report.captures == 3 and report.shared_bytes > 0 and not report.eager, str(report)
    pool.park()
    pool.resume()
    x = torch.randn(64, 512, device="cuda:1")
    assert same(call(x), model(x)) and torch.cuda.current_device() == here


@two_cards
def test_g14_caches_move_and_graphs_go_on_another_card():
    def step(x, cache, at):
        cache.index_copy_(0, at, x)
        return cache.sum(0)

    pool = graphs.arena("cuda:1")
    call = compiled(step, pool, dynamic=False)
    mine, theirs = [[torch.zeros(32, 64, device="cuda:1") for _ in range(2)] for _ in range(2)]
    for turn in range(12):
        x = torch.randn(1 + turn % 3, 64, device="cuda:1")
        at, which = torch.arange(x.shape[0], device="cuda:1") + turn, turn // 6
        assert same(call(x, mine[which], at), step(x, theirs[which], at)), turn
    report = graphs.report(pool)
    assert report.captures == report.recaptured == 3 and not report.eager, str(report)


def test_g18_two_threads_with_an_arena_each_both_capture():
    """torch lets no other thread draw random numbers during a capture: so all are drawn before."""
    failed, reasons, inputs = [], [], [rows(count) for count in range(2, 40)]
    functions = []
    for _ in range(2):
        model, pool = Layers(), graphs.arena(DEVICE)
        functions.append((model, pool, torch.compile(model, backend=graphs.backend(pool), dynamic=True)))
        functions[-1][2](inputs[0]), functions[-1][2](inputs[1])  # torch compiles on one thread at a time

    def work(model, pool, call):
        try:
            with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
                for x in inputs:
                    if not same(call(x), model(x)):
                        failed.append(f"{x.shape[0]} rows: wrong")
        except Exception as error:
            failed.append(repr(error))
        reasons.extend(graphs.report(pool).eager)

    torch.cuda.synchronize()
    in_threads(work, functions)
    assert not failed and not reasons


def test_the_end_of_a_program_that_holds_graphs_says_nothing():
    program = f"""
import torch
from onecopy import graphs
call = torch.compile(lambda x: x * 2 + 1, backend=graphs.backend(graphs.arena({DEVICE!r})))
with torch.no_grad():
    for _ in range(3):
        call(torch.ones(4, device={DEVICE!r}))
kept = [call, graphs]
kept.append(kept)
"""
    done = interpret(program)
    assert done.returncode == 0 and "Exception ignored" not in done.stderr, done.stderr
