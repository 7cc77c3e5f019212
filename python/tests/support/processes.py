# SPDX-License-Identifier: Apache-2.0
"""Children of multiprocessing and threads for the length of a block, signals that end a block, and torch without the functions
that could replace onecopy's.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

TESTS = str(Path(__file__).resolve().parents[1])  # the folder of the modules that tests import


def interpret(program: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs a program in a fresh interpreter to its end, and captures its output."""
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


def kill_all(*pids: int) -> None:
    """Kills processes at once: all of them are stopped before the first one is killed. Waits for their ends."""
    ends = [os.pidfd_open(pid) for pid in pids]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            os.kill(pid, number)
    for end in ends:
        assert select.select([end], [], [], 60)[0]
        os.close(end)


@contextlib.contextmanager
def running(context: Any, target: Any, *arguments: Any, exitcode: int | None = 0) -> Iterator[None]:
    """Starts a child, and waits for its end after the block.

    Holds no argument while the child runs. `exitcode` is what the child must end with, or None for any exit code.
    """
    child = context.Process(target=target, args=arguments)
    del arguments
    child.start()
    yield
    child.join()
    assert exitcode is None or child.exitcode == exitcode
    child.close()


@contextlib.contextmanager
def running_all(context: Any, *targets: tuple[Any, ...]) -> Iterator[None]:
    """Starts a child for each (function, argument, ...), and waits for their ends after the block."""
    with contextlib.ExitStack() as children:
        for target in targets:
            children.enter_context(running(context, *target))
        yield


def run(context: Any, target: Any, *arguments: Any, exitcode: int | None = 0) -> None:
    """Runs a child to its end."""
    with running(context, target, *arguments, exitcode=exitcode):
        pass


def kill_while_it_stores(start: Callable[[], Callable[[], Any]], pool: Any, blocks: int) -> None:
    """Forks a child, which calls what start() returns again and again, and kills it once it has stored some blocks."""
    end = pool.stats()["stored"] + blocks
    if (pid := os.fork()) == 0:
        try:
            work = start()
            while True:
                work()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    try:
        while stored(pool) < end:
            assert os.waitpid(pid, os.WNOHANG) == (0, 0), "the child has ended"
    finally:
        os.kill(pid, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def stored(pool: Any) -> int:
    """Returns how many blocks were stored in a KV pool; -1 if a process without a processor is in a call meanwhile."""
    import onecopy

    try:
        return int(pool.stats()["stored"])
    except onecopy.Timeout:
        return -1


def same_storage(a: Any, b: Any) -> bool:
    """Returns whether two torch tensors lie on one storage of this process."""
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata


# Functions of torch that open no memory themselves.
NOT_OF_MEMORY = ("rebuild_event", "rebuild_meta_tensor", "rebuild_nested_tensor")


def refuse_to_rebuild(set_attribute: Any = setattr) -> None:
    """Makes torch's rebuild functions raise: a tensor with memory that arrives nevertheless was opened by onecopy."""
    from torch.multiprocessing import reductions

    def refuse(*arguments: Any, **named: Any) -> None:
        raise AssertionError("torch carried this, not onecopy")

    for name in dir(reductions):
        if name.startswith("rebuild_") and name not in NOT_OF_MEMORY:
            set_attribute(reductions, name, refuse)


@contextlib.contextmanager
def beside(function: Any, *calls: Any) -> Iterator[None]:
    """Calls the function in a thread for each tuple of arguments, and waits for their ends after the block."""
    threads = [threading.Thread(target=function, args=arguments) for arguments in calls]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.join()


def in_threads(function: Any, calls: Any) -> None:
    """Calls the function in a thread for each tuple of arguments, all at once, and waits for their ends."""
    with beside(function, *calls):
        pass


def errors_of_waits(wait: Any, end: Any, expected: Any, count: int = 1) -> list[Exception]:
    """Returns the errors with which waiting threads end after a call of `end`."""
    errors = []

    def attempt() -> None:
        try:
            wait()
        except expected as error:
            errors.append(error)

    with beside(attempt, *[()] * count):
        end()
    return errors


@contextlib.contextmanager
def interrupted(expected: Any = KeyboardInterrupt, number: int = signal.SIGINT) -> Iterator[Any]:
    """Sends a signal to this process shortly after the block has begun. The block must end by the exception."""
    timer = threading.Timer(0.1, os.kill, (os.getpid(), number))
    with pytest.raises(expected) as raised:
        timer.start()
        yield raised
    timer.join()
