#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that no source of a layer can take a call of another source, when both are compiled as one.

    check_merged.py [ROOT]

Every folder of src, and python/src, is compiled many sources at a time (ONECOPY_MERGE_SOURCES). A function with
internal linkage is then seen by the sources behind it. A finding is such a function, and a call in another source of
the folder that would consider it: of its name, in its namespace or one within, with as many arguments as it takes.
Which overload is best is the compiler's business; two names are two functions in any order. Constants and types of one
name in one namespace do not compile, and are left to the compiler.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from typing import NamedTuple

NO_CODE = re.compile(
    r'//[^\n]*|/\*.*?\*/|^#[^\n]*(?:\\\n[^\n]*)*|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'',
    re.DOTALL | re.MULTILINE,
)
TEMPLATE_ARGUMENTS = re.compile(r"(?<=\w)<[\w:,\s*&.()]*?>(?=\s*[({:&*>,).;]|\s+\w)")
NAMESPACE = re.compile(r"namespace\s*([\w:]*)\s*{(?!.*})")
CALLABLE = re.compile(r"(?<![\w.~])(?<!->)((?:\w+::)*)(\w+)\s*\(")
KEYWORDS = {"if", "for", "while", "switch", "catch", "return", "sizeof", "alignof", "decltype", "noexcept", "alignas", "operator",
            "static_assert", "requires", "throw", "new", "co_return"}  # fmt: skip
DECLARES = re.compile(r"(\w+)[*&>]*\s+$")  # .clang-format puts blanks around operators, and none before a `*` of a type
NO_TYPES = {"return", "else", "do", "throw", "co_return", "and", "or", "not"}
ANY_NUMBER = 99


class Function(NamedTuple):
    """One with internal linkage: the least and the most arguments that it takes."""

    name: str
    scope: str
    least: int
    most: int


class Call(NamedTuple):
    qualifier: str
    name: str
    scope: str
    arguments: int


class Source(NamedTuple):
    path: str
    functions: set[Function]
    calls: set[Call]


def code_of(text: str) -> str:
    """The text with each literal as a number and neither comments nor arguments of templates."""
    text = NO_CODE.sub(lambda found: " " if found[0].startswith(("/", "#")) else "0", text)
    while (simpler := TEMPLATE_ARGUMENTS.sub("", text)) != text:
        text = simpler
    return text


def listed(text: str, begin: int) -> list[str]:
    """The elements of the list whose first parenthesis is at `begin`."""
    depth, elements = 0, [""]
    for letter in text[begin:]:
        depth += (letter in "([{") - (letter in ")]}")
        if depth == 0:
            break
        if letter == "," and depth == 1:
            elements.append("")
        else:
            elements[-1] += letter
    elements[0] = elements[0][1:]
    return [] if elements == [""] or not "".join(elements).strip() else elements


def declares(before: str) -> bool:
    """Whether a name behind this text is that of a variable, a member or a local function."""
    found = DECLARES.search(before)
    return bool(found) and found[1] not in NO_TYPES


def function(name: str, scope: str, parameters: list[str]) -> Function:
    most = ANY_NUMBER if any("..." in parameter for parameter in parameters) else len(parameters)
    return Function(name, scope, sum("=" not in p and "..." not in p for p in parameters), most)


def parsed(path: Path, root: Path) -> Source:
    """.clang-format indents nothing in a namespace, so a line that is not indented declares."""
    text, functions, calls, spaces = code_of(path.read_text()), set(), set(), []
    position = 0
    for line in text.splitlines(keepends=True):
        begins_static = line.startswith("static ")
        scope = "::".join(space for space in spaces if space)
        if found := NAMESPACE.match(line):
            spaces.append(found[1])
        elif line.startswith("} ") and spaces:
            spaces.pop()
        elif line[0].isalpha() or line[0] in "[_~":
            declared = next(
                (f for f in CALLABLE.finditer(line) if f[2] not in KEYWORDS and "=" not in line[: f.start()]), None
            )
            if declared and not declared[1] and ("" in spaces or begins_static):
                functions.add(function(declared[2], scope, listed(text, position + declared.end() - 1)))
        for call in CALLABLE.finditer(line):
            before = line[: call.start()]
            if (
                call[2] not in KEYWORDS
                and not declares(before)
                and (line[0].isspace() or before.rstrip().endswith(("{", "=", "(", ",", "return")))
            ):
                calls.add(Call(call[1], call[2], scope, len(listed(text, position + call.end() - 1))))
        position += len(line)
    return Source(str(path.relative_to(root)), functions, calls)


def takes(taker: Function, call: Call) -> bool:
    return (
        taker.name == call.name
        and f"{call.scope}::".startswith(f"{taker.scope}::")
        and (not call.qualifier or f"::{taker.scope}".endswith(f"::{call.qualifier[:-2]}"))
        and taker.least <= call.arguments <= taker.most
    )


def findings(sources: list[Source]) -> Iterator[str]:
    for source, other in permutations(sources, 2):
        names = {f.name for f in source.functions}
        for call in sorted(call for call in other.calls if call.name in names):
            if any(takes(f, call) for f in source.functions):
                yield f"{other.path} calls {call.name}() with {call.arguments} arguments; {source.path} has one for itself"


def folders(root: Path) -> list[list[Path]]:
    """The sources that are compiled together, or would be if there were fewer."""
    layers = sorted(path for path in (root / "src").glob("*") if path.is_dir())
    return [sorted(layer.rglob("*.cpp")) for layer in [*layers, root / "python/src"]]


def main(root: Path) -> int:
    found = [text for paths in folders(root) for text in findings([parsed(path, root) for path in paths])]
    print(*found, f"merged sources: {len(found)} calls that another source could take", sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if sys.argv[1:] else __file__ + "/../../..").resolve()))
