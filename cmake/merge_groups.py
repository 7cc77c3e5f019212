# SPDX-License-Identifier: Apache-2.0
"""Which sources of a target may be compiled as one: `merge_groups.py ROOT SOURCE...` prints a line "NUMBER SOURCE" for
each.

Two sources are in one group only if neither declares a name for itself that the other mentions, or sees in a header of
this project: such a name would hide what the other means, or overload it without a word. Names that both take from one
place by `using` are one name. A name beyond an anonymous namespace is the program's, not the source's, if a header
below ROOT has it. A source that replaces operator new gets no line.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

MOST = 40  # sources in a group: g++ takes about 1 GB for them

NOT_CODE = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|^#include[^\n]*',
    re.DOTALL | re.MULTILINE,
)
WORD = re.compile(r"[A-Za-z_]\w*")
ATTRIBUTE = re.compile(r"^\[\[[^\]]*\]\]\s*")
HEAD = re.compile(r"(?:::|[^({=;:\[])*")  # of a declaration: the name is its last word
USING = re.compile(r"^using [\w:]+;", re.MULTILINE)
OPENING = re.compile(r"^\s*using namespace ([\w:]+);", re.MULTILINE)
NAMES_NOTHING = re.compile(
    r"using [\w:]+;|using namespace|namespace\b|template\b|extern\b|static_assert\b|TEST|INSTANTIATE_"
    r"|public:|private:|protected:"
)


class Headers:
    """The names of the headers below a root, with those that they include."""

    def __init__(self, root: Path) -> None:
        roots = [root / folder for folder in ("include", "src", "tests", "bench")]
        self._paths = {str(path.relative_to(at)): path for at in roots for path in at.rglob("*.h")}
        texts = {name: without_comments(path) for name, path in self._paths.items()}
        self._names = {name: set().union(*map(declared_by, text.split("\n"))) for name, text in texts.items()}
        self._known: dict[str, set[str]] = {}
        self.all_words = {word for text in texts.values() for word in WORD.findall(text)}

    def names(self, name: str) -> set[str]:
        """The names beside classes that a source sees by including `name`; none of a header of another project."""
        if name not in self._known and name in self._paths:
            self._known[name] = self._names[name]  # until the headers below are looked at, one of which may include it
            self._known[name] = self._names[name].union(*map(self.names, included(self._paths[name])))
        return self._known.get(name, set())


class Source:
    """The names that a source declares for itself, and all that it mentions."""

    def __init__(self, path: str, headers: Headers) -> None:
        self.path = path
        text = without_comments(path)
        self.mentions = set(WORD.findall(text)).union(*(headers.names(name) for name in included(path)))
        self.taken = {line: line.rstrip(";").split("::")[-1] for line in USING.findall(text)}
        self.opened = {line for line in OPENING.findall(text) if not line.endswith("literals")}
        self.own = set(re.findall(r"^#\s*define\s+(\w+)", text, re.MULTILINE))
        is_anonymous = False
        for line in text.split("\n"):  # .clang-format indents nothing in a namespace
            if line.startswith(("namespace", "}  ")):
                is_anonymous = line.startswith("namespace {")
            elif own := declared_by(line):
                self.own |= own if is_anonymous or line.startswith("static") else own - headers.all_words
        for body in re.findall(r"^enum\s+\w*[^{;]*{(.*?)}", text, re.DOTALL | re.MULTILINE):
            self.own |= set(WORD.findall(body))

    def clashes_with(self, other: Source) -> bool:
        """Whether either could mean something else beside the other."""
        differing = {name for line, name in (self.taken.items() ^ other.taken.items())}
        return bool(
            self.opened != other.opened
            or self.own & other.mentions
            or other.own & self.mentions
            or differing & set(self.taken.values()) & set(other.taken.values())
        )


def included(path: str | Path) -> list[str]:
    """The headers that a source names."""
    return re.findall(r'^#include "([^"]+)"', Path(path).read_text(), re.MULTILINE)


def without_comments(path: str | Path) -> str:
    """The text of a source without comments, literals and names of headers."""
    return NOT_CODE.sub(" ", Path(path).read_text())


def declared_by(line: str) -> set[str]:
    """The name that a line declares, if it is not indented: nothing of a class whose members are defined here."""
    line = ATTRIBUTE.sub("", line)
    if not WORD.match(line) or NAMES_NOTHING.match(line):
        return set()
    head = HEAD.match(re.sub(r"<[^()]*>", "", line))
    declared = head[0] if head else ""
    return set() if re.search(r"::~?\w+\s*$", declared) else set(WORD.findall(declared)[-1:])


def grouped(sources: list[Source]) -> list[list[Source]]:
    """The sources in as few groups as come first."""
    groups: list[list[Source]] = []
    for source in sources:
        fits = (g for g in groups if len(g) < MOST and not any(source.clashes_with(other) for other in g))
        if (group := next(fits, None)) is None:
            groups.append(group := [])
        group.append(source)
    return groups


if __name__ == "__main__":
    headers = Headers(Path(sys.argv[1]))
    known = [Source(path, headers) for path in sys.argv[2:] if "operator new" not in Path(path).read_text()]
    for number, group in enumerate(grouped(known)):
        for source in group:
            print(number, source.path)
