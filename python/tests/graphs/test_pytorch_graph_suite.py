# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own tests of captured graphs, where its source tree and a card are at hand; how they are chosen,
everywhere.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
import types
from pathlib import Path

import pytest

import pytorch_graph_suite as runner

torch = pytest.importorskip("torch", reason="wants torch installed")

SUITE = """
import unittest
import torch

class Tests(unittest.TestCase):
    def get_manager(self): ...
    def count_graphs(self, function): self.get_manager()
    def in_a_graph(self): torch.cuda.CUDAGraph()
    def test_has_a_graph(self): torch.cuda.CUDAGraph()
    def test_has_one_by_a_method(self): self.in_a_graph()
    def test_has_none(self): ...
    def test_compiles(self): torch.compile(len)
    def test_compiles_below(self): compile_fx_inner(torch.compile)
    def test_graph_three_successive(self): torch.cuda.CUDAGraph()
    def test_looks_in(self): self.get_manager()
    def test_looks_in_by_a_method(self): self.count_graphs(torch.compile(len))

def load_tests(loader, tests, pattern): raise AssertionError("it shards")
"""


def suite_file(tmp_path, text):
    file = tmp_path / "suite_of_ours.py"
    file.write_text(textwrap.dedent(text))
    return file


def reasons(tmp_path, whole):
    suite = runner.load(suite_file(tmp_path, SUITE))
    return {name: runner.reason_against(case, name, whole) for case, name in runner.tests_of(suite)}


def test_of_a_file_about_much_the_tests_with_graphs_are_chosen(tmp_path):
    chosen = reasons(tmp_path, whole=False)
    assert chosen.pop("test_graph_three_successive") == runner.CORRUPTION
    assert [name for name, reason in chosen.items() if not reason] == ["test_has_a_graph", "test_has_one_by_a_method"]
    assert set(chosen.values()) == {"", "it has no graph"}


def test_of_a_file_about_graphs_those_that_look_into_torchs_manager_are_left_out(tmp_path):
    chosen = reasons(tmp_path, whole=True)
    assert [name for name, reason in chosen.items() if not reason] == ["test_compiles"]
    assert chosen["test_looks_in"] == "it looks into torch's manager: get_manager"
    assert chosen["test_has_none"] == "it compiles nothing"
    assert "below the backend" in chosen["test_compiles_below"]


def test_a_method_of_the_file_that_looks_into_torchs_manager_is_seen(tmp_path):
    assert reasons(tmp_path, whole=True)["test_looks_in_by_a_method"] == "it looks into torch's manager: get_manager"


def test_the_mode_that_captures_becomes_our_backend(monkeypatch):
    asked = []
    monkeypatch.setattr(runner, "_compile", lambda function, **named: asked.append(named))
    runner.compile_with_ours(mode="reduce-overhead", dynamic=True)(len)
    runner.compile_with_ours(len, fullgraph=True)
    assert callable(asked[0].pop("backend")) and asked == [{"dynamic": True}, {"fullgraph": True}]


def test_where_torchs_configuration_captures_plain_compile_is_our_backend_too(monkeypatch):
    import torch._inductor.config

    asked = []
    monkeypatch.setattr(runner, "_compile", lambda function, **named: asked.append(named))
    with torch._inductor.config.patch({"triton.cudagraphs": True}):
        runner.compile_with_ours()(len)
        runner.compile_with_ours(len, backend="eager")
    assert callable(asked[0].pop("backend")) and asked == [{}, {"backend": "eager"}]


def test_beside_our_backend_torchs_class_of_graphs_stays():
    torchs, compile_of_torch = torch.cuda.CUDAGraph, torch.compile
    with runner.ours_in_place(whole=True):
        assert torch.cuda.CUDAGraph is torch.cuda.graphs.CUDAGraph is torchs
        assert torch.compile is not compile_of_torch
    with runner.ours_in_place(whole=False):
        assert torch.cuda.CUDAGraph is torch.cuda.graphs.CUDAGraph is not torchs
        assert torch.compile is compile_of_torch
    assert torch.cuda.CUDAGraph is torchs and torch.compile is compile_of_torch


CAPTURES = """
import unittest
import torch

class Tests(unittest.TestCase):
    def test_captures(self):
        call = torch.compile(lambda x: x + 1, mode="reduce-overhead")
        with torch.no_grad():
            self.assertEqual(call(torch.ones(3)).tolist(), [2, 2, 2])
    def test_with_gradients(self):
        call = torch.compile(lambda x: x + 1, mode="reduce-overhead")
        self.assertEqual(call(torch.ones(3, requires_grad=True)).tolist(), [2, 2, 2])
"""


@pytest.mark.filterwarnings("ignore")
def test_tests_that_captured_nothing_are_named(tmp_path, capsys):
    assert runner.run(suite_file(tmp_path, CAPTURES), whole=True)
    said = capsys.readouterr().out
    assert "of 2 tests that ran 1 captured graphs of ours" in said and "captured nothing: test_with_gradients" in said


@pytest.mark.filterwarnings("ignore")
def test_a_file_of_which_no_test_captured_anything_has_failed(tmp_path):
    assert not runner.run(suite_file(tmp_path, CAPTURES.replace("torch.no_grad()", "torch.enable_grad()").replace(
        "torch.ones(3)", "torch.ones(3, requires_grad=True)")), whole=True)  # fmt: skip


def renamed(monkeypatch, **names):
    module = types.ModuleType("renamed_by_torch")
    vars(module).update(names)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(runner, "RENAMED", {module.__name__: [("OLD", "NEW")]})


@pytest.mark.parametrize(("has", "wanted"), [("OLD", "NEW"), ("NEW", "OLD"), ("OLD", "OLD")])
def test_a_name_of_another_version_of_torch_is_found(tmp_path, monkeypatch, has, wanted):
    renamed(monkeypatch, **{has: 7})
    suite = runner.load(suite_file(tmp_path, f"from renamed_by_torch import {wanted} as it"))
    assert suite.it == 7


def fails_with(tmp_path, monkeypatch, capsys, text):
    (tmp_path / "test_cuda.py").write_text(text)
    monkeypatch.setenv(runner.VARIABLE, str(tmp_path))
    assert runner.main() == 2
    return capsys.readouterr().out


def test_a_name_that_no_version_has_is_told_plainly(tmp_path, monkeypatch, capsys):
    renamed(monkeypatch, OTHER=7)
    said = fails_with(tmp_path, monkeypatch, capsys, "from renamed_by_torch import OLD")
    assert f"test_cuda.py is not of torch {torch.__version__}" in said and "OLD" in said


def test_a_package_that_is_missing_is_told_plainly(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "expecttest", None)
    said = fails_with(tmp_path, monkeypatch, capsys, "import expecttest")
    assert "test_cuda.py wants the package expecttest, which is not installed" in said


def test_without_the_files_it_says_where_they_belong(monkeypatch, capsys):
    monkeypatch.delenv(runner.VARIABLE, raising=False)
    assert runner.main() == 2 and runner.VARIABLE in capsys.readouterr().out


@pytest.mark.skipif(
    runner.find("test_cuda.py") is None or not torch.cuda.is_available(),
    reason=f"wants a CUDA GPU, and the folder test of PyTorch's source tree in {runner.VARIABLE}",
)
def test_all_of_them():
    result = subprocess.run([sys.executable, str(Path(runner.__file__))], capture_output=True, text=True, timeout=1500)
    assert result.returncode == 0, result.stderr[-8000:]
