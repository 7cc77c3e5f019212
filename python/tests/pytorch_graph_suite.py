# SPDX-License-Identifier: Apache-2.0
"""Runs PyTorch's own tests of captured graphs with ours in the place of torch's. Wants a card.

usage: ONECOPY_PYTORCH_GRAPHS=.../pytorch/test pytorch_graph_suite.py [unittest arguments]

The folder has test_cuda.py and inductor/test_cudagraph_trees.py, which are in PyTorch's source tree and not in its
wheels. In the first one each torch.cuda.CUDAGraph captures into an arena: graphs of one pool share one. In the second
one torch.compile(mode="reduce-overhead") is our backend. Tests that look into torch's own bookkeeping are left out, and
named with the reason.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import sys
import unittest
from pathlib import Path
from types import ModuleType
from typing import Any

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
}
"""Of test_cuda.py, by reading."""

INTERNALS = re.compile(
    r"get_manager|get_roots|curr_node|get_root_children|num_checkpoints|cudagraphify_impl|capture_stderr|FileCheck"
    r"|all_live_block|cudagraph_segments|get_all_cudagraph|counters\[|tree_manager|cdata\("
)
"""Words of tests that look into torch's manager of graphs, or for its messages."""


def find(name: str) -> Path | None:
    """One of the two files, or None."""
    folder = os.environ.get(VARIABLE)
    file = Path(folder) / name if folder else None
    return file if file and file.is_file() else None


def load(file: Path) -> ModuleType:
    """The file's module, without torch's division of tests among machines."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    suite = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(suite)
    vars(suite).pop("load_tests", None)
    return suite


def tests_of(suite: ModuleType) -> list[tuple[type, str]]:
    """All tests, by class and name."""
    cases = [one for one in vars(suite).values() if isinstance(one, type) and issubclass(one, unittest.TestCase)]
    return [(case, name) for case in cases for name in unittest.defaultTestLoader.getTestCaseNames(case)]


def reason_against(case: type, name: str, whole: bool) -> str:
    """Why it is not run: empty if it is. Of a file that is about graphs as a ``whole`` all tests are candidates."""
    source = inspect.getsource(inspect.unwrap(getattr(case, name)))
    if not whole and not re.search(r"CUDAGraph\(|cuda\.graph\(|make_graphed_callables", source):
        return "it has no graph"
    if name in DIFFERS:
        return DIFFERS[name]
    looked_at = sorted(set(INTERNALS.findall(source))) if whole else []
    return f"it looks into torch's manager: {', '.join(looked_at)}" if looked_at else ""


# --- ours in the place of torch's -------------------------------------------------------------------


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
            finally:
                self.into = None

        def pool(self) -> Any:
            return self.handle

    return InArena


def compile_with_ours(function: Any = None, **named: Any) -> Any:
    """torch.compile() with our backend for the mode that captures."""
    if function is None:
        return lambda given: compile_with_ours(given, **named)
    if named.get("mode") == "reduce-overhead" or named.get("backend") == "cudagraphs":
        from onecopy import graphs

        named = {k: v for k, v in named.items() if k not in ("mode", "backend", "options")}
        return _compile(function, backend=graphs.backend(codegen="inductor"), **named)
    return _compile(function, **named)


_compile: Any = None


def put_ours_in() -> None:
    """For the rest of the process."""
    global _compile
    import torch

    torch.cuda.CUDAGraph = torch.cuda.graphs.CUDAGraph = graph_class()  # type: ignore[misc]
    _compile, torch.compile = torch.compile, compile_with_ours


def without_manager(case: type) -> None:
    """Its fixture asserts that torch's manager has nothing left."""
    import torch

    def end(self: Any) -> None:
        super(case, self).tearDown()
        torch._dynamo.reset()
        self.graph_stack.close()

    if hasattr(case, "get_manager"):
        case.tearDown = end  # type: ignore[attr-defined]


def choose(file: Path, whole: bool) -> unittest.TestSuite:
    """The tests of a file that mean graphs. Prints those that are left out."""
    chosen = unittest.TestSuite()
    for case, name in tests_of(load(file)):
        reason = reason_against(case, name, whole)
        if not reason:
            without_manager(case)
            chosen.addTest(case(name))
        elif reason != "it has no graph":
            print(f"left out: {name}: {reason}")
    return chosen


def main() -> int:
    files = {name: find(name) for name in ("test_cuda.py", "inductor/test_cudagraph_trees.py")}
    if not any(files.values()):
        print(f"PyTorch's tests are not here: set {VARIABLE} to its folder test")
        return 2
    put_ours_in()
    suite = unittest.TestSuite(choose(file, "trees" in name) for name, file in files.items() if file)
    return 0 if unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
