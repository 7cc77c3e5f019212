#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts breaches of the writing rules of CONTRIBUTING.md that a machine can see, and fails if there are more than
before.

    check_words.py             counts all tracked files; fails if a rule has more findings than baseline.json allows
    check_words.py --update    lowers baseline.json to the present counts
    check_words.py FILE...     lists the findings in these files

Comments, docstrings and documents are read; code and strings are not. baseline.json may only shrink. In the folders of
CLEAN no finding is allowed.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

BASELINE = Path(__file__).with_name("baseline.json")
SKIPPED = ("CONTRIBUTING.md", "docs/design/decisions/", "fuzz/", "bench/results/", "tests/words/", "docs/benchmarks.md")
DESCRIBED = ("src/", "include/", "python/src/", "python/onecopy/")  # their declarations have doc comments
# These folders have no findings.
CLEAN = (
    *("README.md", "ARCHITECTURE.md", "bench/", "cmake/", "docs/", "examples/", "include/", "python/tests/", "tests/"),
    *(
        f"src/{module}/"
        for module in (
            "channel",
            "cli",
            "core",
            "device",
            "graph",
            "memory",
            "os",
            "peer",
            "rpc",
            "share",
            "store",
            "value",
        )
    ),
    *(
        f"python/src/{module}/"
        for module in ("array", "autograd", "binding", "graph", "rpc", "store", "torch", "value")
    ),
    *(
        f"python/onecopy/{package}/"
        for package in ("compat", "distributed", "graphs", "integrations", "multiprocessing", "rpc")
    ),
)

FINITE = re.compile(
    r"\b(?:am|was|were|had|can|could|may|might|must|will|would|shall|should|do|did|are|have|\w{2,}s|\w+ed)\b"
)
PREPOSITION = re.compile(r"(?:Of|From|By|For|With|Behind|Before|After|As|Where|Also|Not|Else|Only|Until|In|On|At)\b")
IS_NO = re.compile(
    r"(?<![Tt]here )\b(?:is|are|was|were) no (?!longer\b|more\b|less\b|later\b|matter\b|slower\b|faster\b)\w+"
)
POINTING = re.compile(r"\b(?:that one|those of|such a one|any more)\b")
OPENING = re.compile(r"(?:A|An|The|[A-Z]\w*s|REQUIRES)\b|`")
QUESTION = re.compile(r"(?:Is|Are|Was|Were|Has|Have|Does|Do|Did|Can|May|Might|Should)\b[^.]*\?")

RULES = {
    "no verb": "give the sentence a subject and a verb",
    "is no": "write 'is not a ...'",
    "pointing": "repeat the noun instead of pointing at it",
    "opening": "begin a doc comment with a verb in the third person, or with A, An or The",
    "question": "write 'Returns whether ...' instead of a question",
}


class Paragraph(NamedTuple):
    """Consecutive lines of prose. `is_doc`: a doc comment or docstring, whose first word is checked."""

    line: int
    text: str
    is_doc: bool = False


class Finding(NamedTuple):
    path: str
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {RULES[self.rule]}: {self.text}"


def tracked() -> list[str]:
    patterns = ["*.h", "*.cpp", "*.py", "*.md"]
    found = subprocess.run(["git", "ls-files", "--", *patterns], check=True, capture_output=True, text=True)
    return [name for name in found.stdout.split() if not name.startswith(SKIPPED) and Path(name).exists()]


def of_comments(text: str, mark: str) -> Iterator[Paragraph]:
    """Yields the comments that begin with `mark`, a regular expression; lines one below another are one paragraph."""
    lines: list[str] = []
    begin, is_doc = 0, False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if found := re.match(rf"^\s*({mark})\s?(.*)$", line):
            if not lines:
                begin, is_doc = number, found[1] == "///"
            lines.append(found[2].strip())
            continue
        if lines:
            yield Paragraph(begin, " ".join(lines), is_doc)
            lines = []
        if tail := re.search(rf"\s{mark}<?\s(.*)$", line):
            yield Paragraph(number, tail[1])


def of_docstrings(text: str) -> Iterator[Paragraph]:
    """Yields the paragraphs of the docstrings of a Python file, without examples."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        for number, paragraph in enumerate((ast.get_docstring(node) or "").split("\n\n")):
            if paragraph and not paragraph.lstrip().startswith((">>>", "Args:", "Returns:", "Raises:")):
                words = " ".join(paragraph.split()).replace("``", "`")
                yield Paragraph(node.body[0].lineno, words, number == 0 and not isinstance(node, ast.Module))


def of_markdown(text: str) -> Iterator[Paragraph]:
    """Yields the lines of a document without its blocks of code."""
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        is_code ^= line.lstrip().startswith("```")
        if not is_code and line.strip():
            yield Paragraph(number, line.strip())


def paragraphs(path: str, text: str) -> Iterator[Paragraph]:
    if path.endswith(".md"):
        yield from of_markdown(text)
    elif path.endswith(".py"):
        yield from of_comments(text, "#")
        yield from of_docstrings(text)
    else:
        yield from of_comments(text, "///?")


def findings(path: str) -> Iterator[Finding]:
    for line, text, is_doc in paragraphs(path, Path(path).read_text(encoding="utf-8")):
        text = re.sub(r"`[^`]*`", "`x`", text)
        if is_doc and path.startswith(DESCRIBED) and not OPENING.match(text):
            yield Finding(path, line, "opening", text)
        if is_doc and QUESTION.match(text):
            yield Finding(path, line, "question", text)
        for sentence in re.split(r"(?<=[.;:?!])\s+(?=[A-Z`*(])", text):
            if (
                not path.endswith(".md")
                and PREPOSITION.match(sentence)
                and not FINITE.search(sentence.partition(" ")[2])
            ):
                yield Finding(path, line, "no verb", sentence)
            if IS_NO.search(sentence):
                yield Finding(path, line, "is no", sentence)
            if POINTING.search(sentence):
                yield Finding(path, line, "pointing", sentence)


def check(counts: dict[str, int], allowed: dict[str, int]) -> bool:
    """Prints each rule with its count. Returns whether no count is above the allowed one."""
    for rule, count in counts.items():
        more = ": MORE THAN BEFORE; check_words.py FILE lists those of a file" if count > allowed[rule] else ""
        print(f"words: {RULES[rule]}: {count} findings, {allowed[rule]} allowed{more}")
    return all(count <= allowed[rule] for rule, count in counts.items())


def main(arguments: list[str]) -> int:
    if arguments and arguments != ["--update"]:
        for name in arguments:
            print(*findings(name), sep="\n")
        return 0
    found = [finding for name in tracked() for finding in findings(name)]
    counts = {rule: sum(finding.rule == rule for finding in found) for rule in RULES}
    allowed = json.loads(BASELINE.read_text())
    if arguments:
        BASELINE.write_text(json.dumps({rule: min(counts[rule], allowed[rule]) for rule in RULES}, indent=2) + "\n")
    in_clean = [finding for finding in found if finding.path.startswith(CLEAN)]
    print(*in_clean, sep="\n", end="\n" if in_clean else "")
    return 0 if check(counts, allowed) and not in_clean else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
