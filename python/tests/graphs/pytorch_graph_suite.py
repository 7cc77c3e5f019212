# SPDX-License-Identifier: Apache-2.0
"""Runs PyTorch's own tests of captured graphs with ours in the place of torch's. Wants a card.

usage: ONECOPY_PYTORCH_GRAPHS=.../pytorch/test pytorch_graph_suite.py

The folder has test_cuda.py and inductor/test_cudagraph_trees.py, which are in PyTorch's source tree and not in its
wheels. In the first one each torch.cuda.CUDAGraph captures into an arena: graphs of one pool share one. In the second
one torch.compile() is our backend wherever it would capture, and torch.cuda.CUDAGraph is torch's: our backend captures
with it. Tests that look into torch's own bookkeeping are left out, and named with the reason; so are, at the end, tests
that ran and captured nothing. A file of which no test captured anything has failed.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import os
import re
import sys
import unittest
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

VARIABLE = "ONECOPY_PYTORCH_GRAPHS"

STATISTICS = "it counts the segments and blocks of torch's allocator, and ours lie in windows"
CORRUPTION = "it expects graphs of one pool to overwrite each other, and ours never do"
DIFFERS = {
    "test_graph_concurrent_replay": CORRUPTION,
    "test_graph_three_successive": CORRUPTION,
    "test_graph_two_successive": STATISTICS,
    "test_graph_memory_stats_and_use_result_after_destroy_graph": STATISTICS,
    "test_memory_stats_of_multiple_generators_and_graphs": STATISTICS,
    "test_graph_error": "it runs torch in another process, where nothing is ours",
    "test_accelerator_graph_simple": "torch.accelerator.Graph is no torch.cuda.CUDAGraph",
    "test_error_on_dealloc_use": "it expects an error at an output of an earlier call, and ours stay right",
    "test_unstable_ptr": "it expects an error when a parameter has other memory, and ours notice it and go on",
}
"""By reading, and after a run with torch 2.11."""

INTERNALS = re.compile(
    r"get_manager|get_roots|curr_node|get_root_children|num_checkpoints|cudagraphify_impl|capture_stderr|FileCheck"
    r"|all_live_block|cudagraph_segments|get_all_cudagraph|counters\[|tree_manager|cdata\("
)
"""Words of tests that look into torch's manager of graphs, or for its messages."""

GRAPHS = re.compile(r"CUDAGraph\(|cuda\.graph\(|make_graphed_callables")
COMPILES = re.compile(r"torch\.compile\b|get_compile_fn|_dynamo\.optimize")

RENAMED = {"torch.testing._internal.inductor_utils": [("HAS_CUDA", "HAS_CUDA_AND_TRITON")]}
"""Names that tests import from torch, and that have another one in other versions."""


class Unusable(Exception):
    """Why a file's tests cannot run here."""


def find(name: str) -> Path | None:
    """Returns the path of one of the two files, or None."""
    folder = os.environ.get(VARIABLE)
    file = Path(folder) / name if folder else None
    return file if file and file.is_file() else None


def load(file: Path) -> ModuleType:
    """The file's module, without torch's division of tests among machines. Raises Unusable."""
    import torch

    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    suite = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
    try:
        give_both_names(file.read_text())
        spec.loader.exec_module(suite)
    except ModuleNotFoundError as error:
        raise Unusable(f"{file.name} wants the package {error.name}, which is not installed") from error
    except ImportError as error:
        raise Unusable(f"{file.name} is not of torch {torch.__version__}: {error}") from error
    vars(suite).pop("load_tests", None)
    return suite


def give_both_names(text: str) -> None:
    """Modules of torch that a file of this ``text`` imports from have the names of other versions, too."""
    for name, pairs in RENAMED.items():
        if name in text:
            module = importlib.import_module(name)
            for pair in pairs:
                for missing, there in (pair, pair[::-1]):
                    if hasattr(module, there) and not hasattr(module, missing):
                        setattr(module, missing, getattr(module, there))


def tests_of(suite: ModuleType) -> list[tuple[type, str]]:
    """Returns all tests, by class and name."""
    cases = [one for one in vars(suite).values() if isinstance(one, type) and issubclass(one, unittest.TestCase)]
    return [(case, name) for case in cases for name in unittest.defaultTestLoader.getTestCaseNames(case)]


def source_of(case: type, name: str) -> str:
    """Of the test, and of the methods in its file that it calls."""
    own = {n for one in case.__mro__ if one.__module__ == case.__module__ for n in vars(one)}
    texts: dict[str, str] = {}
    waiting = [name]
    while waiting:
        method = waiting.pop()
        texts[method] = inspect.getsource(inspect.unwrap(getattr(case, method)))
        waiting += {n for n in re.findall(r"self\.(\w+)\(", texts[method]) if n in own and n not in texts}
    return "\n".join(texts.values())


def reason_against(case: type, name: str, whole: bool) -> str:
    """Why it is not run: empty if it is. Of a file that is about graphs as a ``whole`` all tests are candidates."""
    source = source_of(case, name)
    if not whole and not GRAPHS.search(source):
        return "it has no graph"
    if name in DIFFERS:
        return DIFFERS[name]
    return _reason_by_words(source) if whole else ""


def _reason_by_words(source: str) -> str:
    looked_at = sorted(set(INTERNALS.findall(source)))
    if looked_at:
        return f"it looks into torch's manager: {', '.join(looked_at)}"
    if "compile_fx_inner(" in source:
        return "it calls torch's compiler below the backend, where nothing is ours"
    return "" if COMPILES.search(source) else "it compiles nothing"


# --- ours in the place of torch's -------------------------------------------------------------------


class Tally:
    """Graphs that ours have captured since the test began."""

    captures = 0


def graph_class() -> type:
    """A torch.cuda.CUDAGraph that captures into an arena."""
    import torch

    from onecopy import graphs

    arenas: dict[Any, Any] = {}

    class InArena(torch.cuda.CUDAGraph):
        into: Any = None
        handle: Any = None

        def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
            if self.into is not None:  # by ours
                super().capture_begin(pool=pool, capture_error_mode=capture_error_mode)
                return
            self.handle = object() if pool is None else pool
            arena = arenas.setdefault(self.handle, graphs.graph_pool_handle())
            stream = torch.cuda.current_stream()
            self.into = graphs.graph(self, arena, stream=stream, capture_error_mode=capture_error_mode)
            self.is_ending = False
            try:
                self.into.__enter__()
            except BaseException:
                self.into = None
                raise

        def capture_end(self) -> None:
            if self.is_ending:  # by ours
                super().capture_end()
                return
            into, self.is_ending = self.into, True
            try:
                into.__exit__(None, None, None)
                Tally.captures += 1
            finally:
                self.into = None

        def pool(self) -> Any:
            return self.handle

    return InArena


def compile_with_ours(function: Any = None, **named: Any) -> Any:
    """torch.compile(), with our backend where torch's would capture."""
    if function is None:
        return lambda given: compile_with_ours(given, **named)
    if _is_to_capture(named):
        named = {k: v for k, v in named.items() if k not in ("mode", "backend", "options")}
        return _compile(function, backend=backend_of_ours(), **named)
    return _compile(function, **named)


_compile: Any = None


def _is_to_capture(named: dict[str, Any]) -> bool:
    """By its arguments, or by torch's configuration, which the tests' fixture changes."""
    import torch._inductor.config

    if named.get("backend") not in (None, "inductor"):
        return bool(named["backend"] == "cudagraphs")
    always = torch._inductor.config.triton.cudagraphs
    return named.get("mode") == "reduce-overhead" or (named.get("options") or {}).get("triton.cudagraphs", always)


def backend_of_ours() -> Any:
    """Kernels of torch's compiler on a card. On the CPU, where that codegen is refused, operators one by one."""
    from onecopy import graphs
    from onecopy.graphs._compile import _device_of

    on_card, on_cpu = graphs.backend(codegen="inductor"), graphs.backend()

    def compile_graph(graph: Any, examples: Any, **named: Any) -> Any:
        ours = on_cpu if _device_of(graph, examples).type == "cpu" else on_card
        return ours(graph, examples, **named)

    return compile_graph


@contextlib.contextmanager
def ours_in_place(whole: bool) -> Iterator[None]:
    """Of torch's compiler for the file that is about graphs as a ``whole``, else of its class of graphs."""
    global _compile
    import torch

    from onecopy.graphs._function import Function

    enter = Function._enter

    def count(self: Any, *arguments: Any) -> None:
        before = self.captures
        enter(self, *arguments)
        Tally.captures += self.captures - before

    with contextlib.ExitStack() as stack:
        if whole:
            _compile = torch.compile
            stack.enter_context(mock.patch.object(torch, "compile", compile_with_ours))
            stack.enter_context(mock.patch.object(Function, "_enter", count))
        else:
            ours = graph_class()
            stack.enter_context(mock.patch.object(torch.cuda, "CUDAGraph", ours))
            stack.enter_context(mock.patch.object(torch.cuda.graphs, "CUDAGraph", ours))
        yield


def without_manager(case: type) -> None:
    """Its fixture asserts that torch's manager has nothing left."""
    import torch

    def end(self: Any) -> None:
        super(case, self).tearDown()
        torch._dynamo.reset()
        self.graph_stack.close()

    if hasattr(case, "get_manager"):
        case.tearDown = end  # type: ignore[attr-defined]


# --- the run ----------------------------------------------------------------------------------------


class Result(unittest.TextTestResult):
    """Knows which tests captured graphs of ours."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.captured: list[str] = []
        self.empty: list[str] = []

    def startTest(self, test: unittest.TestCase) -> None:
        Tally.captures = 0
        super().startTest(test)

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        if not self.skipped or self.skipped[-1][0] is not test:
            (self.captured if Tally.captures else self.empty).append(test.id().rpartition(".")[2])


def choose(file: Path, whole: bool) -> unittest.TestSuite:
    """The tests of a file that mean graphs. Prints the tests that are left out. Raises Unusable."""
    chosen = unittest.TestSuite()
    for case, name in tests_of(load(file)):
        reason = reason_against(case, name, whole)
        if not reason:
            without_manager(case)
            chosen.addTest(case(name))
        elif reason != "it has no graph":
            print(f"left out: {name}: {reason}")
    return chosen


def run(file: Path, whole: bool) -> bool:
    """Whether all chosen tests of the file passed, and at least one captured a graph of ours. Raises Unusable."""
    with ours_in_place(whole):
        result = unittest.TextTestRunner(verbosity=2, resultclass=Result).run(choose(file, whole))
    assert isinstance(result, Result)
    ran = len(result.captured) + len(result.empty)
    print(f"{file.name}: of {ran} tests that ran {len(result.captured)} captured graphs of ours")
    for name in result.empty:
        print(f"captured nothing: {name}")
    return result.wasSuccessful() and bool(result.captured)


def main() -> int:
    files = {name: find(name) for name in ("test_cuda.py", "inductor/test_cudagraph_trees.py")}
    if not any(files.values()):
        print(f"PyTorch's tests are not here: set {VARIABLE} to its folder test")
        return 2
    try:
        passed = [run(file, "trees" in name) for name, file in files.items() if file]
    except Unusable as reason:
        print(f"PyTorch's tests cannot run: {reason}")
        return 2
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
