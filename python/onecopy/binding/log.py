# SPDX-License-Identifier: Apache-2.0
"""Passes log lines of the C++ library to the logger ``onecopy``, or to stderr while the logger has no handler."""

from __future__ import annotations

import os
import sys
import time

from .. import _core
from . import at_exit

_NAMES = {10: "debug", 20: "info", 30: "warning", 40: "error"}


def start() -> None:
    """Passes the library's lines to Python's logger until the interpreter or the child of multiprocessing ends."""
    _core._start_log()
    at_exit.register(_core._stop_log)


def emit(level: int, text: str) -> None:
    """Logs one line. If ``ONECOPY_LOG`` is set, it has chosen the lines already and the logger's level is ignored."""
    logging = sys.modules.get("logging")
    logger = None if logging is None else logging.getLogger("onecopy")
    if logger is None or not logger.hasHandlers():
        now = time.time()
        moment = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now))}.{int(now % 1 * 1000):03}Z"
        line = f"[onecopy] [{moment}] [{_NAMES[level]}] [{os.getpid()}] {text}\n"
        os.write(2, line.encode(errors="replace"))
    elif not logger.disabled and (level >= logger.getEffectiveLevel() or os.environ.get("ONECOPY_LOG")):
        logger.handle(logger.makeRecord("onecopy", level, "(onecopy)", 0, text, (), None))
