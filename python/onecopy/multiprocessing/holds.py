# SPDX-License-Identifier: Apache-2.0
"""Handles that travel as bytes, and what keeps their memory until they are opened.

Written-down bytes hold nothing by themselves, so each carries a hold: this process keeps the memory until
the first open, as long as it lives: they wait in pipes and queues whose readers may be busy for hours, and
torch's own wait as long. What is pickled as an argument of a new process is nobody else's to open: its
holds end with that process. collect(older_than=...) ends what nobody will open any more.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from .. import _core
from .._children import child_being_started, keep_for_child

__all__ = ["held", "held_object", "let_last", "tie_to_child"]


def held(tensor: _core.Tensor) -> bytes:
    """The bytes of a handle that can be opened once, in any process; tied to the child being started."""
    handle = _core._share_held(tensor)
    tie_to_child(handle)
    return handle


def held_object(obj: Any) -> bytes:
    """Keeps an object until whoever gets the bytes gives them to _core._end_hold(), as long as a handle is held."""
    handle = _core._hold_object(obj)
    tie_to_child(handle)
    return handle


def let_last(handle: bytes) -> None:
    """Keeps what these bytes hold as long, not for the ten minutes of bytes that anybody may have made."""
    _core._let_hold_last(handle)
    tie_to_child(handle)


def tie_to_child(handle: bytes) -> None:
    """Ends the hold of `handle` when the child that is being started now is gone.

    Without effect when no child is being started by pickling. The bytes are kept and not the Handle:
    that would keep the memory as long as the child lives.
    """
    if child_being_started() is not None:
        keep_for_child(partial(_core._end_hold, handle))
