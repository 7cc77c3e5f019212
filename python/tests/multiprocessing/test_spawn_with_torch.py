# SPDX-License-Identifier: Apache-2.0
"""Children that are forked for the method spawn have the state of an interpreter that was executed."""

from __future__ import annotations

import os
import resource
import signal
import sys

import pytest

pytest.importorskip("torch")

import onecopy.multiprocessing as mp


def tell(queue):
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    mask = os.umask(0)
    ignored = signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN
    queue.put((os.getppid(), os.environ.get("OF_THE_TEST"), os.getcwd(), soft, mask, ignored))


def of_a_child() -> tuple:
    context = mp.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=tell, args=(queue,))
    process.start()
    told = queue.get(timeout=60)
    process.join()
    assert process.exitcode == 0
    process.close()
    queue.close()
    return told


@pytest.fixture
def changed(monkeypatch, tmp_path):
    """Everything that a process passes on, different from the tests before."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.setenv("OF_THE_TEST", "yes")
    monkeypatch.chdir(tmp_path)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[0] - 1, limits[1]))
    mask = os.umask(0o123)
    handler = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    yield os.getpid(), "yes", str(tmp_path), limits[0] - 1, 0o123, True
    signal.signal(signal.SIGUSR1, handler)
    os.umask(mask)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_forked_child_has_the_environment_directory_limits_and_signals_of_its_parent(changed):
    assert of_a_child() == changed


@pytest.mark.fresh_interpreters
def test_so_has_one_that_executes_an_interpreter(changed):
    assert of_a_child() == changed


def exit_code_of(target) -> int | None:
    process = mp.get_context("spawn").Process(target=target)
    process.start()
    process.join()
    code = process.exitcode
    process.close()
    return code


def be_killed():
    os.kill(os.getpid(), signal.SIGKILL)


def leave():
    sys.exit(7)


@pytest.mark.parametrize("target, code", [(be_killed, -signal.SIGKILL), (leave, 7)])
def test_its_end_is_its_parents_to_see(target, code):
    assert exit_code_of(target) == code
