# SPDX-License-Identifier: Apache-2.0
"""CPython's own tests of processes, queues, pools, pipes, listeners, managers and events pass with ours."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("test._test_multiprocessing") is None,
    reason="this Python was installed without its own tests",
)

RUNNER = Path(__file__).parent / "cpython_suite.py"

# The part that is ours: quick enough for every run.
QUICK = [
    "WithProcessesTestQueue", "TestSimpleQueue", "WithProcessesTestProcess",
    "WithProcessesTestSubclassingProcess", "WithProcessesTestEvent", "WithProcessesTestConnection",
    "WithProcessesTestPicklingConnections", "WithProcessesTestListener",
    "WithProcessesTestListenerClient", "WithProcessesTestPoolWorkerLifetime",
    "WithProcessesTestPoolWorkerErrors", "WithManagerTestRemoteManager", "WithManagerTestManagerRestart",
    "WithManagerTestMyManager", "OtherTest", "TestInitializers", "TestWait", "TestFlags",
    "TestIgnoreEINTR", "TestForkAwareThreadLock", "TestPoolNotLeakOnFailure", "MiscTestCase",
]  # fmt: skip

# Classes of fresh interpreters, which take longer to start.
FRESH = [
    "WithProcessesTestQueue", "TestSimpleQueue", "TestStartMethod", "TestNamedResource",
    "WithProcessesTestPicklingConnections", "WithProcessesTestSubclassingProcess",
]  # fmt: skip


def run(method: str, *names: str) -> None:
    result = subprocess.run([sys.executable, str(RUNNER), method, *names], capture_output=True, text=True, timeout=1500)
    assert result.returncode == 0, result.stderr[-8000:]
    assert "\nOK" in result.stderr


@pytest.mark.parametrize("name", QUICK)
def test_with_fork(name):
    run("fork", name)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_with_fresh_interpreters(method):
    run(method, *FRESH)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_everything(method, request, watchdog):
    if not request.config.getoption("--everything"):
        pytest.skip("takes minutes: run with --everything")
    import faulthandler

    faulthandler.cancel_dump_traceback_later()
    run(method)
