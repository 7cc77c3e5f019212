# SPDX-License-Identifier: Apache-2.0
"""Pages of the Python API from docstrings and stubs: nothing is imported, so that nothing need be installed."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2] / "python/onecopy"

# Module, and the file that it is in. Its __all__ lists the public names.
MODULES = {
    "onecopy": "__init__.py",
    "onecopy.errors": "errors.py",
    "onecopy.torch": "torch.py",
    "onecopy.hf": "hf.py",
    "onecopy.graphs": "graphs/__init__.py",
    "onecopy.rpc": "rpc/__init__.py",
    "onecopy.integrations.ray": "integrations/ray.py",
    "onecopy.integrations.vllm": "integrations/vllm.py",
    "onecopy.integrations.sglang": "integrations/sglang.py",
    "onecopy.integrations.lmcache": "integrations/lmcache.py",
    "onecopy.integrations.joblib": "integrations/joblib.py",
}


def write(target: Path) -> list[str]:
    """One page a module; their names."""
    target.mkdir(parents=True, exist_ok=True)
    for module, file in MODULES.items():
        (target / f"{module}.md").write_text(_page(module, ROOT / file))
    return [f"{module}.md" for module in MODULES]


def _page(module: str, file: Path) -> str:
    tree = ast.parse(file.read_text())
    parts = [f"# {module}\n", prose(ast.get_docstring(tree) or "")]
    for name in _public(tree, module):
        if (found := _find(name, file)) is not None:
            parts.append(_definition(name, found))
    return "\n\n".join(parts) + "\n"


def _public(tree: ast.Module, module: str) -> list[str]:
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if [getattr(target, "id", "") for target in targets] == ["__all__"] and node.value is not None:
            names = [name for name in ast.literal_eval(node.value) if not name.startswith("__")]
            return sorted(names, key=lambda name: (name[0].isupper(), name.lower()))
    return [node.name for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]


def _find(name: str, file: Path) -> list[ast.AST] | None:
    """Its definitions, overloads included: here, or in the module that it is imported from."""
    tree = ast.parse(file.read_text())
    here = [node for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == name]
    if here:
        return here
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.level and node.module:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    base = file.parents[node.level - 1] / node.module.replace(".", "/")
                    options = [base.with_suffix(".pyi"), base.with_suffix(".py"), base / "__init__.py"]
                    found = next((option for option in options if option.exists()), None)
                    return _find(alias.name, found) if found else None
    return None


def _definition(name: str, nodes: list[ast.AST]) -> str:
    if isinstance(nodes[0], ast.FunctionDef):
        text = "\n".join(_signature(node) for node in nodes)
        doc = next((ast.get_docstring(node) for node in nodes if ast.get_docstring(node)), "")
        return f"## {name}() {{ #{name} }}\n\n```python\n{text}\n```\n\n{prose(doc)}"
    return _class(name, nodes[0])


def _class(name: str, node: ast.ClassDef) -> str:
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    parts = [f"## class {name} {{ #{name} }}", f"```python\nclass {name}{f'({bases})' if bases else ''}\n```",
             prose(ast.get_docstring(node) or "")]  # fmt: skip
    members: dict[str, list[ast.FunctionDef]] = {}
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and (not member.name.startswith("_") or _is_said(member)):
            members.setdefault(member.name, []).append(member)
    for title, overloads in members.items():
        doc = next((ast.get_docstring(member) for member in overloads if ast.get_docstring(member)), "")
        text = "\n".join(_signature(member) for member in overloads)
        parts.append(f"### `{name}.{title}` {{ #{name}.{title} }}\n\n```python\n{text}\n```\n\n{prose(doc)}")
    return "\n\n".join(part for part in parts if part)


def _is_said(member: ast.FunctionDef) -> bool:
    return member.name in ("__getitem__", "__setitem__", "__str__") and ast.get_docstring(member) is not None


def _signature(node: ast.FunctionDef) -> str:
    decorators = [
        ast.unparse(one)
        for one in node.decorator_list
        if ast.unparse(one) in ("property", "staticmethod", "classmethod")
    ]
    if decorators == ["property"]:
        return f"{node.name}: {ast.unparse(node.returns) if node.returns else 'object'}"
    given = ast.unparse(node.args)
    text = f"{node.name}({re.sub(r'^(self|cls)(, )?', '', given)})"
    if len(text) > 72:
        text = text.replace(", ", ",\n    ").replace("(", "(\n    ", 1)[:-1] + "\n)"
    return text + (f" -> {ast.unparse(node.returns)}" if node.returns else "")


# --- docstrings as Markdown -------------------------------------------------------------------------


def prose(doc: str) -> str:
    """Sections become lists, doubled backticks single ones, and examples blocks of code."""
    doc = inspect.cleandoc(doc)
    doc = re.sub(r"^((?:>>> .*\n?|\.\.\. .*\n?)(?:(?!>>>|\n).*\n?)*)+", _session, doc, flags=re.MULTILINE)
    doc = re.sub(
        r"::\n\n((?:    .*\n?|\n)+)", lambda m: ":\n\n```python\n" + textwrap.dedent(m[1]).strip() + "\n```\n\n", doc
    )
    doc = re.sub(
        r"^(Args|Attributes|Returns|Raises|Yields):\n((?:    .*\n?|\n(?=    ))+)", _section, doc, flags=re.MULTILINE
    )
    return re.sub(r"(?<!`)``(?!`)", "`", doc).strip()


def _session(match: re.Match) -> str:
    return "```pycon\n" + match[0].rstrip("\n") + "\n```\n"


def _section(match: re.Match) -> str:
    items = textwrap.dedent(match[2]).strip()
    joined = re.sub(r"\n {2,}", " ", items)
    if match[1] in ("Returns", "Yields"):
        return f"**{match[1]}** {' '.join(joined.split())}\n"
    rows = [re.sub(r"^([\w.*, ]+?):", r"`\1`:", row) for row in joined.splitlines() if row.strip()]
    return f"**{match[1]}**\n\n" + "\n".join(f"- {row}" for row in rows) + "\n"
