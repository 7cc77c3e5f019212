# SPDX-License-Identifier: Apache-2.0
"""What this process keeps for a child that is being started by pickling, until that child is gone.

The child is gone when it was waited for, when nobody knows it any more, or when somebody who waits for
something that the child would do finds its sentinel ready.
"""

from __future__ import annotations

import os
import select
import weakref
from collections.abc import Callable
from multiprocessing.context import get_spawning_popen
from typing import Any

# In a dictionary: its references are listed in one step, whatever other threads add meanwhile.
_watched: weakref.WeakKeyDictionary[Any, None] = weakref.WeakKeyDictionary()


def keep_for_child(let_go: Callable[[], Any]) -> bool:
    """Calls `let_go`, once, when the child that is being started now is gone; False when none is being started."""
    popen = get_spawning_popen()
    if popen is None:
        return False
    _kept_for(popen).append(let_go)
    return True


def let_go_of_ended() -> None:
    """Looks for children that ended and were not waited for. They are left for others to wait for."""
    for reference in _watched.keyrefs():
        popen = reference()
        if popen is not None and _has_ended(popen):
            popen._onecopy_let_go()


def _has_ended(popen: Any) -> bool:
    """By its sentinel, which is closed only after the end."""
    sentinel = getattr(popen, "sentinel", None)  # none before it runs
    if sentinel is None:
        return False
    poll = select.poll()
    poll.register(sentinel, select.POLLIN)
    return bool(poll.poll(0))


def _kept_for(popen: Any) -> list[Callable[[], Any]]:
    """The calls to make; the child is watched from the first time on."""
    kept = vars(popen).get("_onecopy_kept")
    if kept is None:
        kept = popen._onecopy_kept = []
        _watch(popen, kept)
    return kept


def _watch(popen: Any, kept: list[Callable[[], Any]]) -> None:
    reference = weakref.ref(popen)
    owner = os.getpid()

    def let_go() -> None:
        while os.getpid() == owner:
            try:
                last = kept.pop()
            except IndexError:  # also when another thread was faster
                return
            last()

    def poll(flag: int = os.WNOHANG) -> int | None:
        popen = reference()
        code = type(popen).poll(popen, flag)
        if code is not None:
            let_go()
        return code

    popen.poll = poll
    popen._onecopy_let_go = let_go
    weakref.finalize(popen, let_go).atexit = False
    _watched[popen] = None
