# SPDX-License-Identifier: Apache-2.0
"""Handles that travel as bytes, and the holds that keep their memory until they are opened.

Written-down bytes hold nothing by themselves, so each carries a hold: while this process lives, it keeps the memory
until the first open. The bytes wait in pipes and queues whose readers may be busy for hours, and torch's own wait
as long. Arguments of a new process are for that process only: their holds end with it. collect(older_than=...) ends
holds whose bytes will not be opened any more.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from . import _core
from ._children import child_being_started, keep_for_child

__all__ = ["held", "held_object", "let_last", "tie_to_child"]


def held(tensor: _core.Tensor) -> bytes:
    """The bytes of a handle that can be opened once, in any process; tied to the child being started."""
    handle = _core._share_held(tensor)
    tie_to_child(handle)
    return handle


def held_object(obj: Any) -> bytes:
    """Keeps an object until the receiver of the bytes gives them to _core._end_hold(), as long as a handle is
    held."""
    handle = _core._hold_object(obj)
    tie_to_child(handle)
    return handle


def let_last(handle: bytes) -> None:
    """Keeps the object of these bytes as long, not for the ten minutes of bytes from any source."""
    _core._let_hold_last(handle)
    tie_to_child(handle)


def tie_to_child(handle: bytes) -> None:
    """Ends the hold of `handle` when the child that is being started now is gone.

    Has no effect if no child is being started by pickling. The bytes are kept and not the Handle: that would keep
    the memory as long as the child lives.
    """
    if child_being_started() is not None:
        keep_for_child(partial(_core._end_hold, handle))
