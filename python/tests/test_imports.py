# SPDX-License-Identifier: Apache-2.0
"""The import graph of the package has no circle: each module stands on modules below it.

Imports inside functions count as well. Names that a package looks up lazily by `import_module()` do not."""

from __future__ import annotations

import ast
import pathlib

ROOT = pathlib.Path(__file__).parents[1] / "onecopy"


def modules() -> dict[str, pathlib.Path]:
    found = {}
    for file in ROOT.rglob("*.py"):
        parts = file.relative_to(ROOT.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imports_of(name: str, file: pathlib.Path, known) -> set[str]:
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package.split(".")[: len(package.split(".")) + 1 - node.level]) if node.level else ""
            base = ".".join(part for part in (base, node.module or "") if part)
            names = [f"{base}.{alias.name}" for alias in node.names]
            found.update(name if name in known else base for name in names)
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


def test_rpc_does_not_import_distributed():
    known = modules()
    up = {n for n, f in known.items() if n.startswith("onecopy.rpc")}
    assert {o for n in up for o in imports_of(n, known[n], known) if o.startswith("onecopy.distributed")} == set()
