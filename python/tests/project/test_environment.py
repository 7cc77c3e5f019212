# SPDX-License-Identifier: Apache-2.0
"""docs/reference/environment.md lists exactly the environment variables that the code reads."""

import re

SOURCES = ("src", "include", "python/src", "python/onecopy")
READ_IN_CODE = re.compile(r"""["'](ONECOPY_[A-Z_]+)["']""")
ROW = re.compile(r"^\| `(ONECOPY_[A-Z_]+)` \|", re.MULTILINE)


def names_in_code(repository) -> set[str]:
    files = (
        path for folder in SOURCES for path in (repository / folder).rglob("*") if path.suffix in (".h", ".cpp", ".py")
    )
    return {name for path in files for name in READ_IN_CODE.findall(path.read_text())}


def test_the_page_lists_every_variable_that_the_code_reads(repository):
    listed = ROW.findall((repository / "docs/reference/environment.md").read_text())
    assert sorted(listed) == sorted(names_in_code(repository))
