#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Puts the cases of programs that ran all of them in one process into ctest's report, which has one case for each program.

    tests/put_cases.py REPORT.xml FOLDER     FOLDER: GoogleTest's reports, <name of ctest's case>.xml

A program that failed although none of its cases did stays a failed case: it ended before its report, or after the last case.
"""

from __future__ import annotations

import pathlib
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator


def cases_of(program: str, report: pathlib.Path) -> Iterator[ElementTree.Element]:
    """GoogleTest's cases as ctest writes them."""
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{program}.{case.get('classname')}.{case.get('name')}"
        failure, skipped = case.find("failure"), case.find("skipped")
        status = "fail" if failure is not None else "run" if skipped is None else "notrun"
        made = ElementTree.Element("testcase", name=name, classname=name, time=case.get("time", "0"), status=status)
        if failure is not None:
            made.append(failure)
        elif skipped is not None:  # behind the place in the source
            ElementTree.SubElement(made, "skipped", message=skipped.get("message", "").partition("\n")[2].strip())
        yield made


def put_cases(suite: ElementTree.Element, folder: pathlib.Path) -> None:
    for whole in list(suite.iter("testcase")):
        report = folder / f"{whole.get('name')}.xml"
        if not report.exists():
            continue
        cases = list(cases_of(whole.get("name", ""), report))
        suite.extend(cases)
        if whole.get("status") != "fail" or any(case.get("status") == "fail" for case in cases):
            suite.remove(whole)
    cases = list(suite.iter("testcase"))
    suite.set("tests", str(len(cases)))
    suite.set("failures", str(sum(case.find("failure") is not None for case in cases)))
    suite.set("skipped", str(sum(case.find("skipped") is not None for case in cases)))


def main() -> None:
    path, folder = map(pathlib.Path, sys.argv[1:])
    tree = ElementTree.parse(path)
    put_cases(tree.getroot(), folder)
    tree.write(path, encoding="unicode", xml_declaration=True)


if __name__ == "__main__":
    main()
