# SPDX-License-Identifier: Apache-2.0
"""Handles that travel as bytes, and what keeps their memory until they are opened.

Written-down bytes hold nothing by themselves, so each carries a hold: this process keeps the memory until
the first open, ten minutes at most. What is pickled as an argument of a new process is nobody else's to
open: its holds end with that process.
"""

from __future__ import annotations

import os
import weakref
from multiprocessing.context import get_spawning_popen

from .. import _core

__all__ = ["held", "tie_to_child"]


def held(tensor: _core.Tensor) -> bytes:
    """The bytes of a handle that can be opened once, in any process; tied to the child being started."""
    handle = _core._share_held(tensor)
    tie_to_child(handle)
    return handle


def tie_to_child(handle: bytes) -> None:
    """Ends the hold of `handle` when the child that is being started now is gone.

    Without effect when no child is being started by pickling. The bytes are kept and not the Handle:
    that would keep the memory as long as the child lives.
    """
    popen = get_spawning_popen()
    if popen is not None:
        _holds_of(popen).append(handle)


def _holds_of(popen) -> list[bytes]:
    """What was held for this child; watched from the first call on."""
    holds = vars(popen).get("_onecopy_holds")
    if holds is None:
        holds = popen._onecopy_holds = []
        _watch(popen, holds)
    return holds


def _watch(popen, holds: list[bytes]) -> None:
    """Ends the holds when the child was waited for, or when nobody knows it any more."""
    reference = weakref.ref(popen)
    owner = os.getpid()

    def end() -> None:
        while holds and os.getpid() == owner:
            _core._end_hold(holds.pop())

    def poll(flag=os.WNOHANG):
        popen = reference()
        code = type(popen).poll(popen, flag)
        if code is not None:
            end()
        return code

    popen.poll = poll
    weakref.finalize(popen, end).atexit = False
