#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The cases of a whole ./dev test, from the JUnit files of its steps: how many distinct cases there were, and which
reasons kept cases from running.

    tests/report.py --count FILE.xml    prints three numbers: all cases, those that failed, those that were skipped
    tests/report.py FILE.xml...     exit status 1: a case was skipped for a reason that expected_skips.txt does not
    expect here
"""

from __future__ import annotations

import collections
import importlib.util
import os
import pathlib
import re
import sys
from collections.abc import Iterator
from typing import NamedTuple
from xml.etree import ElementTree

_EXPECTED = pathlib.Path(__file__).with_name("expected_skips.txt")
_GOOGLE_TEST = re.compile(r": Skipped\n(.*?)\n*\[  SKIPPED \]", re.DOTALL)
_LINES_OF_A_FAILURE = 12


class Case(NamedTuple):
    """A case in a step."""

    step: str
    name: str
    reason: str | None  # of a skip


class Expectation(NamedTuple):
    """A line of expected_skips.txt."""

    condition: str
    reason: re.Pattern[str]


def cases_of(path: pathlib.Path) -> Iterator[Case]:
    for case in ElementTree.parse(path).iter("testcase"):
        name = case.get("name", "")
        if (owner := case.get("classname", name)) != name:
            name = f"{owner}::{name}"
        yield Case(path.stem, name, _reason(case))


def _reason(case: ElementTree.Element) -> str | None:
    skipped = case.find("skipped")
    if skipped is None and case.get("status") not in ("notrun", "disabled"):
        return None
    if said := _GOOGLE_TEST.search(case.findtext("system-out") or ""):
        return said[1].strip()
    if skipped is None:
        return "no reason given"
    message = skipped.get("message") or "no reason given"
    return skipped.text or message if message == "collection skipped" else message  # a whole file


def expectations(text: str) -> list[Expectation]:
    lines = [line.split(None, 1) for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [Expectation(condition, re.compile(reason.strip())) for condition, reason in lines]


def holds(condition: str, step: str) -> bool:
    """Raises ValueError for a condition that there is none of."""
    if condition == "any":
        return True
    if condition == "user":
        return os.geteuid() != 0
    if condition == "sanitizer":
        return step.startswith(("asan", "tsan"))
    if condition == "no-gpu":
        return not os.path.exists("/dev/nvidiactl")
    if condition == "gpu":
        return os.path.exists("/dev/nvidiactl")
    if condition == "old-torch":
        return step.startswith("torch")
    if condition.startswith("without:"):
        return importlib.util.find_spec(condition.removeprefix("without:")) is None
    raise ValueError(f"expected_skips.txt: there is no condition {condition!r}")


def is_expected(case: Case, expected: list[Expectation]) -> bool:
    return any(one.reason.search(case.reason or "") and holds(one.condition, case.step) for one in expected)


def report(cases: list[Case], expected: list[Expectation]) -> int:
    """Prints it, and returns how many cases were skipped unexpectedly."""
    skipped = [case for case in cases if case.reason is not None]
    ran = {case.name for case in cases if case.reason is None}
    never = {case.name for case in skipped} - ran
    for reason, count in collections.Counter(case.reason for case in skipped).most_common():
        print(f"skipped {count:4}  {' '.join((reason or '').split())[:150]}")
    unexpected = [case for case in skipped if not is_expected(case, expected)]
    for case in unexpected:
        print(f"unexpected: {case.step}: {case.name}: {case.reason}")
    print(f"{len(ran)} distinct cases ran, {len(never)} ran in no step, {len(unexpected)} skips were not expected")
    return len(unexpected)


def count(path: pathlib.Path) -> tuple[int, int, int]:
    """Returns how many cases a file has, how many of them failed, and how many were skipped."""
    cases = list(ElementTree.parse(path).iter("testcase"))
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case for case in cases if _reason(case) is not None]
    return len(cases), len(failed), len(skipped)


def failures(path: pathlib.Path) -> Iterator[str]:
    """Yields, for each case of a file that failed, its name and the end of what it printed."""
    for case in ElementTree.parse(path).iter("testcase"):
        for failure in (*case.iter("failure"), *case.iter("error")):
            said = failure.text or failure.get("message") or ""
            if case.findtext("system-out") and len(said.splitlines()) < 3:
                said = case.findtext("system-out") or ""  # ctest's message is only "Failed"
            lines = [line for line in said.splitlines() if line.strip()]
            end = "".join(f"\n        {line[:200]}" for line in lines[-_LINES_OF_A_FAILURE:])
            yield f"{path.stem}: {case.get('classname', '')}::{case.get('name', '')}{end}"


def main() -> int:
    if sys.argv[1] == "--count":
        print(*count(pathlib.Path(sys.argv[2])))
        return 0
    cases = [case for name in sys.argv[1:] for case in cases_of(pathlib.Path(name))]
    unexpected = report(cases, expectations(_EXPECTED.read_text()))
    for name in sys.argv[1:]:
        for failure in failures(pathlib.Path(name)):
            print(f"failed: {failure}")
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
