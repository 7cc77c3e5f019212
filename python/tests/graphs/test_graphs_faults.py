# SPDX-License-Identifier: Apache-2.0
"""Programs whose captured graphs gave other results than eager execution, each with the number that it was found under."""

from __future__ import annotations

import io
import os
import sys
import threading
import types

import pytest

torch = pytest.importorskip("torch", reason="wants torch installed")

from onecopy import graphs
from onecopy.graphs import _pool

pytestmark = pytest.mark.usefixtures("fresh_compiler")


def same(got, want):
    got, want = torch.utils._pytree.tree_leaves(got), torch.utils._pytree.tree_leaves(want)
    return len(got) == len(want) and all(
        a.dtype == b.dtype and torch.allclose(a.resolve_conj(), b.resolve_conj(), atol=1e-5) for a, b in zip(got, want)
    )


def check(function, *calls, pool=None, **options):
    """Compares calls with eager execution; each is a function that makes the inputs. Returns the arena's report."""
    pool = pool or graphs.arena()
    compiled = torch.compile(function, backend=graphs.backend(pool, **options))
    for turn, make in enumerate(calls):
        seed = torch.random.initial_seed() + turn
        torch.manual_seed(seed)
        mine = make()
        torch.manual_seed(seed)
        theirs = make()
        assert same(compiled(*mine), function(*theirs)), f"call {turn}"
        assert all(same(a, b) for a, b in zip(mine, theirs) if isinstance(a, torch.Tensor)), f"input of call {turn}"
    return graphs.report(pool)


def test_g01_inputs_that_are_views_of_one_buffer():
    def views():
        q, k, v = torch.randn(4, 3, 8).unbind(1)
        return q, k, v

    report = check(lambda q, k, v: (q @ k.t()).softmax(-1) @ v + q, *[views] * 5)
    assert report.replays == 4 and not report.eager


def test_g02_inputs_of_one_storage_at_the_capture_and_of_two_at_a_call():
    def one():
        base = torch.randn(8, 4)
        return base[:4], base[4:]

    def two():
        return torch.randn(4, 4), torch.randn(4, 4)

    check(lambda x, y: (x[1:], y[1:], x + y), one, one, two, one)
    torch._dynamo.reset()
    check(lambda x, y: (x[1:], y[1:], x + y), two, two, one, two)


def of_an_intermediate(x):
    c = torch.exp(x * 1.0) + x
    return c.as_strided((2, 2), (1, 2), 1) + c.as_strided((2, 2), (2, 1), 0)


def changed_and_viewed(c, v):
    c.add_(1)
    return v * 2 + c.sum()


@pytest.mark.parametrize("offsets", [(0, 0), (4, 4, 8), (0, 4, 0, 4)])
def test_g03_as_strided_counts_from_the_beginning_of_the_storage(on, offsets):
    parts = [lambda at=at: (torch.randn(24, device=on.device)[at : at + 16],) for at in offsets]
    check(lambda x: x.as_strided((2, 2), (2, 1), 6) * 2 + 1, *parts, pool=on.arena())


def test_g03_as_strided_of_an_intermediate_and_of_a_changed_input():
    report = check(of_an_intermediate, *[lambda: (torch.randn(4, 4),)] * 3)
    assert report.replays == 2 and not report.eager

    def base_and_view():
        base = torch.arange(6.0)
        return base, base[2:4]

    torch._dynamo.reset()
    check(changed_and_viewed, *[base_and_view] * 4)


@pytest.mark.parametrize("loss", [torch.nn.functional.binary_cross_entropy, torch.nn.functional.huber_loss])
def test_g04_an_out_overload_that_is_not_its_operator_is_not_used(loss):
    def between(x, y):
        return (x * 2, loss(x, y), (x + 1) * 3)[1:]

    report = check(between, *[lambda: (torch.rand(50), torch.rand(50))] * 3)
    assert report.replays == 2 and any(loss.__name__ in way for way in report.graphs[-1].slow_paths)


@pytest.mark.parametrize(
    "function, dtype",
    [
        (lambda x: (x * 2).conj(), torch.complex64),
        (lambda x: (x @ x).mH, torch.complex64),
        (lambda x: (x * 2).conj().imag, torch.complex64),
        (torch.fft.ifft, torch.float32),
        (torch.view_as_real, torch.complex64),
        (torch.real, torch.complex64),
        (lambda x: (x.view(torch.int32), x + 1), torch.float32),
    ],
)
def test_g05_conjugated_results_and_results_that_view_an_input_as_another_dtype(function, dtype):
    report = check(function, *[lambda: (torch.randn(3, 3, dtype=dtype),)] * 3)
    assert report.captures == 1, str(report)


def test_g05_a_conjugated_input_of_a_shape_that_was_captured_with_a_plain_one(on):
    plain = lambda: (torch.randn(3, 3, dtype=torch.complex64, device=on.device),)  # noqa: E731
    conjugated = lambda: (plain()[0].conj(),)  # noqa: E731
    function = lambda x: ((x * 2).conj(), x[1:], torch.view_as_real(x * 1.0))  # noqa: E731
    check(function, plain, plain, conjugated, conjugated, plain, pool=on.arena())


forks = pytest.mark.skipif(torch.cuda.is_available(), reason="wants a machine without a CUDA GPU, to fork")


@forks
def test_g06_a_forked_process_has_an_arena_of_its_own():
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
    pool = graphs.arena()
    compiled = torch.compile(model, backend=graphs.backend(pool))
    compiled(torch.randn(16, 64)), compiled(torch.randn(16, 64))

    def wrong(value):
        x = torch.full((16, 64), value)
        return sum(not torch.allclose(compiled(x), model(x), atol=1e-4) for _ in range(300))

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # OpenMP's threads do not live on in a fork
    try:
        child = os.fork()
        if child == 0:
            captures = graphs.report(pool).captures
            os._exit(bool(wrong(3.0)) or graphs.report(pool).captures != captures + 1)
        assert wrong(-2.0) == 0
        assert os.waitpid(child, 0)[1] == 0
    finally:
        torch.set_num_threads(threads)


@forks
def test_g06_an_arena_is_parked_in_the_child_if_it_was_in_the_parent():
    pool = graphs.arena()
    compiled = torch.compile(lambda x: x * 2 + 1, backend=graphs.backend(pool))
    x = torch.randn(8)
    compiled(x)
    pool.park()
    child = os.fork()
    if child == 0:
        parked = graphs.report(pool).parked
        pool.resume()
        os._exit(not (parked and torch.equal(compiled(x), x * 2 + 1) and torch.equal(compiled(x), x * 2 + 1)))
    assert os.waitpid(child, 0)[1] == 0


def test_g07_a_call_within_a_call_runs_eagerly_and_is_counted(on):
    pool = on.arena()
    inner = torch.compile(lambda x: torch.sin(torch.cos(x * 3) + 1) * 2, backend=graphs.backend(pool))

    @torch.library.custom_op(f"onecopy_test::inner_{on.device[:3]}", mutates_args=())
    def operator(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return inner(x).clone()

    operator.register_fake(torch.empty_like)

    def outer(x):
        a = x * 2
        b = a + 1
        return a * b + operator(b)

    inner(on.rows(1)), inner(on.rows(1))
    compiled = torch.compile(outer, backend=graphs.backend(pool))
    for _ in range(5):
        x = on.rows(1)
        b = x * 2 + 1
        assert torch.allclose(compiled(x), x * 2 * b + torch.sin(torch.cos(b * 3) + 1) * 2, atol=2e-3)
    assert any("called by an operator" in reason for reason in graphs.report(pool).eager)


def test_g08_an_assertion_is_checked_in_every_call():
    def positive(x):
        torch._assert_async((x > 0).all(), "inputs must be positive")
        return x * 2

    compiled = torch.compile(positive, backend=graphs.backend())
    compiled(torch.ones(4)), compiled(torch.ones(4))
    with pytest.raises(RuntimeError, match="must be positive"):
        compiled(-torch.ones(4))
    assert torch.equal(compiled(torch.ones(4)), torch.full((4,), 2.0))


def test_g09_a_graph_of_nothing():
    compiled = torch.compile(lambda x: x.shape, backend=graphs.backend())
    assert compiled(torch.randn(2, 3)) == torch.Size([2, 3]) == compiled(torch.randn(2, 3))


@pytest.mark.parametrize("outputs", ["copy", "view", "private"])
def test_g10_an_array_of_a_result_outlives_it(outputs):
    pool, model = graphs.arena(), torch.nn.Linear(16, 16)
    compiled = torch.compile(model, backend=graphs.backend(pool, outputs=outputs))
    x = torch.randn(4, 16)
    compiled(x)
    held, want = compiled(x).numpy(), model(x)
    compiled(torch.randn(4, 16)), compiled(torch.randn(4, 16))
    pool.park()
    assert torch.allclose(torch.from_numpy(held), want, atol=1e-5)


def test_g11_a_graph_keeps_no_results_of_its_first_run():
    pool = graphs.arena()
    layers = [torch.nn.Sequential(torch.nn.LayerNorm(256), torch.nn.Linear(256, 256)) for _ in range(4)]
    compiled = torch.compile(torch.nn.Sequential(*layers), backend=graphs.backend(pool), dynamic=False)
    compiled(torch.randn(64, 256))
    (function,) = pool.functions
    (graph,) = function.entries.values()
    kept = [value for step in graph._recording.steps if step.kind == "many" for value in step.value]
    assert kept and not any(isinstance(value, torch.Tensor) for value in kept)


@pytest.mark.parametrize("outputs", ["view", "private"])
def test_g12_results_of_one_graph_are_inputs_in_place_of_the_next(on, outputs):
    def pieces(x):
        y = torch.relu(x * 0.9 + 0.1) * 2
        torch._dynamo.graph_break()
        return y, (y * 1.5 + torch.exp(-y)).t()

    compiled = torch.compile(pieces, backend=graphs.backend(inputs="place", outputs=outputs), dynamic=True)
    for rows in (8, 3, 8, 3, 5, 3, 2, 8, 3, 8, 8, 3, 3):
        x = on.rows(rows, 8)
        assert same(compiled(x), pieces(x)), rows


def test_g13_caches_that_exchange_their_memory(on):
    def add(x, cache):
        cache.add_(x)
        return cache.sum()

    compiled = torch.compile(add, backend=graphs.backend())
    a, b, x = (torch.full((4,), float(value), device=on.device) for value in (0, 0, 1))
    compiled(x, a), compiled(x, a)
    a.data, b.data = b.data, a.data
    compiled(x, b)
    assert a.tolist() == [0] * 4 and b.tolist() == [3] * 4


def test_g14_the_pool_of_a_card_is_made_on_that_card(monkeypatch):
    """torch makes a MemPool on the current device; then another pool of that name, without our allocator, was used."""
    cards = types.SimpleNamespace(current=0, made=[])

    class Device:
        def __init__(self, index):
            self.index = index

        def __enter__(self):
            self.before, cards.current = cards.current, self.index

        def __exit__(self, *_):
            cards.current = self.before

    class MemPool:
        def __init__(self, _):
            cards.made.append(cards.current)

    monkeypatch.setattr(torch.cuda, "device", Device)
    monkeypatch.setattr(torch.cuda, "MemPool", MemPool, raising=False)
    monkeypatch.setattr(_pool, "_allocator", lambda: types.SimpleNamespace(allocator=lambda: None))
    _pool.CapturePool(types.SimpleNamespace(ordinal=1))
    assert cards.made == [1] and cards.current == 0


def test_g16_integer_indices_depend_on_no_content_and_masks_do():
    report = check(lambda x, at: x[at] * 2, *[lambda: (torch.randn(6, 4), torch.tensor([3, 0, 3]))] * 3)
    assert report.replays == 2 and not report.eager
    torch._dynamo.reset()
    experts = lambda: (torch.randn(6, 4), torch.tensor([[1, 2], [0, 5]]))  # noqa: E731
    report = check(lambda x, at: x[:, at].sum(0) if at.dim() == 1 else x[at, 1:], experts, experts)
    assert report.replays == 1 and not report.eager


def test_g17_a_cache_is_written_in_place(on):
    def step(cache, x, at):
        cache.index_copy_(0, at, x)
        return cache[:4].sum(0) + x

    mine, theirs = [torch.zeros(65536, 256, device=on.device) for _ in range(2)]
    at, pool = torch.tensor([5], device=on.device), on.arena()
    compiled = torch.compile(step, backend=graphs.backend(pool))
    for _ in range(3):
        x = on.rows(1, 256)
        assert on.same(compiled(mine, x, at), step(theirs, x, at)) and torch.equal(mine, theirs)
    assert graphs.report(pool).shared_bytes < mine.nbytes


def write_a_row(cache, x, at):
    cache[at] = x
    return cache.sum()


def write_a_slice(cache, x, at):
    cache[1:, 2:3] = x
    return cache.sum() + x


def write_a_layer(cache, x, at):
    cache[1].index_copy_(0, at, x)
    return cache[1] * 2


def read_before(cache, x, at):
    before = cache.sum(0)
    cache.index_add_(0, at, x)
    return before, cache.sum(0)


def read_the_old_one_later(cache, x, at):
    old = cache.clone()
    cache.index_add_(0, at, x)
    return old - cache


def write_twice(cache, x, at):
    cache.index_copy_(0, at, x)
    first = cache.sum()
    cache.index_copy_(0, at + 1, first + x)
    return cache * first


def shift(cache, x, at):
    cache[:-1] = cache[1:].clone()
    return cache.sum(0) + x


def hand_back(cache, x, at):
    cache.mul_(2)
    return cache, cache[1:], x + 1


@pytest.mark.parametrize(
    "function, shape",
    [
        (write_a_row, (6, 6)), (write_a_slice, (6, 6)), (write_a_layer, (2, 6, 6)), (read_before, (6, 6)),
        (read_the_old_one_later, (6, 6)), (write_twice, (6, 6)), (shift, (6, 6)), (hand_back, (6, 6)),
    ],
)  # fmt: skip
def test_g17_writes_in_place_are_those_of_eager_execution(function, shape):
    wide = 6 if function is not write_a_slice else 1

    def make():
        return torch.randn(shape), torch.randn(1, wide), torch.tensor([3])

    report = check(function, make, make, make)
    assert report.captures == 1, str(report)


def test_g18_first_runs_and_captures_of_one_card_take_turns():
    order, entered, leave = [], threading.Event(), threading.Event()

    def first():
        with _pool.captures_of(7), _pool.captures_of(7):  # a first run, and the pool that it opens
            entered.set()
            leave.wait()
            order.append("first")

    def second():
        with _pool.captures_of(7):
            order.append("second")

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    entered.wait()
    threads[1].start()
    with _pool.captures_of(8):
        leave.set()
    for thread in threads:
        thread.join()
    assert order == ["first", "second"]


def test_g19_a_count_that_no_operator_sees_is_no_part_of_the_key():
    """As a cache of a sliding window has it: each step of a request had a graph of its own."""

    class Cache:
        def __init__(self):
            self.length, self.rows = 0, torch.zeros(16, 4)

    def step(cache, x, at):
        cache.rows.index_copy_(0, at, x)
        cache.length += 1
        return cache.rows.sum(0)

    pool = graphs.arena()
    compiled = torch.compile(step, backend=graphs.backend(pool), dynamic=None)
    for _ in range(3):
        mine, theirs = Cache(), Cache()
        for at in range(12):
            x, place = torch.randn(1, 4), torch.tensor([at])
            assert torch.allclose(compiled(mine, x, place), step(theirs, x, place), atol=1e-5)
            assert mine.length == theirs.length == at + 1
    report = graphs.report(pool)
    assert report.captures <= 3 and report.moves < report.replays / 2 and not report.eager, str(report)


def test_g20_a_compiled_module_is_saved(tmp_path):
    model = torch.compile(torch.nn.Linear(4, 4), backend=graphs.backend(graphs.arena(), limit=7))
    torch.save(model, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    x = torch.randn(2, 4)
    assert torch.allclose(loaded(x), model(x))
    buffer = io.BytesIO()
    torch.save(graphs.backend(outputs="view", limit=7), buffer)
    buffer.seek(0)
    options = torch.load(buffer, weights_only=False)._options
    assert options.outputs == "view" and options.limit == 7


def test_a_graph_whose_first_replay_differs_from_its_first_run_is_refused():
    """A plan is not trusted: an operator that gives other results each time is as a wrong plan."""
    calls = []

    @torch.library.custom_op("onecopy_test::counting", mutates_args=())
    def counting(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x + len(calls)

    counting.register_fake(torch.empty_like)
    pool = graphs.arena()
    compiled = torch.compile(lambda x: counting(x) * 2, backend=graphs.backend(pool))
    x = torch.zeros(3)
    assert compiled(x).tolist() == [2, 2, 2]
    assert compiled(x).tolist() == [2.0 * len(calls)] * 3
    report = graphs.report(pool)
    (reason,) = report.eager
    assert "differs from its first run" in reason and report.captures == 0 and report.graphs == ()


def test_the_end_of_a_graph_needs_nothing_of_its_module():
    """While the interpreter ends, the names of a module are None: __del__ raised AttributeError."""
    from onecopy.graphs import _cuda

    graph = object.__new__(_cuda.CudaGraph)
    names = dict(vars(_cuda))
    try:
        vars(_cuda)["sys"] = None
        _cuda.CudaGraph.__del__(graph)
    finally:
        vars(_cuda).update(names)
    assert _cuda.sys is sys
