# SPDX-License-Identifier: Apache-2.0
"""Children of multiprocessing for the length of a block, threads, and torch without the functions that could replace onecopy's."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any


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


def run(context: Any, target: Any, *arguments: Any, exitcode: int | None = 0) -> None:
    """Runs a child to its end."""
    with running(context, target, *arguments, exitcode=exitcode):
        pass


def same_storage(a: Any, b: Any) -> bool:
    """Returns whether two torch tensors lie on one storage of this process."""
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata


def refuse_to_rebuild(set_attribute: Any = setattr) -> None:
    """Makes torch's rebuild functions raise: a tensor that arrives nevertheless was opened by onecopy."""
    from torch.multiprocessing import reductions

    def refuse(*arguments: Any, **named: Any) -> None:
        raise AssertionError("torch carried this, not onecopy")

    for name in dir(reductions):
        if name.startswith("rebuild_") and name != "rebuild_event":
            set_attribute(reductions, name, refuse)


def in_threads(function: Any, calls: Any) -> None:
    """Calls the function in a thread for each tuple of arguments, all at once, and waits for their ends."""
    threads = [threading.Thread(target=function, args=arguments) for arguments in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
