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


def run(directory, program):
    """Returns the program's lines. Warnings of the packages are theirs."""
    file = directory / "program.py"
    file.write_text(program)
    result = subprocess.run([sys.executable, file], cwd=directory, capture_output=True, text=True, timeout=200)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_batches_of_lightning(program, tmp_path):
    pytest.importorskip("lightning")
    *opened, weight = run(tmp_path, program("lightning"))
    assert len(opened) == 40 and "opened: 0" not in opened and weight == "weight: 3.0"


def test_batches_of_accelerate(program, tmp_path):
    pytest.importorskip("accelerate")
    assert run(tmp_path, program("accelerate")) == ["opened: True sum: 120.0", "opened: True sum: 376.0"]
