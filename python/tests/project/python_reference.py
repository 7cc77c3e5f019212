# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/reference/python.md, made from signatures and docstrings of the package.

``python python/tests/project/python_reference.py`` writes them again. A table follows a comment that names a module and its
names: ``<!-- onecopy.store: connect, Store -->``. A class has a row for each of its public methods and properties.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[3] / "docs/reference/python.md"
TABLE = re.compile(r"<!-- (onecopy[\w.]*): ([\w, ]+) -->\n\n(?:\|.*\n)*")
HEAD = "| call | does | raises |\n|---|---|---|\n"

# Modules whose public names are on the page.
MODULES = ("onecopy", "onecopy.store", "onecopy.torch", "onecopy.hf", "onecopy.rpc", "onecopy.graphs", "onecopy.checkpoint",
           "onecopy.integrations.vllm", "onecopy.integrations.sglang")  # fmt: skip
# Public names that the page has elsewhere: modules of their own, and the errors, which have another table.
ELSEWHERE = {"errors", "hf", "store", "torch", "__version__"}
# Classes of which a row is enough: values, and classes that torch or Python describe.
ROWS = {"DType", "Message", "PipeHandle", "GraphRow", "Report", "Route", "WorkerInfo", "StoreReader", "StoreWriter", "Offer"}  # fmt: skip
# Classes whose other methods are for onecopy itself, or torch describes them.
ONLY = {"Arena": {"park", "resume"}, "Stream": {"close"},
        "Call": {"add_done_callback", "cancel", "done", "then", "trace", "wait"},
        "PyRRef": {"local_value", "owner", "remote", "rpc_async", "rpc_sync", "to_here"}}  # fmt: skip
# Classes of which a program gets objects by calls alone.
MADE_BY_CALLS = {"Call", "Stream"}
# Attributes without a docstring.
TEXTS = {"Draft.version": "The number of the version, once it is published",
         "Transaction.number": "The number of the versions, once they are current"}  # fmt: skip
RESULTS = {"F": "", "_T": "", "PyRRef": "Reference"}


def listed(text: str) -> dict[str, set[str]]:
    """Returns the names that the page lists, by module."""
    found: dict[str, set[str]] = {}
    for module, names in TABLE.findall(text):
        found.setdefault(module, set()).update(names.split(", "))
    return found


def is_error(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


def public(module: str) -> set[str]:
    """Returns the names that the page must have for a module."""
    made = importlib.import_module(module)
    return {name for name in made.__all__ if name not in ELSEWHERE and not is_error(getattr(made, name))}


def signature(name: str, value: Any) -> str:
    """Returns the call as a text, with the class of the result where it is a short name."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return name
    parameters = [p.replace(annotation=p.empty) for p in found.parameters.values() if p.name != "self"]
    text = str(found.replace(parameters=parameters, return_annotation=found.empty)).replace("'", '"')
    result = found.return_annotation
    result = result if isinstance(result, str) else getattr(result, "__name__", "")
    result = re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", result.strip("'\""))
    result = RESULTS.get(result, "" if "_T" in result else result)
    shows = result not in ("", "None", "Any", "_empty") and not isinstance(value, type) and len(result) < 40
    return f"{name}{text}{f' -> {result}' if shows else ''}"


def paragraphs(value: Any) -> list[str]:
    """Returns the docstring as paragraphs, without the line of the signature that nanobind writes first."""
    text = inspect.getdoc(value) or ""
    return [p for p in text.split("\n\n") if not re.match(r"\w+\(.*\) -> .*$|\w+\(.*\)$", p)]


def does(value: Any) -> str:
    """Returns the first sentence of the docstring."""
    first = " ".join(next(iter(paragraphs(value)), "").split()).replace("``", "`")
    first = re.split(r":: |::$| >>>", first)[0]
    return coded(re.split(r"(?<=[.])(?<!e\.g\.)\s+(?=[A-Z`])", first)[0]).replace("|", "\\|").rstrip(".")


def coded(text: str) -> str:
    """Returns the text with calls outside of code as code."""
    parts = text.split("`")
    parts[::2] = (re.sub(r"[\w.:]+\((?:\*args, \*\*kwargs|[\w.()]*)\)", r"`\g<0>`", part) for part in parts[::2])
    return "`".join(parts)


def raises(value: Any) -> str:
    """Returns the names of the errors in the docstring, or of the function with the same errors."""
    text = inspect.getdoc(value) or ""
    block = re.search(r"Raises:\n((?:[ \t]+.*\n?)+)", text)
    names: list[str] = []
    for line in re.findall(r"^ {4}(\w+(?:, \w+)*):", block[1] if block else "", re.MULTILINE):
        names += line.split(", ")
    shown = [f"`{name}`" for name in names]
    if others := re.search(r"Raises as ``(\w+\(\))``", text):
        shown.append(f"as `{others[1]}`")
    elif one := re.search(r"Raises ([A-Z]\w+)\b", text):
        shown.append(f"`{one[1]}`")
    return ", ".join(shown)


def row(call: str, of: Any) -> str:
    text, call = TEXTS.get(call, "") or does(of), call.replace("|", "\\|")
    return f"| `{call}` | {text} | {raises(of)} |\n"


def members(value: type, module: str) -> Iterator[str]:
    """Yields the public names of a class, without names of mappings and of a base that has rows of its own."""
    made = importlib.import_module(module)
    bases = [base for base in value.__mro__[1:] if base.__name__ in made.__all__]
    for name in sorted(dir(value)):
        is_of_mapping = (value.__name__ == "Bundle" or issubclass(value, Mapping)) and hasattr(Mapping, name)
        is_inherited = any(hasattr(base, name) for base in bases)
        is_left_out = value.__name__ in ONLY and name not in ONLY[value.__name__]
        if hasattr(value, name) and not (name.startswith("_") or is_of_mapping or is_inherited or is_left_out):
            yield name


def rows_of(module: str, name: str) -> Iterator[str]:
    """Yields the rows of a function, or of a class with its methods and properties."""
    value = getattr(importlib.import_module(module), name)
    prefix = "" if module == "onecopy" else module.rsplit(".", maxsplit=1)[-1] + "."
    is_made_by_calls = module in ("onecopy.store", "onecopy.graphs") or name in MADE_BY_CALLS
    is_made_elsewhere = isinstance(value, type) and is_made_by_calls
    yield row(name if is_made_elsewhere else signature(prefix + name, value), value)
    if not isinstance(value, type) or name in ROWS:
        return
    for member in members(value, module):
        static, found = inspect.getattr_static(value, member), getattr(value, member)
        call = signature(f"{name}.{member}", found) if callable(found) else f"{name}.{member}"
        yield row(call, static if isinstance(static, property) else found)


def page(text: str) -> str:
    """Returns the text of the page with the tables made anew."""

    def made(match: re.Match[str]) -> str:
        rows = (line for name in match[2].split(", ") for line in rows_of(match[1], name))
        return f"<!-- {match[1]}: {match[2]} -->\n\n{HEAD}{''.join(rows)}"

    return TABLE.sub(made, text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
