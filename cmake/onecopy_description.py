# SPDX-License-Identifier: Apache-2.0
"""Provides the description of the Python package to scikit-build-core: README.md without links into the repository.

An index shows the description far from the repository's files, so a relative link would lead nowhere there. Such links
become absolute once pyproject.toml has the address of the repository. Until then they become their text, and pictures
are left out.
"""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["description_of", "dynamic_metadata"]


_LINK = re.compile(r"(!?)\[([^\[\]]*)\]\((?!https?://|#)([^)\s]+)\)")


def dynamic_metadata(field: str, settings: dict[str, object] | None = None, *_: object) -> dict[str, str]:
    """Returns the field ``readme``. scikit-build-core calls this in the root of the sources."""
    if field != "readme":
        raise ValueError(f"this provider knows the readme alone, not {field!r}")
    text = description_of((Path.cwd() / "README.md").read_text(), files_of((Path.cwd() / "pyproject.toml").read_text()))
    return {"content-type": "text/markdown", "text": text}


def files_of(project: str) -> str:
    """Returns the address below which the files of the repository are, or nothing; ``project``: pyproject.toml."""
    found = re.search(r'^Repository = "(https://[^"]+?)/?"$', project, re.MULTILINE)
    return f"{found[1]}/blob/main/" if found else ""


def description_of(readme: str, files: str) -> str:
    """Returns ``readme`` with its relative links made absolute below ``files``, or made text if that is empty."""

    def link(match: re.Match[str]) -> str:
        picture, text, target = match.groups()
        if files:
            return f"{picture}[{text}]({files}{target})"
        return "" if picture else text

    return _LINK.sub(link, readme)
