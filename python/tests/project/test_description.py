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
    return module


def test_relative_links_become_text_and_pictures_are_left_out(describe):
    readme = "![p](docs/p.svg)\n[a](docs/a.md#x), [b](https://example.org/b)"
    assert describe.description_of(readme, files="") == "\na, [b](https://example.org/b)"


def test_relative_links_become_absolute_where_the_files_have_an_address(describe):
    readme = "![p](docs/p.svg) [a](docs/a.md#x)"
    at = describe.files_of('[project.urls]\nRepository = "https://example.org/onecopy"\n')
    assert at == "https://example.org/onecopy/blob/main/"
    assert describe.description_of(readme, files=at) == f"![p]({at}docs/p.svg) [a]({at}docs/a.md#x)"


def test_the_description_of_this_package_has_no_relative_link(repository, describe):
    files = describe.files_of((repository / "pyproject.toml").read_text())
    text = describe.description_of((repository / "README.md").read_text(), files)
    targets = re.findall(r"\]\(([^)]*)\)", text)
    assert all(target.startswith("https://") for target in targets)
