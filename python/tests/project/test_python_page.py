# SPDX-License-Identifier: Apache-2.0
"""docs/reference/python.md lists every public name of the package, with the signatures and errors of the docstrings."""

import pytest

pytest.importorskip("torch", reason="wants torch installed")
import python_reference


@pytest.mark.parametrize("module", python_reference.MODULES)
def test_the_page_for_python_lists_every_public_name(module):
    names = python_reference.listed(python_reference.PAGE.read_text()).get(module, set())
    assert sorted(python_reference.public(module) - names) == []
    assert sorted(names - python_reference.public(module)) == []


def test_the_tables_for_python_are_those_of_the_docstrings():
    text = python_reference.PAGE.read_text()
    made = python_reference.page(text)
    differing = [pair for pair in zip(text.splitlines(), made.splitlines()) if pair[0] != pair[1]]
    assert text == made, f"python python/tests/project/python_reference.py writes them: {differing[:1]}"
    assert text.count("| `") > 150
