# SPDX-License-Identifier: Apache-2.0
"""Keeps objects for a child process that is being started by pickling, until the child has ended.

A child counts as ended when it was waited for, when its process object is destroyed, or when a caller that waits for
the child finds its sentinel ready.
"""

from __future__ import annotations

import os
import select
import weakref
from collections.abc import Callable
from multiprocessing import context
from typing import Any

# A dictionary lists its references in one step, even while other threads add to it.
_watched: weakref.WeakKeyDictionary[Any, None] = weakref.WeakKeyDictionary()

_of_this_thread = getattr(context, "_tls", None)


def child_being_started() -> Any:
    """Returns the Popen of the child that this thread is starting by pickling, or None."""
    if _of_this_thread is None:
        return context.get_spawning_popen()
    # A missing key is looked up in a tenth of the time of a missing attribute, and every pickled tensor gets here.
    return _of_this_thread.__dict__.get("spawning_popen")


def keep_for_child(let_go: Callable[[], Any]) -> bool:
    """Calls `let_go` once when the child that is being started has ended. Returns False if no child is being
    started."""
    popen = child_being_started()
    if popen is None:
        return False
    _kept_for(popen).append(let_go)
    return True


def let_go_of_ended() -> None:
    """Releases the objects of children that have ended. The children can still be waited for."""
    for reference in _watched.keyrefs():
        popen = reference()
        if popen is not None and _has_ended(popen):
            popen._onecopy_let_go()


def _has_ended(popen: Any) -> bool:
    """Returns whether the process has ended: its sentinel becomes readable then."""
    sentinel = getattr(popen, "sentinel", None)  # None before the process runs
    if sentinel is None:
        return False
    poll = select.poll()
    poll.register(sentinel, select.POLLIN)
    return bool(poll.poll(0))


def _kept_for(popen: Any) -> list[Callable[[], Any]]:
    """Returns the list of calls to make when the child has ended. Watches the child from the first call on."""
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
            except IndexError:  # empty, perhaps because another thread was faster
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
