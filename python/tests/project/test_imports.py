# SPDX-License-Identifier: Apache-2.0
"""The import graph of the package has no circle, and its arrows point down: each module stands on modules below it.

Imports inside functions count as well. Names that a package looks up lazily by `import_module()` do not."""

from __future__ import annotations

import ast
import pathlib

ROOT = pathlib.Path(__file__).parents[2] / "onecopy"


def modules() -> dict[str, pathlib.Path]:
    found = {}
    for file in ROOT.rglob("*.py"):
        parts = file.relative_to(ROOT.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def targets(name: str, file: pathlib.Path, node: ast.AST) -> list[tuple[str, str]]:
    """Returns what a statement imports: pairs of a module, and a name in it or nothing."""
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    if isinstance(node, ast.Import):
        return [(alias.name, "") for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    base = ".".join(package.split(".")[: len(package.split(".")) + 1 - node.level]) if node.level else ""
    base = ".".join(part for part in (base, node.module or "") if part)
    return [(base, alias.name) for alias in node.names]


def imports_of(name: str, file: pathlib.Path, known) -> set[str]:
    found = {
        f"{base}.{part}" if f"{base}.{part}" in known else base
        for node in ast.walk(ast.parse(file.read_text()))
        for base, part in targets(name, file, node)
    }
    return {other for other in found if other in known and other != name}


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The strongly connected components with more than one module: what is left when leaves and roots are taken away."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        left = [start]
        while left:
            for other in graph[left.pop()]:
                if other not in seen:
                    seen.add(other)
                    left.append(other)
        return seen

    reach = {name: reached(name) for name in graph}
    groups = {frozenset(o for o in reach[n] if n in reach[o]) for n in graph if n in reach[n]}
    return sorted(sorted(group) for group in groups)


def test_the_checker_finds_a_circle_of_three():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": set()}) == [["a", "b", "c"]]


def test_rpc_and_distributed_have_no_import_circle():
    known = modules()
    graph = {name: imports_of(name, file, known) for name, file in known.items()}
    rooms = ("onecopy.rpc", "onecopy.distributed")
    assert [c for c in circles(graph) if any(name.startswith(rooms) for name in c)] == []


# What a package or module of the package may import: what stands before it. ARCHITECTURE.md has the same order.
FLOORS = (
    ("_core", "dtypes", "errors", "__main__"),
    ("binding", "pickling"),
    ("torch",),
    ("store",),
    ("device",),
    ("checkpoint", "graphs", "multiprocessing", "rpc"),
    ("compat", "distributed", "integrations"),
    ("hf",),
)
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}


def rooms_of(name: str, file: pathlib.Path) -> set[str]:
    """Returns the packages and modules directly below onecopy that a module imports, itself excluded.

    Names that onecopy's users see count as their package; annotations, which `if TYPE_CHECKING` imports for, do not."""
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    found = set()
    for node in ast.walk(tree):
        for base, part in targets(name, file, node):
            words = f"{base}.{part}".split(".")
            if words[0] == "onecopy" and len(words) > 1 and words[1] in FLOOR:
                found.add(words[1])
    return found - {name.split(".")[1]}


def test_arrows_between_the_packages_point_down():
    upward = {
        (name, room)
        for name, file in modules().items()
        if name != "onecopy"
        for room in rooms_of(name, file)
        if FLOOR[room] >= FLOOR[name.split(".")[1]]
    }
    assert upward == set()


def test_every_module_is_public_or_in_a_package():
    loose = {name for name in modules() if name.count(".") == 1 and name.startswith("onecopy._")}
    assert loose == {"onecopy.__main__"}
    assert {name.split(".")[1] for name in modules() if "." in name} | {"_core"} == set(FLOOR)


def test_every_file_of_tests_lies_in_the_folder_of_what_it_tests():
    tests = pathlib.Path(__file__).parents[1]
    assert {file.name for file in tests.iterdir() if file.is_file()} == {"conftest.py", "nightly.py"}
    folders = {file.parent.name for file in tests.glob("*/test_*.py")} - {"project", "with_torch"}
    assert folders <= set(FLOOR)


def test_importing_onecopy_imports_no_package_that_only_some_programs_need(run_python):
    program = "import sys, onecopy\nprint(sorted(name for name in sys.modules if name.startswith('onecopy.')))"
    heavy = ("checkpoint", "graphs", "multiprocessing", "rpc", "distributed", "integrations", "store", "torch")
    assert not [name for name in ast.literal_eval(run_python(program)) if name.split(".")[1] in heavy]
