# SPDX-License-Identifier: Apache-2.0
"""The command ``python -m onecopy.checkpoint``: copies checkpoints between the store and folders."""

from __future__ import annotations

import argparse
import sys

from ..errors import Error
from . import export_folder, import_folder


def main() -> int:
    """Runs the command, and returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m onecopy.checkpoint",
        description="Copies checkpoints of torch.distributed.checkpoint between the store and folders.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    put = commands.add_parser("put", help="publish the checkpoint of a folder as a version of an object")
    get = commands.add_parser("get", help="write a version into a new folder")
    for command in (put, get):
        command.add_argument("name", help="the name of the object")
        command.add_argument("folder")
    put.add_argument("--keep", type=int, default=2, help="number of versions to keep, including the new one")
    get.add_argument("--version", type=int, help="the number of the version; the current one if it is left out")
    given = parser.parse_args()
    try:
        if given.command == "put":
            number = import_folder(given.folder, given.name, keep=given.keep)
            print(f"{given.name} version {number} has the checkpoint of {given.folder}")
        else:
            number = export_folder(given.name, given.folder, version=given.version)
            print(f"{given.folder} has {given.name} version {number}")
    except (Error, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
