# SPDX-License-Identifier: Apache-2.0
"""Measures captured graphs on a CUDA device against torch's own: memory, held outputs, calls, moves, parking."""

from __future__ import annotations

import contextlib
import gc
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from effort import Effort
from report import Row, at_least, at_most

_WIDTH = 4096
_LAYERS = 8
_SIZES = [1, 2, 4, 8, *range(16, 513, 16)]
_MIB = 1 << 20


def _orders() -> dict[str, list[int]]:
    shuffled = random.Random(1).sample(_SIZES, len(_SIZES))
    return {"ascending": _SIZES, "descending": _SIZES[::-1], "shuffled": shuffled}


def _layers(device: str, width: int = _WIDTH, layers: int = _LAYERS) -> Any:
    import torch

    parts = [(torch.nn.Linear(width, width, bias=False), torch.nn.GELU()) for _ in range(layers)]
    # Halving on the device would leave a hole of 32 MiB in torch's cache, which a workspace of cuBLAS may or may not
    # use.
    return torch.nn.Sequential(*(part for layer in parts for part in layer)).half().to(device)


def _best_us(call: Callable[[], Any], calls: int, rounds: int = 7) -> float:
    """Returns the best time of the host in microseconds. The device is idle before each round."""
    import torch

    for _ in range(10):
        call()
    best = float("inf")
    for _ in range(rounds):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter() - begin) / calls * 1e6)
    torch.cuda.synchronize()
    return best


# --- memory -----------------------------------------------------------------------------------------


class _Taken:
    """The device memory taken since the beginning: the current and the maximum bytes."""

    def __init__(self) -> None:
        self._begin = self._free()
        self.peak = 0

    @staticmethod
    def _free() -> int:
        import torch

        torch.cuda.synchronize()
        return int(torch.cuda.mem_get_info()[0])

    def now(self) -> int:
        taken = self._begin - self._free()
        self.peak = max(self.peak, taken)
        return taken


def _load_kernels(model: Any, order: list[int], device: str) -> int:
    """Runs each shape once, which loads the kernels' code and cuBLAS's workspaces."""
    import torch

    torch.zeros(1, device=device)
    gc.collect()
    torch.cuda.empty_cache()  # frees what the model was made from
    taken = _Taken()
    for rows in order:
        model(torch.randn(rows, _WIDTH, device=device).half())
    gc.collect()
    torch.cuda.empty_cache()
    return taken.now()


def _ours_in(order: list[int], device: str) -> dict[str, int]:
    import torch

    from onecopy import graphs

    torch._dynamo.reset()
    model, pool = _layers(device), graphs.arena(device)
    compiled = torch.compile(model, backend=graphs.backend(pool), dynamic=True)
    given = torch.randn(max(order), _WIDTH, device=device).half()
    kernels = _load_kernels(model, order, device)
    taken = _Taken()
    for rows in order:
        compiled(given[:rows])
        taken.now()
    torch.cuda.empty_cache()
    pages = graphs.report(pool).shared_bytes
    return {"end": taken.now(), "peak": kernels + taken.peak, "kernels": kernels, "pages": pages}


def _torchs_in(order: list[int], device: str) -> dict[str, int]:
    """Runs torch's graphs at their best: one pool, one static input, and outputs released."""
    import torch

    model, pool = _layers(device), torch.cuda.graph_pool_handle()
    given = torch.randn(max(order), _WIDTH, device=device).half()
    kernels = _load_kernels(model, order, device)
    taken, kept = _Taken(), []
    stream = torch.cuda.Stream()
    for rows in order:
        with torch.cuda.stream(stream):
            model(given[:rows])
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=stream):
            out = model(given[:rows])
        del out
        kept.append(graph)
        taken.now()
    torch.cuda.empty_cache()
    return {"end": taken.now(), "peak": kernels + taken.peak, "kernels": kernels}


def _measure_memory(whose: str, name: str, device: str) -> None:
    """Measures in a new process and prints the figures as JSON."""
    import torch

    order = [max(_SIZES)] if name == "largest" else _orders()[name]
    with torch.no_grad():
        if whose.startswith("runner-"):
            print(json.dumps(_runner_in(order, device, whose.removeprefix("runner-"))))
        else:
            print(json.dumps((_ours_in if whose == "ours" else _torchs_in)(order, device)))


def _memory_of(whose: str, name: str, device: str) -> dict[str, Any]:
    made = subprocess.run([sys.executable, __file__, whose, name, device], check=True, capture_output=True, text=True)
    return json.loads(made.stdout.splitlines()[-1])


def memory(effort: Effort) -> Row:
    row = Row(
        f"{len(_SIZES)} shapes of {_LAYERS} layers of {_WIDTH}, captured in three orders on {effort.device}",
        "pages ≤ 1.01 x the largest shape's, in each order; all memory ≤ 0.8 x torch's best, ≤ 0.25 x its ascending order",
    )
    largest = _memory_of("ours", "largest", effort.device)["pages"]
    row.add("pages of the largest shape alone", largest, "B")
    ours = {name: _memory_of("ours", name, effort.device) for name in _orders()}
    asked = ("ascending", "descending") if effort.quick else tuple(_orders())
    theirs = {name: _memory_of("torch", name, effort.device) for name in asked}
    for name, mine in ours.items():
        row.judge_ratio(f"pages, {name}", mine["pages"], "B", "the largest", at_most(mine["pages"] / largest, 1.01))
        row.judge(f"all memory, {name}, at most", mine["peak"], "B", at_most(mine["peak"], 110 * _MIB))
        row.add(f"of that kernels and workspaces, {name}", mine["kernels"], "B")
        if name in theirs:
            row.add(f"torch's shared pool, {name}, at most", theirs[name]["peak"], "B")
            row.add(f"of that kernels and workspaces, torch, {name}", theirs[name]["kernels"], "B")
    worst = max(mine["peak"] for mine in ours.values())
    best = min(one["peak"] for one in theirs.values())
    spread = worst - min(mine["peak"] for mine in ours.values())
    row.judge("between our orders", spread, "B", at_most(spread, 4 * _MIB))
    row.judge_ratio("our worst order", worst, "B", "torch's best order", at_most(worst / best, 0.8))
    up = theirs["ascending"]["peak"]
    row.judge_ratio("our worst order", worst, "B", "torch's ascending order", at_most(worst / up, 0.25))
    row.add("torch's ascending order", up, "B", up / theirs["descending"]["peak"], "its descending order")
    return row


# --- outputs ----------------------------------------------------------------------------------------


def held(effort: Effort) -> Row:
    """Holds seven outputs while graphs of eight shapes are replayed in random order."""
    import torch

    from onecopy import graphs

    count = effort.rounds(200_000)
    row = Row(f"{count} replays of 8 shapes, 7 outputs held", "none is overwritten")
    model = _layers(effort.device, 64, 2)
    inputs = [torch.randn(8 * (i + 1), 64, device=effort.device).half() for i in range(8)]
    with torch.no_grad():
        torch._dynamo.reset()
        pool = graphs.arena(effort.device)
        call = torch.compile(model, backend=graphs.backend(pool), dynamic=True)
        for x in inputs:
            call(x)
        wrong = _count_wrong(lambda i: call(inputs[i]), inputs, count, effort.device)
        row.judge("ours: wrong", wrong, "of them", at_most(wrong, 0))
        few = min(count, 3000)
        replays = _torch_graphs(model, inputs)
        row.add(f"torch's shared pool: wrong of {few}", _count_wrong(replays, inputs, few, effort.device), "of them")
    return row


def _torch_graphs(model: Any, inputs: list[Any]) -> Callable[[int], Any]:
    import torch

    pool, captured = torch.cuda.graph_pool_handle(), []
    for x in sorted(inputs, key=len, reverse=True):
        model(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            out = model(x)
        captured.append((graph, _weak_view(out)))
        del out
    captured.reverse()

    def replay(which: int) -> Any:
        graph, out = captured[which]
        graph.replay()
        return out()

    return replay


def _weak_view(out: Any) -> Callable[[], Any]:
    """Returns tensors on the output's memory that do not keep it alive, as engines hold outputs in a shared pool."""
    import torch

    class Memory:
        __cuda_array_interface__ = {
            "shape": tuple(out.shape), "typestr": "<f2", "data": (out.data_ptr(), False), "version": 3,
        }  # fmt: skip

    memory = Memory()
    return lambda: torch.as_tensor(memory, device=out.device)


def _count_wrong(replay: Callable[[int], Any], inputs: list[Any], count: int, device: str) -> int:
    """Counts outputs that differ, when they are released, from the outputs of the first replays."""
    import torch

    chance = random.Random(7)
    wanted = []
    for which in range(len(inputs)):
        wanted.append(replay(which).clone())
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    held_outputs: list[tuple[int, Any]] = []
    for _ in range(count):
        which = chance.randrange(len(inputs))
        held_outputs.append((which, replay(which)))
        if len(held_outputs) > 7:
            then, out = held_outputs.pop(chance.randrange(7))
            wrong += (out != wanted[then]).any()
    return int(wrong)


def alive(effort: Effort) -> Row:
    """Checks a table that a capture leaves alive, after the replay of a larger graph."""
    import torch

    from onecopy import graphs

    row = Row(
        "A table made in a capture, after a larger graph's replay", "is as it was; in torch's shared pool it is not"
    )
    big = torch.randn(2048, 1024, device=effort.device)

    def capture(into: Callable[[Any], Any]) -> int:
        first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with into(first):
            (big * 2 + 1).sum()
        with into(second):
            table = torch.arange(300_000, device=effort.device, dtype=torch.float32) * 2
            table + 1
        second.replay()
        want = table.clone()
        first.replay()
        torch.cuda.synchronize()
        return int((table != want).sum())

    with torch.no_grad():
        big.mul(2).add(1).sum()
        torch.cuda.synchronize()
        pool = graphs.arena(effort.device)
        ours = capture(lambda graph: graphs.graph(graph, pool))
        row.judge("ours: elements wrong", ours, "of 300000", at_most(ours, 0))
        shared = torch.cuda.graph_pool_handle()
        theirs = capture(lambda graph: torch.cuda.graph(graph, pool=shared))
        row.add("torch's shared pool: elements wrong", theirs, "of 300000")
    return row


# --- calls ------------------------------------------------------------------------------------------


def _entry_of(function_arena: Any) -> tuple[Any, Any]:
    (function,) = function_arena.functions
    (entry,) = function.entries.values()
    return function, entry


@contextlib.contextmanager
def _noted(function: Any) -> Any:
    """Returns the list of arguments that torch.compile passes to a captured function."""
    kind, seen = type(function), []
    original = kind.__call__

    def note(self: Any, boxed: list[Any]) -> Any:
        seen[:] = list(boxed)
        return original(self, boxed)

    kind.__call__ = note
    try:
        yield seen
    finally:
        kind.__call__ = original


def calls(effort: Effort) -> Row:
    import torch

    from onecopy import graphs

    row = Row(
        "A call of 8 layers of 512, 8 rows; host time from Python",
        "≤ 0.4 x copy_, replay and clone of torch's, and ≤ its replay alone + 2 µs",
    )
    count = effort.rounds(300)
    model, x = _layers(effort.device, 512), torch.randn(8, 512, device=effort.device).half()
    with torch.no_grad():
        torch._dynamo.reset()
        pool = graphs.arena(effort.device)
        call = torch.compile(model, backend=graphs.backend(pool), fullgraph=True, dynamic=False)
        call(x)
        function, _ = _entry_of(pool)
        with _noted(function) as arguments:
            call(x)
        static = x.clone()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            model(static)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = model(static)
        replay = _best_us(graph.replay, count)
        whole = _best_us(lambda: (static.copy_(x), graph.replay(), out.clone()), count)
        row.add("torch: replay", replay * 1e3, "ns")
        row.add("torch: copy_, replay, clone", whole * 1e3, "ns")
        ours = _best_us(lambda: function(list(arguments)), count)
        row.judge_ratio(
            "ours: copied in, fresh output", ours * 1e3, "ns", "copy_, replay, clone", at_most(ours / whole, 0.4)
        )
        row.judge("ours: beyond torch's replay", (ours - replay) * 1e3, "ns", at_most((ours - replay) * 1e3, 2000))
        compiled = _best_us(lambda: call(x), count)
        row.add("ours: with torch.compile around it", compiled * 1e3, "ns")
        row.add("eager", _best_us(lambda: model(x), count) * 1e3, "ns")
        torch._dynamo.reset()
        theirs = torch.compile(model, mode="reduce-overhead", fullgraph=True, dynamic=False)
        for _ in range(3):
            theirs(x)
        other = _best_us(lambda: theirs(x), count)
        row.judge_ratio(
            "ours: with torch.compile", compiled * 1e3, "ns", "reduce-overhead", at_most(compiled / other, 1.0)
        )
    return row


def many_places(effort: Effort) -> Row:
    import torch

    from onecopy import graphs

    row = Row("A call with 400 inputs in place, each compared", "≤ 8 µs more than without")
    count = effort.rounds(300)
    x = torch.randn(8, 512, device=effort.device).half()
    times = []
    with torch.no_grad():
        for places in (1, 400):
            torch._dynamo.reset()
            layers = torch.nn.ParameterList(torch.randn(512, device=effort.device).half() for _ in range(places))
            pool = graphs.arena(effort.device)

            def work(y: Any, layers: Any = layers) -> Any:
                return y + torch.stack(list(layers)).sum(0)

            call = torch.compile(work, backend=graphs.backend(pool), fullgraph=True, dynamic=False)
            call(x)
            function, _ = _entry_of(pool)
            with _noted(function) as arguments:
                call(x)
            boxes = [list(arguments) for _ in range(count + 10)]
            times.append(min(_time_boxes(function, boxes) for _ in range(5)))
    row.add("with one", times[0] * 1e3, "ns")
    row.add("with 400", times[1] * 1e3, "ns")
    row.judge("for 399", (times[1] - times[0]) * 1e3, "ns", at_most((times[1] - times[0]) * 1e3, 8000))
    return row


def _time_boxes(function: Any, boxes: list[list[Any]]) -> float:
    import torch

    copies = [list(box) for box in boxes]
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for box in copies:
        function(box)
    return (time.perf_counter() - begin) / len(copies) * 1e6


# --- parking, streams ------------------------------------------------------------------------


def parked(effort: Effort) -> Row:
    import torch

    from onecopy import graphs

    row = Row(
        "An arena of 36 graphs is parked and resumed", "≥ 0.99 of its pages come back, ≤ 40 µs a mapping, replays right"
    )
    with torch.no_grad():
        torch._dynamo.reset()
        model, pool = _layers(effort.device), graphs.arena(effort.device)
        call = torch.compile(model, backend=graphs.backend(pool), dynamic=True)
        inputs = [torch.randn(rows, _WIDTH, device=effort.device).half() for rows in _SIZES]
        wanted = [call(x) for x in inputs]
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        pages, mappings = pool.footprint.shared, pool.footprint.mappings
        before = torch.cuda.mem_get_info()[0]
        begin = time.perf_counter()
        pool.park()
        between = time.perf_counter()
        back = torch.cuda.mem_get_info()[0] - before
        pool.resume()
        end = time.perf_counter()
        wrong = sum(not torch.equal(call(x), want) for x, want in zip(inputs, wanted, strict=True))
    row.judge_ratio("given back", back, "B", "its pages", at_least(back / pages, 0.99))
    row.add("mappings", mappings, "of 36 windows")
    row.add("park", (between - begin) * 1e9, "ns")
    resumed = (end - between) * 1e9
    row.add("resume", resumed, "ns")
    row.judge("resume, for each mapping", resumed / mappings, "ns", at_most(resumed / mappings, 40_000))
    row.judge("replays wrong afterwards", wrong, f"of {len(inputs)}", at_most(wrong, 0))
    return row


def streams(effort: Effort) -> Row:
    import torch

    from onecopy import graphs

    count = effort.rounds(1000)
    row = Row(f"{count} calls of one arena on two streams", "none is wrong")
    with torch.no_grad():
        torch._dynamo.reset()
        model, pool = _layers(effort.device, 2048, 3), graphs.arena(effort.device)
        call = torch.compile(model, backend=graphs.backend(pool), dynamic=True)
        inputs = [torch.randn(rows, 2048, device=effort.device).half() for rows in (1024, 800)]
        wanted = [call(x) for x in inputs]
        pair = [torch.cuda.Stream(), torch.cuda.Stream()]
        wrong = torch.zeros((), dtype=torch.int64, device=effort.device)
        for _ in range(count // 2):
            outs = []
            torch.cuda.synchronize()
            for stream, x in zip(pair, inputs, strict=True):
                with torch.cuda.stream(stream):
                    outs.append(call(x))
            torch.cuda.synchronize()
            for out, want in zip(outs, wanted, strict=True):
                wrong += (out != want).any()
        row.judge("wrong", int(wrong), f"of {count}", at_most(int(wrong), 0))
    return row


# --- engines ----------------------------------------------------------------------------------------


def llama(effort: Effort) -> Row:
    """Measures requests whose own caches move. The first request warms up.

    Compiled code rounds differently than eager execution, with graphs and without. So the tokens must equal the tokens
    of the compiled code that the graphs capture.
    """
    import torch

    from llama import Llama
    from onecopy import graphs

    row = Row(
        "A step of a Llama in half precision, a new static cache for each request",
        "≤ 0.8 x reduce-overhead where that captures, tokens as without graphs",
    )
    steps, requests = 64, effort.rounds(10)
    for layers in (2, 8):
        model = Llama(layers, 512, effort.device, torch.float16)
        with torch.no_grad():
            pool = graphs.arena(effort.device)
            backend = graphs.backend(pool, codegen="inductor")
            mine, ours = _requests(model, steps, requests, backend=backend)
            report = graphs.report(pool)  # before the others' requests drop its functions
            theirs, reduced = _requests(model, steps, requests, mode="reduce-overhead")
            compiled, without = _requests(model, steps, requests, mode="default")
            plain, eager = _requests(model, steps, requests)
        row.add(f"eager, {layers} layers ({model.kind})", eager, "ns")
        row.add(f"torch.compile without graphs, {layers} layers", without, "ns")
        row.add(f"reduce-overhead, {layers} layers", reduced, "ns")
        row.judge_ratio(f"ours, {layers} layers", ours, "ns", "reduce-overhead", at_most(ours / reduced, 0.8))
        wrong = _count_others(mine, compiled)
        row.judge(f"ours: requests with other tokens than without graphs, {layers} layers", wrong,
                  f"of {requests}", at_most(wrong, 0))  # fmt: skip
        row.add(f"ours: requests with other tokens than eager, {layers} layers",
                _count_others(mine, plain), f"of {requests}")  # fmt: skip
        row.add(f"reduce-overhead: requests with other tokens than eager, {layers} layers",
                _count_others(theirs, plain), f"of {requests}")  # fmt: skip
        row.note(f"{report.recaptured} captures anew for moved caches, {layers} layers")
        row.notes += [f"{count} eager calls: {reason}" for reason, count in report.eager.items()]
    return row


def _requests(model: Any, steps: int, requests: int, **compiled: Any) -> tuple[list[list[int]], float]:
    """Returns the tokens of each request, and the median time of a step in nanoseconds after the second request."""
    import torch

    torch._dynamo.reset()
    step = torch.compile(model.step, dynamic=False, **compiled) if compiled else model.step
    made, times = [], []
    for request in range(requests + 2):
        cache = model.new_cache()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        tokens = model.tokens(step, cache, steps, request)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) / steps * 1e9)
        made.append(tokens)
    return made[2:], sorted(times[2:])[requests // 2]


def _count_others(made: list[list[int]], wanted: list[list[int]]) -> int:
    """Returns the number of requests whose tokens differ."""
    return sum(a != b for a, b in zip(made, wanted, strict=True))


def _runner_in(order: list[int], device: str, whose: str) -> dict[str, float]:
    """Returns a runner like vLLM's: one input, one output, and a graph for each batch size, captured after an eager run."""
    import torch

    from onecopy import graphs

    model, most = _layers(device), max(order)
    given, made = (torch.randn(most, _WIDTH, device=device).half() for _ in range(2))
    pool = graphs.arena(device) if whose == "ours" else torch.cuda.graph_pool_handle()
    kernels = _load_kernels(model, order, device)
    taken, kept, seconds, stream = _Taken(), [], 0.0, torch.cuda.Stream()
    for rows in order:
        with torch.cuda.stream(stream):
            made[:rows].copy_(model(given[:rows]))
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        into = (
            graphs.graph(graph, pool, stream=stream)
            if whose == "ours"
            else torch.cuda.graph(graph, pool=pool, stream=stream)
        )
        begin = time.perf_counter()
        with into:
            made[:rows].copy_(model(given[:rows]))
        seconds += time.perf_counter() - begin
        kept.append((rows, graph))
        taken.now()
    peak = kernels + taken.peak
    return {
        "peak": peak,
        "kernels": kernels,
        "seconds": seconds,
        "wrong": _count_wrong_replays(kept, model, given, made),
    }


def _count_wrong_replays(kept: list[tuple[int, Any]], model: Any, given: Any, made: Any) -> int:
    """Counts wrong results of replays in another order than the captures, with other inputs."""
    import torch

    wrong = 0
    for rows, graph in random.Random(3).sample(kept, len(kept)):
        given.copy_(torch.randn_like(given))
        graph.replay()
        got = made[:rows].clone()
        wrong += not torch.allclose(got, model(given[:rows]), rtol=1e-2, atol=1e-2)
    return wrong


def runner(effort: Effort) -> Row:
    row = Row(
        f"A runner as vLLM's: {len(_SIZES)} batch sizes of {_LAYERS} layers of {_WIDTH}, captured in ascending order",
        "capture time ≤ 1.2 x torch's, memory ≤ 0.25 x torch's, replays right",
    )
    ours, theirs = (_memory_of(f"runner-{whose}", "ascending", effort.device) for whose in ("ours", "torch"))
    row.add("torch's shared pool: capture", theirs["seconds"] * 1e9, "ns")
    ratio = ours["seconds"] / theirs["seconds"]
    row.judge_ratio("ours: capture", ours["seconds"] * 1e9, "ns", "torch's", at_most(ratio, 1.2))
    row.add("torch's shared pool: memory at most", theirs["peak"], "B")
    row.add("of that kernels and workspaces", ours["kernels"], "B")
    row.judge_ratio("ours: memory at most", ours["peak"], "B", "torch's", at_most(ours["peak"] / theirs["peak"], 0.25))
    row.judge("ours: replays wrong", ours["wrong"], f"of {len(_SIZES)}", at_most(ours["wrong"], 0))
    row.add("torch: replays wrong", theirs["wrong"], f"of {len(_SIZES)}")
    return row


if __name__ == "__main__":
    _measure_memory(*sys.argv[1:])
