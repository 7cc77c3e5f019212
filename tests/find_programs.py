#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the test programs (targets of CMake) that have a test which matches, without building one.

    tests/find_programs.py REGEX     one name a line; exit status 1: no test matches

``REGEX`` is searched in names as ctest shows them: ``share_tests.Leases.AreReturned``.
"""

from __future__ import annotations

import collections
import pathlib
import re
import sys
from collections.abc import Iterator

_TESTS = pathlib.Path(__file__).parent
_TEST = re.compile(r"^(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+)\s*,\s*(\w+)\s*\)", re.MULTILINE)
_SUITE = re.compile(r"^INSTANTIATE_TEST_SUITE_P\(\s*(\w+)\s*,\s*(\w+)", re.MULTILINE)


def program_of(source: pathlib.Path) -> str:
    """Returns the target that compiles ``source``: that of tests/CMakeLists.txt."""
    folder, *below = source.relative_to(_TESTS).parts
    module = below[0] if folder == "unit" else folder
    return {"simulators": "simulator"}.get(module, module) + "_tests"


def names_in(text: str) -> Iterator[str]:
    """Yields each test's name, and once more with each prefix that its suite is instantiated with."""
    prefixes: dict[str, list[str]] = {}
    for prefix, suite in _SUITE.findall(text):
        prefixes.setdefault(suite, []).append(prefix)
    for suite, test in _TEST.findall(text):
        yield f"{suite}.{test}"
        yield from (f"{prefix}/{suite}.{test}" for prefix in prefixes.get(suite, ()))


def programs_with(pattern: re.Pattern[str]) -> set[str]:
    texts: dict[str, str] = collections.defaultdict(str)
    for source in _TESTS.rglob("*.cpp"):
        texts[program_of(source)] += source.read_text()
    return {p for p, text in texts.items() if any(pattern.search(f"{p}.{name}") for name in names_in(text))}


def main() -> int:
    programs = programs_with(re.compile(sys.argv[1]))
    print("\n".join(sorted(programs)))
    return 0 if programs else 1


if __name__ == "__main__":
    sys.exit(main())
