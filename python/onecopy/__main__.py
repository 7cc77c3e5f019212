# SPDX-License-Identifier: Apache-2.0
"""``python -m onecopy`` runs the onecopy command that was installed with the imported package."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def command() -> Path | None:
    """Returns the command's path, or None if the package is not installed or contains no command."""
    from importlib import metadata  # which the store seldom needs, and takes long to import

    try:
        files = metadata.files("onecopy") or []
    except metadata.PackageNotFoundError:
        return None
    places = [Path(file.locate()) for file in files if file.name == "onecopy" and file.parent.name == "bin"]
    return next((place for place in places if os.access(place, os.X_OK)), None)


def command_to_start() -> str:
    """Returns the command beside the interpreter, which is found sooner, or else ``command()``, or else the name."""
    beside = os.path.join(os.path.dirname(sys.executable), "onecopy")
    return beside if os.access(beside, os.X_OK) else str(command() or "onecopy")


def main() -> None:
    """Replaces this process by the command. Exits with a message if the command is missing."""
    found = command()
    if found is None:
        sys.exit("this onecopy was installed without its command: install the package with pip, or build onecopy")
    os.execv(found, [str(found), *sys.argv[1:]])


if __name__ == "__main__":
    main()
