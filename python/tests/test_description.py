# SPDX-License-Identifier: Apache-2.0
"""The package's description is README without links that lead nowhere outside of the repository."""

import importlib.util
import re

import pytest


@pytest.fixture
def describe(repository):
    path = repository / "cmake/onecopy_description.py"
    spec = importlib.util.spec_from_file_location("onecopy_description", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.description_of


def test_relative_links_become_text_and_pictures_are_left_out(describe):
    readme = "![p](docs/p.svg)\n[a](docs/a.md#x), [b](https://example.org/b)"
    assert describe(readme, files="") == "\na, [b](https://example.org/b)"


def test_relative_links_become_absolute_where_the_files_have_an_address(describe):
    readme = "![p](docs/p.svg) [a](docs/a.md#x)"
    at = "https://example.org/onecopy/"
    assert describe(readme, files=at) == f"![p]({at}docs/p.svg) [a]({at}docs/a.md#x)"


def test_the_description_of_this_package_has_no_relative_link(repository, describe):
    targets = re.findall(r"\]\(([^)]*)\)", describe((repository / "README.md").read_text()))
    assert all(target.startswith("https://") for target in targets)
