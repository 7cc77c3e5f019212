# SPDX-License-Identifier: Apache-2.0
"""The package works without the parts that can be left out of it. `./dev test seams` runs this file in a package that was built
without these parts."""

import importlib.util
import pathlib
import subprocess

import pytest

import onecopy

LEFT_OUT = ("distributed", "integrations")
IMPORTS = """
    import pkgutil, sys, onecopy
    hidden = sys.argv[1:]
    for name in hidden:
        sys.modules[f"onecopy.{name}"] = None  # an import of it is a ModuleNotFoundError
    without = (*(f"onecopy.{name}" for name in (*hidden, "hf")), "onecopy.__main__")
    for module in pkgutil.walk_packages(onecopy.__path__, "onecopy.", onerror=lambda name: None):
        if not module.name.startswith(without):
            __import__(module.name)
    print([name for name in hidden if sys.modules[f"onecopy.{name}"] is not None])
"""

BACKWARD = """
    import sys
    sys.modules["onecopy.distributed"] = None  # an import of it is a ModuleNotFoundError
    import onecopy, onecopy.rpc as rpc, torch

    @rpc.export
    def loss():
        return torch.ones(1, requires_grad=True).sum()

    rpc.init("only", rank=0, world_size=1, rendezvous=f"file://{sys.argv[1]}")
    value = rpc.remote("only", loss)
    try:
        value.backward(1)
    except onecopy.MissingPackage as error:
        print(error.name, error)
    value.backward()
    rpc.shutdown()
"""


OVER_UCX = """
    import sys
    import onecopy, onecopy.rpc as rpc

    try:
        rpc.init("only", rank=0, world_size=1, rendezvous=f"file://{sys.argv[1]}", transport="ucx")
        rpc.shutdown()
    except onecopy.Unsupported as error:
        print(error)
"""


def test_a_package_has_both_halves_of_distributed_or_none():
    is_there = importlib.util.find_spec("onecopy.distributed") is not None
    assert hasattr(onecopy._core, "_Evaluation") == is_there


def test_every_other_module_is_imported_without_the_parts(run_python):
    pytest.importorskip("torch")
    there = [name for name in LEFT_OUT if importlib.util.find_spec(f"onecopy.{name}") is not None]
    assert run_python(IMPORTS, *there, stderr=None) == "[]\n"


def test_a_backward_pass_without_distributed_says_how_to_build_it(run_python, tmp_path):
    pytest.importorskip("torch")
    out = run_python(BACKWARD, str(tmp_path / "meeting"))
    assert out.startswith("onecopy.distributed distributed autograd needs the package onecopy.distributed")
    assert "ONECOPY_DISTRIBUTED=ON" in out


def test_doctor_and_rpc_agree_whether_the_build_has_ucx(run_python, tmp_path, monkeypatch):
    monkeypatch.setenv("ONECOPY_RPC_KEY", "a secret of this test, of 40 characters..")
    monkeypatch.setenv("ONECOPY_RPC_LISTEN", "127.0.0.1:0")
    built = pathlib.Path(onecopy._core.__file__).parents[2] / "bin/onecopy"
    command = built if built.exists() else onecopy.store._command()
    said = subprocess.run([command, "doctor"], capture_output=True, text=True, check=False).stdout
    is_left_out = "built without UCX: build it with -DONECOPY_UCX=ON" in " ".join(said.split())
    out = run_python(OVER_UCX, str(tmp_path / "meeting"), stderr=None)
    assert ("ONECOPY_UCX=ON" in out) == is_left_out, said


def test_processes_call_each_other_without_the_parts(run_file, repository):
    pytest.importorskip("torch")
    example = repository / "examples/python/rpc_native.py"
    assert run_file(example) == example.with_suffix(".expected").read_text()
