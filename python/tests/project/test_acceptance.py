# SPDX-License-Identifier: Apache-2.0
"""The published programs run with only their import lines changed."""

import pathlib
import socket
import subprocess
import sys
import time

import pytest

pytest.importorskip("torch", reason="wants torch installed")

SCRIPTS = pathlib.Path(__file__).resolve().parents[4] / "shared" / "acceptance"
pytestmark = pytest.mark.skipif(not SCRIPTS.is_dir(), reason=f"wants the published programs in {SCRIPTS}")


def start(script, *arguments):
    command = [sys.executable, str(SCRIPTS / script), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process):
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert out.splitlines()[-1].startswith("ok"), out
    assert "Traceback" not in err and "onecopy" not in err, err


@pytest.fixture
def next_start():
    """Names of the file_system strategy that a program had in use when it ended go with the next start."""
    yield
    subprocess.run([sys.executable, "-c", "import onecopy; onecopy.zeros(1)"], check=True)


def test_published_rpc_program():
    finish(start("cuda_rpc.py", "cpu", "cpu"))


def test_published_memory_reuse_among_graphs():
    finish(start("aclgraph_reuse.py", "cpu"))


@pytest.mark.parametrize("script", ["ipc_guide.py", "queue_and_explicit.py", "hogwild.py"])
def test_published_program(script, nothing_left_behind, next_start):
    finish(start(script))


def test_two_programs_started_on_their_own():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    receiver = start("two_programs.py", "--mode", "receiver", "--port", str(port))
    listening = f"0100007F:{port:04X} 00000000:0000 0A"  # a probe of ours could be in the way of its own bind()
    while listening not in pathlib.Path("/proc/net/tcp").read_text():
        assert receiver.poll() is None, receiver.communicate()
        time.sleep(0.02)
    sender = start("two_programs.py", "--mode", "sender", "--port", str(port))
    finish(sender)
    finish(receiver)
