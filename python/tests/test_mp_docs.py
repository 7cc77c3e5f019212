# SPDX-License-Identifier: Apache-2.0
"""All code on the pages runs, and prints what the pages say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["coming-from-torch-multiprocessing.md", "weights-trainer-engine.md", "patches.md"]
EXAMPLES = sorted((ROOT / "examples/python").glob("*.py"))
LICENSE = "# SPDX-License-Identifier: Apache-2.0\n"

BLOCK = re.compile(r"(?:<!-- (?P<comment>[^\n]*) -->\n)?```(?P<language>\w+)\n(?P<text>.*?)```\n", re.DOTALL)


def blocks(page: str):
    """(comment, language, text) of every block of code on a page."""
    text = (ROOT / "docs" / page).read_text()
    return [(m["comment"], m["language"], m["text"]) for m in BLOCK.finditer(text)]


@pytest.mark.parametrize("page", PAGES)
def test_programs_on_a_page_are_the_examples(page):
    for comment, language, text in blocks(page):
        if language == "python":
            assert comment, "each program on a page names the example that it is"
            assert LICENSE + text == (ROOT / comment.split()[0]).read_text()


@pytest.mark.parametrize("page", PAGES)
def test_outputs_on_a_page_are_what_the_examples_print(page):
    program = None
    for comment, language, text in blocks(page):
        if language == "python":
            program = ROOT / comment.split()[0]
        elif language == "text":
            assert text == program.with_suffix(".expected").read_text()


@pytest.mark.parametrize("program", [p for p in EXAMPLES if p.stem != "two_programs"], ids=lambda p: p.stem)
def test_examples_print_what_they_should(program):
    """two_programs.py takes two: test_two_programs.py runs it."""
    result = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", program], capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert result.stdout == program.with_suffix(".expected").read_text()


@pytest.mark.parametrize("page", PAGES)
def test_links_of_a_page_lead_somewhere(page):
    prose = BLOCK.sub("", (ROOT / "docs" / page).read_text())
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", prose):
        assert target.startswith("https://") or (ROOT / "docs" / target).exists(), target
