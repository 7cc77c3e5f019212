# SPDX-License-Identifier: Apache-2.0
"""Programs of docs/guides/data-loading.md on Lightning and accelerate: batches are used in the memory that a worker filled."""

import re
import subprocess
import sys

import pytest

pytest.importorskip("torch")


@pytest.fixture
def program(repository):
    def find(package):
        blocks = re.findall(
            r"^```py\n(.*?)^```", (repository / "docs/guides/data-loading.md").read_text(), re.MULTILINE | re.DOTALL
        )
        return next(block for block in blocks if block.startswith(f"import {package}\n"))

    return find


def run_and_count(directory, program):
    """The program's lines, and whether batches were opened on memory of onecopy. Warnings of the packages are
    theirs.
    """
    file = directory / "program.py"
    file.write_text(program + "    import onecopy\n    print('opened:', onecopy.stats()['opened_total'] > 0)\n")
    result = subprocess.run([sys.executable, file], cwd=directory, capture_output=True, text=True, timeout=200)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_batches_of_lightning(program, tmp_path):
    pytest.importorskip("lightning")
    lines = run_and_count(tmp_path, program("lightning"))
    assert lines.count("shared: [True, True]") == 40 and lines[-2:] == ["weight: 3.0", "opened: True"]


def test_batches_of_accelerate(program, tmp_path):
    pytest.importorskip("accelerate")
    lines = run_and_count(tmp_path, program("accelerate"))
    assert lines == ["shared: True 120.0", "shared: True 376.0", "opened: True"]
