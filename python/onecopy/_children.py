# SPDX-License-Identifier: Apache-2.0
"""Objects that this process keeps for a child that is being started by pickling, until that child is gone.

The child is gone when it was waited for, or when its process object is. It is also gone when a caller that waits
for the child's action finds its sentinel ready.
"""

from __future__ import annotations

import os
import select
import weakref
from collections.abc import Callable
from multiprocessing import context
from typing import Any

# In a dictionary: its references are listed in one step, also while other threads add to it.
_watched: weakref.WeakKeyDictionary[Any, None] = weakref.WeakKeyDictionary()

_of_this_thread = getattr(context, "_tls", None)


def child_being_started() -> Any:
    """The Popen of the child that this thread is starting by pickling; None when it starts none."""
    if _of_this_thread is None:
        return context.get_spawning_popen()
    # Each tensor asks: a key that is not there takes a tenth of the time of an attribute that is not there.
    return _of_this_thread.__dict__.get("spawning_popen")


def keep_for_child(let_go: Callable[[], Any]) -> bool:
    """Calls `let_go`, once, when the child that is being started now is gone; False when none is being started."""
    popen = child_being_started()
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
    """Returns whether the process has ended, by its sentinel, which is closed only after the end."""
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
        popen: Any = reference()
        code: int | None = type(popen).poll(popen, flag)
        if code is not None:
            let_go()
        return code

    popen.poll = poll
    popen._onecopy_let_go = let_go
    weakref.finalize(popen, let_go).atexit = False
    _watched[popen] = None
