# SPDX-License-Identifier: Apache-2.0
"""What the package promises to type checkers is what it has."""

import ast
import difflib
import inspect
import pathlib

import pytest

import onecopy

PACKAGE = pathlib.Path(onecopy.__file__).parent


def test_the_package_says_that_it_is_typed():
    assert (PACKAGE / "py.typed").is_file()
    assert (PACKAGE / "_core.pyi").is_file()


def test_stubs_are_those_of_the_extension(tmp_path):
    """After a change: python -m nanobind.stubgen -m onecopy._core -o python/onecopy/_core.pyi"""
    stubgen = pytest.importorskip("nanobind.stubgen")
    stub = stubgen.StubGen(onecopy._core)
    stub.put(onecopy._core)
    expected = (PACKAGE / "_core.pyi").read_text()
    difference = list(difflib.unified_diff(expected.splitlines(), stub.get().splitlines(), lineterm=""))
    assert not difference, "\n".join(difference)


def stub_tree() -> ast.Module:
    return ast.parse((PACKAGE / "_core.pyi").read_text())


def test_stubs_are_python_and_know_every_name_they_use():
    tree = stub_tree()
    known = set(dir(__builtins__)) | set(__builtins__ if isinstance(__builtins__, dict) else ())
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            known |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            known.add(node.name)
        elif isinstance(node, ast.arg):
            known.add(node.arg)
        elif isinstance(node, ast.Assign):
            known |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            known.add(node.target.id)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert used <= known


def test_every_public_name_is_there_and_documented():
    assert sorted(onecopy.__all__) == onecopy.__all__
    for name in onecopy.__all__:
        assert inspect.getdoc(getattr(onecopy, name)), name
    public = {n for n in vars(onecopy._core) if not n.startswith(("_", "torch_"))}
    assert public <= set(onecopy.__all__)


@pytest.mark.parametrize("name", ["Tensor", "Handle", "Bundle"])
def test_every_public_method_is_documented(name):
    kind = getattr(onecopy, name)
    undocumented = [n for n, member in vars(kind).items() if not n.startswith("_") and not inspect.getdoc(member)]
    assert not undocumented


def test_pure_python_modules_are_annotated():
    for file in ("__init__.py", "errors.py", "dtypes.py", "_reopen.py"):
        for node in ast.walk(ast.parse((PACKAGE / file).read_text())):
            if isinstance(node, ast.FunctionDef):
                assert node.returns is not None, f"{file}: {node.name}"
                assert all(a.annotation for a in node.args.args if a.arg not in ("self", "cls")), f"{file}: {node.name}"
