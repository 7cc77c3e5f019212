# SPDX-License-Identifier: Apache-2.0
"""Random histories of the store: what its guide guarantees holds whoever is killed, stopped or forked."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

STEPS = int(os.environ.get("ONECOPY_STORE_STEPS", "300"))


def test_the_store_keeps_its_promises_in_a_random_history(store_place):
    seed = int(os.environ.get("ONECOPY_STORE_SEED", random.randrange(1 << 30)))
    command = [sys.executable, str(Path(__file__).parent / "store_model.py"), str(seed), "1", str(STEPS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60 + STEPS)
    assert done.returncode == 0, f"ONECOPY_STORE_SEED={seed}\n{done.stdout}\n{done.stderr}"
