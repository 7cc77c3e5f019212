# SPDX-License-Identifier: Apache-2.0
"""The program that runs the keeper."""

from __future__ import annotations

import os
import sys


def command() -> str:
    """Returns the path of the command that came with this package, or its name."""
    beside = os.path.join(os.path.dirname(sys.executable), "onecopy")
    if os.access(beside, os.X_OK):
        return beside
    from ..__main__ import command as installed

    return str(installed() or "onecopy")
