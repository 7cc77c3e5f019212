# SPDX-License-Identifier: Apache-2.0
"""The version of the Python package, for scikit-build-core: that of CMakeLists.txt, and the commit it is built from.

"0.1.0+g304f4405a1b2" in a checkout; "0.1.0" at the commit that the tag v0.1.0 names, and where there is neither a
checkout nor an sdist's PKG-INFO, which has the version that the sdist was made with.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

__all__ = ["dynamic_metadata", "version_of"]


def dynamic_metadata(field: str, settings: dict[str, object] | None = None, *_: object) -> str:
    """scikit-build-core calls this in the root of the sources."""
    if field != "version":
        raise ValueError(f"this provider knows the version alone, not {field!r}")
    return version_of(Path.cwd())


def version_of(root: Path) -> str:
    """Returns the version of the sources in ``root``."""
    base = re.search(r"project\(onecopy VERSION ([0-9.]+)", (root / "CMakeLists.txt").read_text())
    if base is None:
        raise ValueError(f"{root / 'CMakeLists.txt'} has no line project(onecopy VERSION ...)")
    if (root / ".git").exists():  # sources in a folder of another project's checkout are not of its commit
        return _with_commit(root, base[1])
    packed = root / "PKG-INFO"
    written = re.search(r"^Version: (\S+)$", packed.read_text(), re.MULTILINE) if packed.exists() else None
    return written[1] if written else base[1]


def _with_commit(root: Path, base: str) -> str:
    commit = _git(root, "rev-parse", "--short=12", "HEAD")
    if not commit or f"v{base}" in _git(root, "tag", "--points-at", "HEAD").split():
        return base
    return f"{base}+g{commit}"


def _git(root: Path, *arguments: str) -> str:
    """The output of git; nothing where it is missing or refuses."""
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
