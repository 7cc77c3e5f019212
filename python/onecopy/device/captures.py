# SPDX-License-Identifier: Apache-2.0
"""Tells the core when torch captures a graph.

Torch is patched when the first tensor is pinned or the first arena on a card is made.
"""

from __future__ import annotations

import functools
import sys
import threading

from .. import _core

TYPE_CHECKING = False  # importing typing would cost time
if TYPE_CHECKING:
    from typing import Any

_lock = threading.Lock()
_watched = False


def watch() -> bool:
    """Replaces ``capture_begin`` and ``capture_end`` of ``torch.cuda.CUDAGraph`` for the rest of the process.

    A second call has no effect. Pinned memory that is released during a capture is kept until the capture ends:
    releasing it needs an event on the card, which would invalidate every active capture.

    Returns:
        Whether torch is imported; otherwise nothing is replaced.
    """
    global _watched
    graph = getattr(getattr(sys.modules.get("torch"), "cuda", None), "CUDAGraph", None)
    if graph is None:
        return False
    with _lock:
        if not _watched:
            _watch(graph)
            _watched = True
    return True


def _watch(graph: Any) -> None:
    begin, end = graph.capture_begin, graph.capture_end

    @functools.wraps(begin)
    def capture_begin(self: Any, *args: Any, **named: Any) -> None:
        _core._begin_capture()
        try:
            begin(self, *args, **named)
        except BaseException:
            _core._end_capture()
            raise

    @functools.wraps(end)
    def capture_end(self: Any, *args: Any, **named: Any) -> None:
        try:
            end(self, *args, **named)
        finally:
            _core._end_capture()

    graph.capture_begin, graph.capture_end = capture_begin, capture_end
