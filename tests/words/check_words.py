#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks comments and documents against the rules of CONTRIBUTING.md that a machine can check.

    check_words.py [--sentences] [FILE...]

Without files: every tracked file. Docstrings are read as comments are. A finding is a clause whose subject is *what*, *who*, *whoever* or *nobody*, or a comment
that says only *the same*. --sentences also finds sentences of public and private headers that are longer than twenty words
by half: a list or a parenthesis may need that much.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Iterator, NamedTuple

MOST_WORDS = 30
SKIPPED = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "docs/design/decisions/",
    "docs/design/formats/",
    "fuzz/corpus/",
    "bench/results/",
    "tests/words/",
    "src/share/owner/claim.h",
    "src/share/owner/block_table.h",
)
VERB = r"(?:is|are|was|were|has|have|had|may|can|must|needs?|wants?|does|do|will|would|[a-z]{3,}s)\b"
SUBJECT = re.compile(rf"(?<!user )\b(?:[Ww]ho(?:ever)?|[Nn]obody|[Ww]hat)\s+(?:not\s+)?{VERB}")
ONLY_THE_SAME = re.compile(r"^The same(?: (?:for|of|with|as)\b[^.]{0,40})?\.?$")


class Sentence(NamedTuple):
    line: int
    text: str


def tracked() -> list[str]:
    patterns = ["*.h", "*.cpp", "*.py", "*.pyi", "*.md"]
    found = subprocess.run(["git", "ls-files", "--", *patterns], check=True, capture_output=True, text=True)
    return [name for name in found.stdout.split() if not name.startswith(SKIPPED)]


def comments(path: str, text: str) -> Iterator[tuple[int, str]]:
    """The lines of comments and documents, without their marks; an empty text ends a paragraph."""
    mark = re.compile(r"^\s*(?://[/!]?<?|#)\s?(.*)$") if not path.endswith(".md") else re.compile(r"^(.*)$")
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if path.endswith(".md") and line.lstrip().startswith("```"):
            is_code = not is_code
        found = None if is_code else mark.match(line)
        if found and not re.match(r"^\s*#\s*(include|define|if|e|pragma|undef|!)", line):
            yield number, found.group(1).strip()
        elif tail := re.search(r"\s///?<?\s(.*)$", line) if path.endswith((".h", ".cpp")) else None:
            yield number, ""
            yield number, tail.group(1).strip()
            yield number, ""
        else:
            yield number, ""


def docstrings(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a Python file's docstrings, without examples; an empty text ends a paragraph."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if not (docstring := ast.get_docstring(node)):
            continue
        for number, line in enumerate(docstring.splitlines(), node.body[0].lineno):
            yield number, "" if line.lstrip().startswith((">>>", "...")) else line.strip().replace("``", "`")
        yield 0, ""


def sentences(path: str, text: str) -> Iterator[Sentence]:
    paragraph: list[tuple[int, str]] = []
    lines = [*comments(path, text), (0, "")]
    if path.endswith((".py", ".pyi")):
        lines += docstrings(text)
    for number, line in lines:
        if path.endswith(".md") and line.startswith("#"):  # a heading is no sentence
            line = ""
        if line and not line.startswith(("- ", "| ", "* ", "#")):
            paragraph.append((number, line))
            continue
        yield from cut(paragraph)
        paragraph = [(number, line.lstrip("-*|# "))] if line else []
    yield from cut(paragraph)


def cut(paragraph: list[tuple[int, str]]) -> Iterator[Sentence]:
    if not paragraph:
        return
    joined = " ".join(text for _, text in paragraph)
    joined = re.sub(r"`[^`]*`", "`x`", joined)
    for sentence in re.split(r"(?<=[.;:?!])\s+(?=[A-Z`*(])", joined):
        yield Sentence(paragraph[0][0], sentence)


def findings(path: str, want_sentences: bool) -> Iterator[str]:
    for sentence in sentences(path, Path(path).read_text(encoding="utf-8")):
        where = f"{path}:{sentence.line}"
        if SUBJECT.search(sentence.text) and not re.search(r"\?(?: \d+\.)?$", sentence.text):
            yield f"{where}: a clause without a noun as its subject: {sentence.text}"
        if ONLY_THE_SAME.match(sentence.text):
            yield f"{where}: say it, instead of {sentence.text}"
        words = len(sentence.text.split())
        if want_sentences and path.endswith(".h") and words > MOST_WORDS:
            yield f"{where}: {words} words: {sentence.text}"


def main(arguments: list[str]) -> int:
    want_sentences = "--sentences" in arguments
    names = [name for name in arguments if not name.startswith("--")] or tracked()
    count = 0
    for name in names:
        for finding in findings(name, want_sentences):
            print(finding)
            count += 1
    print(f"words: {count} findings in {len(names)} files")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
