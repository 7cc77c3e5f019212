#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that source files keep to the limits of CONTRIBUTING.md: at most 300 lines, and never above 600.

    check_sizes.py             fails if a file above 300 lines is not in long_files.txt, or is longer than it says there
    check_sizes.py --update    lowers long_files.txt to the present sizes, and removes files that have become short

long_files.txt lists the exceptions and may only shrink: a file that is not listed there gets no exception.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("long_files.txt")
LIMIT, HARD_LIMIT = 300, 600
FOLDERS = ("include", "src", "python", "tests", "fuzz", "bench", "examples", "cmake", "docs/site")
ENDINGS = (".h", ".cpp", ".py", ".sh")


def sizes() -> dict[str, int]:
    """Returns the number of lines of each tracked source file."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *FOLDERS]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    paths = {name: ROOT / name for name in names if name.endswith(ENDINGS)}
    return {name: len(path.read_text().splitlines()) for name, path in paths.items() if path.is_file()}


def allowed() -> dict[str, int]:
    lines = (line.split() for line in LIST.read_text().splitlines() if line and not line.startswith("#"))
    return {path: int(most) for most, path in lines}


def findings(found: dict[str, int], exceptions: dict[str, int]) -> list[str]:
    """Returns a line for each file that is too long."""
    return [
        f"{name}: {lines} lines, at most {exceptions.get(name, LIMIT)}"
        + (" (an exception that may only shrink)" if name in exceptions else "")
        for name, lines in sorted(found.items())
        if lines > exceptions.get(name, LIMIT)
    ]


def written(found: dict[str, int], exceptions: dict[str, int]) -> str:
    """Returns the list of exceptions with the present sizes: no number grows, and no file is added."""
    kept = {name: min(most, found.get(name, 0)) for name, most in exceptions.items()}
    rows = sorted((-lines, name) for name, lines in kept.items() if lines > LIMIT)
    head = f"# Files above {LIMIT} lines, with the lines that they may have: check_sizes.py --update lowers them.\n"
    return head + "".join(f"{-lines:5} {name}\n" for lines, name in rows)


def main(arguments: list[str]) -> int:
    found, exceptions = sizes(), allowed()
    if arguments == ["--update"]:
        LIST.write_text(written(found, exceptions))
        return 0
    wrong = findings(found, exceptions)
    above = sum(most > HARD_LIMIT for most in exceptions.values())
    print(
        *wrong,
        f"sizes: {len(wrong)} files are too long; {len(exceptions)} exceptions, {above} above {HARD_LIMIT}",
        sep="\n",
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
