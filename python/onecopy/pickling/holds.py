# SPDX-License-Identifier: Apache-2.0
"""Writes handles as bytes, with holds that keep their memory until the bytes are opened.

The bytes of a handle keep no memory alive, so each comes with a hold in this process: it keeps the memory until the
first open, or until this process ends. There is no time limit, since bytes may wait in a pipe or queue for hours.
Arguments of a new process are for that process only, so their holds end when the process does. collect(older_than=...)
ends holds whose bytes will never be opened.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from .. import _core
from .children import child_being_started, keep_for_child

__all__ = ["held", "held_object", "let_last", "tie_to_child"]


def held(tensor: _core.Tensor) -> bytes:
    """Returns the bytes of a handle that any process can open once. The hold is tied to a child being started."""
    handle = _core._share_held(tensor)
    tie_to_child(handle)
    return handle


def held_object(obj: Any) -> bytes:
    """Keeps an object until the receiver of the returned bytes passes them to _core._end_hold().

    The hold lasts as long as that of a handle.
    """
    handle = _core._hold_object(obj)
    tie_to_child(handle)
    return handle


def let_last(handle: bytes) -> None:
    """Keeps the object of these bytes as long as held() does, and not only for the usual ten minutes."""
    _core._let_hold_last(handle)
    tie_to_child(handle)


def tie_to_child(handle: bytes) -> None:
    """Ends the hold of `handle` when the child that is being started has ended.

    Has no effect if no child is being started by pickling. The function stores the bytes, since a stored Handle would
    keep the memory alive as long as the child lives.
    """
    if child_being_started() is not None:
        keep_for_child(partial(_core._end_hold, handle))
