# SPDX-License-Identifier: Apache-2.0
"""examples/python/demo.py: every statement holds, and nothing is left of its sample."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("numpy")
DEMO = Path(__file__).parents[3] / "examples/python/demo.py"


def demo(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-X", "dev", "-W", "error", str(DEMO), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, env={**os.environ, **environment})


def safetensors(path: Path, header: dict, data: bytes) -> str:
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return str(path)


def test_it_verifies_every_statement_on_a_small_file(tmp_path):
    header = {"empty": {"dtype": "U8", "shape": [0, 3], "data_offsets": [0, 0]},
              "x": {"dtype": "F16", "shape": [4096], "data_offsets": [0, 8192]}}  # fmt: skip
    done = demo(safetensors(tmp_path / "small.safetensors", header, b"\1" * 8192))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All of it verified." in done.stdout and done.stdout.count("✓") == 7 and "✗" not in done.stdout


def test_it_shows_a_sample_when_no_file_is_given_and_removes_it_again(tmp_path):
    done = demo(TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "256 MiB" in done.stdout and "bfloat16" in done.stdout
    assert not list(tmp_path.iterdir())


def test_it_leaves_no_sample_behind_when_it_is_interrupted(tmp_path):
    command = [sys.executable, str(DEMO)]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=-3, stderr=-3, env=environment, start_new_session=True) as process:
        while not list(tmp_path.glob("*/sample.safetensors")) and process.poll() is None:
            time.sleep(0.01)  # the module tempfile tries the directory with a file of its own before
        process.send_signal(signal.SIGINT)
        process.wait(60)
    assert not list(tmp_path.iterdir())


def test_it_refuses_a_file_without_a_single_element(tmp_path):
    done = demo(safetensors(tmp_path / "empty.safetensors", {}, b""))
    assert done.returncode == 1 and "no elements" in done.stderr
