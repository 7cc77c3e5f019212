# SPDX-License-Identifier: Apache-2.0
"""Hooks of MkDocs: links to the file of a page in the repository, and the weight of a page in the search."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import sources

# Pages for contributors and long lists come after the guides.
BEHIND = re.compile(r"design/|ARCHITECTURE|CONTRIBUTING|CHANGELOG|benchmarks")


def repository_of(remote: str) -> str:
    """Returns the web address of a git remote such as "git@host:owner/name.git", or nothing for one that has none."""
    remote = re.sub(r"^(?:ssh://)?git@([^:/]+)[:/]", r"https://\1/", remote).removesuffix(".git")
    return remote if re.fullmatch(r"https://[^@\s]+", remote) else ""


def repository() -> str:
    """Returns $ONECOPY_REPOSITORY, or the address in pyproject.toml, or origin's; nothing if there is none."""
    named = re.search(r'^Repository = "(.+)"$', (sources.ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    command = ["git", "-C", str(sources.ROOT), "config", "--get", "remote.origin.url"]
    found = named[1] if named else subprocess.run(command, capture_output=True, text=True).stdout.strip()
    return repository_of(os.environ.get("ONECOPY_REPOSITORY", found))


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    if page.file.src_uri == "index.md":
        page.meta["hide"] = ["navigation"]  # the width goes to the code and the table
    if BEHIND.match(page.file.src_uri):
        page.meta.setdefault("search", {"boost": 0.2})
    elif page.file.src_uri.startswith("guides/"):
        page.meta.setdefault("search", {"boost": 2})
    return markdown


def on_page_context(context: Any, page: Any, config: Any, **_: Any) -> Any:
    """Points the edit link of a page at its source. Pages that are made of the code have none."""
    source = sources.source_of(page.file.src_uri)
    page.edit_url = f"{config['repo_url']}/edit/main/{source}" if config["repo_url"] and source else None
    return context
