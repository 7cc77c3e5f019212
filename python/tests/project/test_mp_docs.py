# SPDX-License-Identifier: Apache-2.0
"""All code on the pages runs, and prints what the pages say."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import onecopy

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
PAGES = sorted(str(page.relative_to(DOCS)) for kind in ("guides", "reference") for page in (DOCS / kind).glob("*.md"))
PAGES.append("../README.md")
LINKED = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md",
          *(str(page.relative_to(ROOT)) for page in DOCS.rglob("*.md"))]  # fmt: skip
OTHERS = re.compile(r"^\s*(?:import|from) (torch|numpy|transformers|ray|joblib|zmq|nixl)\b", re.MULTILINE)
EXAMPLES = sorted((ROOT / "examples/python").glob("*.py"))
IN_PAIRS = ("two_programs", "trainer", "engine")
VARYING = ("demo",)  # its output has process ids: test_demo.py runs it

BLOCK = re.compile(r"(?:<!-- (?P<comment>[^\n]*) -->\n)?```(?P<language>\w+)\n(?P<text>.*?)```\n", re.DOTALL)


def blocks(page: str):
    """Returns (comment, language, text) of every block of code on a page."""
    text = (DOCS / page).read_text()
    return [(m["comment"], m["language"], m["text"]) for m in BLOCK.finditer(text)]


def programs_of(page: str) -> list[list[str]]:
    """Returns the blocks that are not examples, each with the output that the page shows in the next block."""
    found: list[list[str]] = []
    is_one = False
    for comment, language, text in blocks(page):
        if language == "python":
            is_one = comment is None
            found += [[text, ""]] if is_one else []
        elif language == "text" and is_one:
            found[-1][1] += text
    return found


PROGRAMS = [(page, number) for page in PAGES for number in range(len(programs_of(page)))]


@pytest.mark.parametrize("page", PAGES)
def test_programs_on_a_page_are_the_examples(page):
    """Or else they are run by themselves."""
    for comment, language, text in blocks(page):
        if language in ("python", "cpp") and comment is not None:
            program = (ROOT / comment.split()[0]).read_text()
            assert program.partition("\n")[2] == text


def skip_without_what_it_imports(program: str):
    for package in sorted(set(OTHERS.findall(program))):
        pytest.importorskip(package)
    if "numpy" in program:
        pytest.importorskip("numpy")
    if "import onecopy.multiprocessing" in program:
        pytest.importorskip("torch")


@pytest.mark.parametrize("page, number", PROGRAMS, ids=str)
def test_other_programs_on_a_page_print_what_it_says(page, number, run_python, store_place):
    program, output = programs_of(page)[number]
    skip_without_what_it_imports(program)
    assert run_python(program) == output


@pytest.mark.parametrize("page", PAGES)
def test_outputs_on_a_page_are_what_the_examples_print(page):
    program = None
    for comment, language, text in blocks(page):
        if language in ("python", "cpp"):
            program = ROOT / comment.split()[0] if comment else None
        elif language == "text" and program:
            assert text == program.with_suffix(".expected").read_text()


def test_the_page_of_the_examples_lists_them_all():
    page = (ROOT / "examples/README.md").read_text()
    listed = re.findall(r"`(\w+\.(?:py|cpp))`", page)
    assert sorted(listed) == sorted(
        path.name for path in (ROOT / "examples").rglob("*.*") if path.suffix in (".py", ".cpp")
    )


@pytest.mark.parametrize("program", [p for p in EXAMPLES if p.stem not in IN_PAIRS + VARYING], ids=lambda p: p.stem)
def test_examples_print_what_they_should(program, run_file):
    """test_two_programs.py runs the examples that take two processes."""
    skip_without_what_it_imports(program.read_text())
    assert run_file(program) == program.with_suffix(".expected").read_text()


def test_the_page_for_python_says_what_to_do_about_every_error():
    rows = re.findall(r"^\| (`.*?) \|", (ROOT / "docs/reference/python.md").read_text(), re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row) if hasattr(onecopy.errors, name)]
    kinds = [kind for kind in onecopy.errors.Error.__subclasses__() if kind.__module__ == onecopy.errors.__name__]
    assert sorted(named) == sorted(kind.__name__ for kind in kinds)


@pytest.mark.parametrize("page", PAGES)
def test_fragments_of_programs_are_python_and_name_what_there_is(page):
    """```py: parts that need a card or a network. They are compiled, and the names of onecopy in them exist."""
    for _, language, text in blocks(page):
        if language == "py":
            compile(text, page, "exec")
            for name in re.findall(r"\bonecopy\.(\w+)\(", text):
                assert hasattr(onecopy, name), name
            plug = re.search(r"from onecopy\.integrations import (\w+) as plug", text)
            for used in re.findall(r"\bplug\.(\w+)\(", text):
                assert used in importlib.import_module(f"onecopy.integrations.{plug[1]}").__all__, used


@pytest.mark.parametrize("page", LINKED)
def test_links_of_a_page_lead_somewhere(page):
    prose = BLOCK.sub("", (ROOT / page).read_text())
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", prose):
        assert target.startswith("https://") or ((ROOT / page).parent / target).exists(), target
