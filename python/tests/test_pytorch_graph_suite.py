# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own tests of captured graphs, where its source tree and a card are at hand; how they are chosen, everywhere."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import pytorch_graph_suite as runner

torch = pytest.importorskip("torch", reason="wants torch installed")

SUITE = '''
import unittest
import torch

class Tests(unittest.TestCase):
    def get_manager(self): ...
    def test_has_a_graph(self): torch.cuda.CUDAGraph()
    def test_has_none(self): ...
    def test_graph_three_successive(self): torch.cuda.CUDAGraph()
    def test_looks_in(self): self.get_manager()

def load_tests(loader, tests, pattern): raise AssertionError("it shards")
'''


def reasons(tmp_path, whole):
    file = tmp_path / "suite_of_ours.py"
    file.write_text(textwrap.dedent(SUITE))
    return {name: runner.reason_against(case, name, whole) for case, name in runner.tests_of(runner.load(file))}


def test_of_a_file_about_much_the_tests_with_graphs_are_chosen(tmp_path):
    assert reasons(tmp_path, whole=False) == {
        "test_has_a_graph": "", "test_has_none": "it has no graph", "test_looks_in": "it has no graph",
        "test_graph_three_successive": runner.CORRUPTION,
    }  # fmt: skip


def test_of_a_file_about_graphs_those_that_look_into_torchs_manager_are_left_out(tmp_path):
    chosen = reasons(tmp_path, whole=True)
    assert not chosen["test_has_a_graph"] and not chosen["test_has_none"]
    assert chosen["test_looks_in"] == "it looks into torch's manager: get_manager"


def test_the_mode_that_captures_becomes_our_backend(monkeypatch):
    asked = []
    monkeypatch.setattr(runner, "_compile", lambda function, **named: asked.append(named))
    runner.compile_with_ours(mode="reduce-overhead", dynamic=True)(len)
    runner.compile_with_ours(len, fullgraph=True)
    assert callable(asked[0].pop("backend")) and asked == [{"dynamic": True}, {"fullgraph": True}]


def test_without_the_files_it_says_where_they_belong(monkeypatch, capsys):
    monkeypatch.delenv(runner.VARIABLE, raising=False)
    assert runner.main() == 2 and runner.VARIABLE in capsys.readouterr().out


@pytest.mark.skipif(
    runner.find("test_cuda.py") is None or not torch.cuda.is_available(),
    reason=f"wants a CUDA GPU, and the folder test of PyTorch's source tree in {runner.VARIABLE}",
)
def test_all_of_them():
    result = subprocess.run(
        [sys.executable, str(Path(runner.__file__))], capture_output=True, text=True, timeout=1500
    )
    assert result.returncode == 0, result.stderr[-8000:]
