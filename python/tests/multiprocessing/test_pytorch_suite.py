# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own tests of torch.multiprocessing pass with ours, where its source tree is at hand.

test_mp_torch_semantics.py checks the same in our own words, everywhere.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import pytorch_suite

RUNNER = Path(pytorch_suite.__file__)

pytestmark = [
    pytest.mark.skipif(
        pytorch_suite.find() is None,
        reason=f"PyTorch's wheel has no tests: {pytorch_suite.VARIABLE} is the path of its test/test_multiprocessing.py",
    ),
    pytest.mark.skipif(importlib.util.find_spec("expecttest") is None, reason="the tests want the package expecttest"),
]


def test_all_of_them():
    result = subprocess.run([sys.executable, str(RUNNER)], capture_output=True, text=True, timeout=1500)
    assert result.returncode == 0, result.stderr[-8000:]
    assert "\nOK" in result.stderr
