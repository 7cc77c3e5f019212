# SPDX-License-Identifier: Apache-2.0
"""Random programs of DataLoaders see what they see with torch alone: loader_programs.py.

``ONECOPY_LOADER_PROGRAMS`` is how many (default 6), ``ONECOPY_LOADER_SEED`` the first seed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

PROGRAMS = int(os.environ.get("ONECOPY_LOADER_PROGRAMS", "6"))
SEED = int(os.environ.get("ONECOPY_LOADER_SEED", "0"))
PART = 50
RUNNER = Path(__file__).parent / "loader_programs.py"


def start(mode: str, first: int, count: int) -> subprocess.Popen:
    command = [sys.executable, str(RUNNER), mode, str(first), str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def result(process: subprocess.Popen) -> dict[int, list[str]]:
    out, err = process.communicate()
    assert process.returncode == 0, err
    return dict(json.loads(line) for line in out.splitlines())


@pytest.mark.parametrize("first", range(SEED, SEED + PROGRAMS, PART))
def test_random_loaders_see_what_they_see_with_torch_alone(first):
    count = min(PART, SEED + PROGRAMS - first)
    stock, imported, context = map(result, [start(mode, first, count) for mode in ("stock", "import", "context")])
    assert len(stock) == count
    assert any(stock.values())
    assert imported == stock
    assert context == stock
