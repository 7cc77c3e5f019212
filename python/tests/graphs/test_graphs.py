# SPDX-License-Identifier: Apache-2.0
"""onecopy.graphs: captured graphs share their memory, and held outputs are never overwritten."""

from __future__ import annotations

import logging
import random

import pytest

torch = pytest.importorskip("torch", reason="wants torch installed")

from onecopy import InvalidArgument, Unsupported, graphs
from support.graph_programs import SHAPES, Place, compiled, poison
from support.processes import in_threads

CPU = Place("cpu")
WIDTH, Layers, same = CPU.width, CPU.layers, CPU.same
LARGEST = max(SHAPES)


pytestmark = pytest.mark.usefixtures("fresh_compiler")
# Graphs of inductor's code are for cards.
CODEGENS = pytest.mark.parametrize(
    "on, codegen", [("cpu", "aot"), ("cuda:0", "aot"), ("cuda:0", "inductor")], indirect=["on"]
)


@pytest.mark.parametrize("order", [sorted(SHAPES), sorted(SHAPES, reverse=True), SHAPES])
@CODEGENS
def test_all_shapes_take_the_memory_of_the_largest(on, codegen, order):
    wide, alone, pool = on.layers(1024), on.arena(), on.arena()
    compiled(wide, alone, codegen=codegen)(on.rows(LARGEST, 1024))
    model = compiled(wide, pool, codegen=codegen)
    for count in (*order, *order):
        x = on.rows(count, 1024)
        assert on.same(model(x), wide(x))
    report = graphs.report(pool)
    assert report.shared_bytes == graphs.report(alone).shared_bytes > 0
    assert report.captures >= len(SHAPES) - 1  # a first one may be for one shape alone
    assert report.replays and not report.eager, str(report)
    assert report.saved_bytes > 0


def test_two_functions_in_one_arena_take_the_memory_of_the_larger():
    pool = graphs.graph_pool_handle()
    first, second = compiled(Layers(1024), pool), compiled(Layers(1024), pool)
    first(torch.randn(500, 1024))
    before = graphs.report(pool).shared_bytes
    second(torch.randn(300, 1024))
    assert graphs.report(pool).shared_bytes == before


@pytest.mark.parametrize("outputs", ["copy", "view", "private"])
def test_held_outputs_stay_right_whatever_is_replayed(on, outputs):
    model, chance, held, pool = on.layers(), random.Random(1), [], on.arena()
    call = compiled(model, pool, outputs=outputs)
    for _ in range(300):
        x = on.rows(chance.choice(SHAPES))
        held.append((call(x), model(x)))
        if outputs != "view":
            poison(pool)
        if len(held) > 5:
            held.pop(chance.randrange(5))
        assert all(on.same(got, want) for got, want in held)


@pytest.mark.parametrize("swaps", [True, False])
def test_an_output_in_place_that_is_held_is_moved_and_before_torch_2_12_a_view_of_it_is_refused(monkeypatch, swaps):
    """On the CPU results are always the caller's own; so the leases of cards are tried here by themselves."""
    if not swaps:
        monkeypatch.setattr(torch.UntypedStorage, "_swap_data_ptr_", None, raising=False)
    elif not hasattr(torch.UntypedStorage, "_swap_data_ptr_"):
        pytest.skip("wants torch 2.12 or later")
    memory, leases = torch.arange(6.0), graphs._leases.Leases()

    def lease():
        storage = torch.frombuffer(memoryview(memory.numpy()), dtype=torch.uint8).untyped_storage()
        leases.add(storage)
        tensor = torch.empty(0).set_(storage, 0, (6,), (1,))
        leases.show_all([tensor])
        return tensor

    held = lease()
    leases.evacuate()
    memory += 1
    assert held.tolist() == list(range(6)) and len(leases) == 0
    part = lease()[1:3]
    if swaps:
        leases.evacuate()
        memory += 1
        assert part.tolist() == [2, 3]
    else:
        with pytest.raises(graphs.OutputInUse, match="release them") as raised:
            leases.evacuate()
        assert raised.value.code == "output_in_use"
        assert len(leases) == 1
        del part
        leases.evacuate()
        assert leases.is_empty


@CODEGENS
def test_caches_are_written_where_they_are_and_a_moved_one_is_noticed(on, codegen):
    model, plain, mine, theirs = on.decoders()
    pool = on.arena()
    call = compiled(model, pool, dynamic=False, codegen=codegen)
    for turn in range(12):
        x, at, which = on.rows(2), torch.tensor([turn, turn + 9], device=on.device), turn // 2 % 3
        got, cache = call(x, mine[which], at)
        want, _ = plain(x, theirs[which], at)
        poison(pool)
        assert on.same(got, want) and cache.data_ptr() == mine[which].data_ptr()
        assert all(on.same(a, b) for a, b in zip(mine, theirs, strict=True)) and model.count == plain.count
    report = graphs.report(pool)
    anew = 2 if on.is_card else 0  # each of the three caches once, with the first capture
    assert report.moves == 5 and report.captures == 1 and report.recaptured == anew and not report.eager, str(report)
    assert f"5 moves ({anew} captured anew)" in str(report) and f"to {mine[2].data_ptr():#x}" in report.moved_to[-1]


def test_caches_that_move_at_every_call_run_eagerly_until_they_rest(on):
    model, plain, mine, theirs = on.decoders(caches=12)  # more than a shape has graphs on a card
    pool = on.arena()
    call = compiled(model, pool, dynamic=False)
    for turn in range(40):
        x, at = on.rows(2), torch.tensor([turn % 20, turn % 20 + 1], device=on.device)
        which = turn % 12 if turn < 30 else 1
        assert on.same(call(x, mine[which], at)[0], plain(x, theirs[which], at)[0])
    report = graphs.report(pool)
    (reason,) = report.eager
    assert "at new addresses at nearly every call" in reason and report.moves < 16 and report.eager[reason] > 8
    assert report.replays >= report.moves + 7


def test_a_parameter_with_new_memory_is_noticed():
    model, x = torch.nn.Linear(8, 8), torch.randn(2, 8)
    call = compiled(model, dynamic=False)
    for _ in range(3):
        assert same(call(x), model(x))
        model.weight.data = torch.randn(8, 8)


def test_inputs_in_place_are_read_where_they_are():
    pool, model = graphs.arena(), Layers()
    call = compiled(model, pool, inputs="place", dynamic=False)
    held = [torch.randn(4, WIDTH) for _ in range(2)]
    for x in (*held, *held):
        assert same(call(x), model(x))
    assert graphs.report(pool).moves == 3


def everything(x, n):
    low, high = x.min(dim=1), x.max()
    parts = torch.split(x, 2, dim=1)
    mean, spread = torch.var_mean(x, dim=0)
    best = torch.topk(x, 2, dim=1)
    empty = x[:0] * 2
    y = x.t().contiguous() + n
    return low.values, high, parts[1] * 2, mean, spread, best.indices, empty, y, y.view(-1), x, {"n": n, "b": x > 0}


def test_results_of_all_kinds_are_those_of_eager_execution(on):
    pool = on.arena()
    call = compiled(everything, pool)
    for rows in (6, 9, 6, 9, 7):
        x = on.rows(rows, 8)
        for _ in range(2):
            got, want = call(x, 3), everything(x, 3)
            poison(pool)
            flat = zip(torch.utils._pytree.tree_leaves(got), torch.utils._pytree.tree_leaves(want), strict=True)
            assert all(torch.equal(a, b) if torch.is_tensor(a) else a == b for a, b in flat)
            assert got[7].untyped_storage()._cdata == got[8].untyped_storage()._cdata
            assert got[9] is x or got[9].data_ptr() == x.data_ptr()
    assert not graphs.report(pool).eager, str(graphs.report(pool))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.complex64, torch.int64, torch.bool])
def test_dtypes(on, dtype):
    def work(x):
        return torch.cat([x, x.flip(0)]), x.to(torch.float32) if not dtype.is_complex else x.conj()

    x = (on.rows(5, 3) * 3).to(dtype)
    call = compiled(work, dynamic=False)
    for _ in range(2):
        for got, want in zip(call(x), work(x), strict=True):
            assert torch.equal(got, want) and got.dtype == want.dtype


def test_inputs_of_other_layouts(on):
    call = compiled(lambda x: x * 2, dynamic=False)
    base = on.rows(6, 8)
    for x in (base.t(), base[1:, 2:], base[:, ::2], on.rows(1, 4).expand(3, 4), base[:0]):
        for _ in range(2):
            assert torch.equal(call(x), x * 2) and call(x).stride() == (x * 2).stride()


def test_random_numbers_go_on_from_call_to_call(on):
    call = compiled(lambda x: torch.nn.functional.dropout(x, 0.5, training=True), dynamic=False)
    x = torch.ones(1000, device=on.device)
    call(x)
    first, second = call(x), call(x)
    assert not torch.equal(first, second)
    assert 300 < int((first == 0).sum()) < 700


def test_an_operator_that_fails_leaves_all_as_it_was():
    def pick(x, at):
        return (x * 2).index_select(0, at)

    pool = graphs.arena()
    call = compiled(pick, pool, dynamic=False)
    x, good, bad = torch.randn(4, 3), torch.tensor([3]), torch.tensor([4])
    with pytest.raises(IndexError):
        call(x, bad)
    assert graphs.report(pool).captures == 0 and pool.footprint.windows == 0
    for _ in range(2):
        assert torch.equal(call(x, good), pick(x, good))
        with pytest.raises(IndexError):
            call(x, bad)


def test_what_a_tensor_contains_decides_nothing():
    from torch.fx.experimental.proxy_tensor import make_fx

    from onecopy.graphs._operators import NotReplayable
    from onecopy.graphs._record import record

    x = torch.tensor([0.0, 1.0])
    for function in (lambda t: torch.nonzero(t) * 2, lambda t: torch.masked_select(t, t > 0)):
        with pytest.raises(NotReplayable, match="depends on what a tensor contains"):
            record(make_fx(function)(x), [x], set())


def test_a_shape_without_room_runs_eagerly_and_says_so(on, caplog):
    limit, many = (64 << 20, 20_000) if on.is_card else (4 << 20, 2000)
    pool, model = on.arena(limit=limit), on.layers(1024)
    call = compiled(model, pool, dynamic=False)
    small, large = on.rows(3, 1024), on.rows(many, 1024)
    with caplog.at_level(logging.WARNING, "onecopy.graphs"):
        for _ in range(2):
            for x in (small, large):
                assert on.same(call(x), model(x))
    report = graphs.report(pool)
    (reason,) = report.eager
    assert "no room" in reason and f"limit is {limit}" in reason and report.eager[reason] == 2
    assert report.captures == 1 and reason in str(report)
    assert len([record for record in caplog.records if record.name == "onecopy.graphs"]) == 1


def test_graphs_that_were_not_used_for_longest_go_first(on):
    first, most = (20_000, 80 << 20) if on.is_card else (1000, 2 << 20)
    pool = on.arena()
    call = compiled(on.layers(1024), pool, limit=2)
    for rows in (first, 20, 30, 40):
        call(on.rows(rows, 1024))
    report = graphs.report(pool)
    assert len(report.graphs) == 2 and report.evicted >= 1
    if on.is_card:
        torch.cuda.empty_cache()
    assert graphs.report(pool).shared_bytes <= most, "the memory of the large one went with it"


def test_a_parked_arena_has_no_memory_and_goes_on_as_before(on):
    pool, model, x, unknown = on.arena(), on.layers(), on.rows(500), on.rows(50)
    call = compiled(model, pool, dynamic=False)
    call(x)
    free = torch.cuda.mem_get_info()[0] if on.is_card else 0
    pool.park()
    assert graphs.report(pool).shared_bytes == 0 and graphs.report(pool).parked
    assert not on.is_card or torch.cuda.mem_get_info()[0] > free
    for given in (x, unknown):
        with pytest.raises(InvalidArgument, match="resume"):
            call(given)
    pool.resume()
    for _ in range(2):
        assert on.same(call(x), model(x))
    assert graphs.report(pool).captures == 1
    assert on.same(call(unknown), model(unknown))


def test_graphs_with_gradients_run_eagerly_and_are_counted():
    pool, model = graphs.arena(), Layers()
    call = compiled(model, pool, dynamic=False)
    x = torch.randn(3, WIDTH)
    with torch.enable_grad():
        out = call(x)
        out.sum().backward()
    assert model.layers[0].weight.grad is not None
    (reason,) = graphs.report(pool).eager
    assert "gradients" in reason
    assert same(call(x), model(x)) and graphs.report(pool).captures == 1


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # of torch's own modules
def test_a_graph_of_inductor_on_the_cpu_runs_uncaptured_and_is_counted():
    """It was refused, and with it a model for a card of which one piece between two graph breaks is on the CPU."""
    pool = graphs.arena("cpu")
    call = compiled(lambda x, y: x @ y, pool, codegen="inductor")
    x, y = torch.randn(2, 8, 8)
    with torch.no_grad():
        assert torch.equal(call(x, y), x @ y)
    report = graphs.report(pool)
    assert report.captures == 0
    (reason,) = report.eager
    assert "inductor" in reason
    assert "aot" in reason


def test_threads_take_turns_in_one_arena():
    pool, model, wrong = graphs.arena(), Layers(), []
    # Not with fullgraph=True: torch counts the frames of all threads together, and refuses calls by mistake.
    call = torch.compile(model, backend=graphs.backend(pool), dynamic=True)
    inputs = [torch.randn(rows, WIDTH) for rows in SHAPES]
    wanted = [model(x) for x in inputs]
    for x in inputs:
        call(x)

    def work(seed):
        chance = random.Random(seed)
        with torch.no_grad():
            for _ in range(60):
                at = chance.randrange(len(inputs))
                if not same(call(inputs[at]), wanted[at]):
                    wrong.append(at)

    in_threads(work, [(seed,) for seed in range(4)])
    assert not wrong


def test_capture_runs_once_and_replays():
    pool = graphs.arena()
    x = torch.randn(5)
    replay = graphs.capture(lambda x: x.sin() + 1, x, arena=pool)
    assert graphs.report(pool).captures == 1 and graphs.report(pool).replays == 0
    with torch.enable_grad():
        assert torch.equal(replay(x), x.sin() + 1)
    assert graphs.report(pool).captures == 1 and graphs.report(pool).replays == 1


def test_torch_knows_the_backend_by_name():
    x = torch.randn(3, WIDTH)
    model = Layers()
    call = torch.compile(model, backend="onecopy", dynamic=False, options={"limit": 3})
    before = graphs.report(graphs.default_arena()).captures
    for _ in range(2):
        assert same(call(x), model(x))
    assert graphs.report(graphs.default_arena()).captures == before + 1
    with pytest.raises(Exception, match="at least 1"):
        torch.compile(model, backend="onecopy", options={"limit": 0})(x)


def test_the_report_is_a_table():
    pool = graphs.arena()
    call = compiled(everything, pool, dynamic=False)
    for _ in range(2):
        call(torch.randn(6, 8), 3)
    text = str(graphs.report(pool))
    assert "1 captures, 1 replays" in text and "float32[6, 8]" in text and "slower: aten." in text


@pytest.mark.parametrize(
    "options, words",
    [
        ({"arena": "a pool"}, "not a pool"),
        ({"inputs": "move"}, "copy, place"),
        ({"outputs": "mine"}, "copy, view, private"),
        ({"limit": True}, "at least 1"),
    ],
)
def test_bad_options_are_refused(options, words):
    with pytest.raises(InvalidArgument, match=words):
        graphs.backend(**options)


def test_devices_that_have_no_graphs_are_refused():
    with pytest.raises(InvalidArgument, match="aot, inductor"):
        graphs.backend(codegen="triton")
    with pytest.raises(Unsupported, match="CPU and on CUDA devices"):
        graphs.arena("mps")


def test_keys_that_never_come_again_run_eagerly_and_one_that_does_is_captured():
    pool, model = graphs.arena(), Layers()
    call = compiled(model, pool, limit=2)
    for count in range(2, 60):
        x = torch.randn(count, WIDTH)
        assert same(call(x), model(x))
    report = graphs.report(pool)
    (reason,) = report.eager
    assert "nearly every call has new sizes" in reason and report.captures < 25
    for _ in range(80):
        assert same(call(x), model(x))
    assert graphs.report(pool).replays >= 10


def test_shapes_that_cannot_be_captured_are_kept_up_to_the_limit_as_well():
    pool = graphs.arena(limit=1 << 16)
    call = compiled(lambda x: torch.sin(x * 2) + 1, pool, dynamic=True, limit=2)
    for count in range(100_000, 100_008):
        x = torch.randn(count)
        assert torch.equal(call(x), torch.sin(x * 2) + 1)
    [function] = pool.functions
    assert len(function.entries) == 2 and "no room" in str(function.eager)


def test_placed_inputs_that_move_at_every_call_run_eagerly_in_the_end():
    pool = graphs.arena()
    call = compiled(lambda x: torch.sin(x * 2) + 1, pool, inputs="place")
    inputs = [torch.randn(1000) for _ in range(40)]  # all alive, so that each is elsewhere
    for x in inputs:
        assert torch.equal(call(x), torch.sin(x * 2) + 1)
    report = graphs.report(pool)
    assert report.moves < 25 and any("at new addresses at nearly every call" in reason for reason in report.eager)


def test_a_number_made_of_a_dynamic_size_does_not_keep_a_graph_from_capture():
    pool = graphs.arena("cpu")

    def attend(x):
        return torch.nn.functional.scaled_dot_product_attention(x[None], x[None], x[None])[0]  # divides by sqrt(width)

    call = torch.compile(attend, backend=graphs.backend(pool), dynamic=True)
    for width in (4, 6, 4, 6):
        x = torch.randn(3, width)
        torch.testing.assert_close(call(x), attend(x))
    report = graphs.report(pool)
    assert report.replays == 2 and not report.eager, str(report)


def test_an_arena_is_on_the_device_of_its_first_graph():
    pool = graphs.graph_pool_handle()
    assert graphs.report(pool).shared_bytes == 0 and "no device yet" in str(graphs.report(pool))
    pool.park()  # without effect: nothing is there
    compiled(Layers(), pool)(torch.randn(3, WIDTH))
    assert pool.device == torch.device("cpu")
    with pytest.raises(InvalidArgument, match="arena is on cpu, and this graph on cuda:0"):
        pool.bind("cuda:0")
