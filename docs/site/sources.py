# SPDX-License-Identifier: Apache-2.0
"""The pages of the site, from docs/ and the root, with links changed to fit the site."""

from __future__ import annotations

import posixpath
import re
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OF_THE_ROOT = {"README.md": "index.md", "CHANGELOG.md": "CHANGELOG.md", "SECURITY.md": "SECURITY.md",
               "ARCHITECTURE.md": "ARCHITECTURE.md", "CONTRIBUTING.md": "CONTRIBUTING.md"}  # fmt: skip

_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def version() -> str:
    """Returns the version of the package, which CMakeLists.txt names."""
    found = re.search(r"project\(onecopy\s+VERSION\s+([\d.]+)", (ROOT / "CMakeLists.txt").read_text())
    assert found is not None
    return found[1]


def source_of(page: str) -> str | None:
    """Returns the file of the repository from which a page of the site is made, or None for a page made of code."""
    named = [source for source, made in OF_THE_ROOT.items() if made == page]
    path = named[0] if named else f"docs/{page}"
    return path if (ROOT / path).exists() else None


def write(target: Path) -> None:
    """All pages and pictures, below target."""
    pages = dict(OF_THE_ROOT)
    for path in sorted((ROOT / "docs").rglob("*.md")):
        if "site" not in path.relative_to(ROOT / "docs").parts:
            pages[f"docs/{path.relative_to(ROOT / 'docs')}"] = str(path.relative_to(ROOT / "docs"))
    for source, page in pages.items():
        (target / page).parent.mkdir(parents=True, exist_ok=True)
        (target / page).write_text(for_the_site((ROOT / source).read_text(), source, page, pages))
    for picture in (ROOT / "docs").glob("*.svg"):
        shutil.copy(picture, target / picture.name)


def for_the_site(text: str, source: str, page: str, pages: dict[str, str]) -> str:
    """Links between pages of the repository as links between pages of the site; others become text."""
    kept: list[str] = []

    def keep(match: re.Match) -> str:
        kept.append(match[0])
        return f"\0{len(kept) - 1}\0"

    text = _FENCE.sub(keep, text)
    text = _LINK.sub(lambda match: _link(match, source, page, pages), text)
    api = posixpath.relpath("api/onecopy.md", posixpath.dirname(page) or ".")
    text = text.replace("the API reference (`./dev docs`)", f"the [API reference]({api})")
    text = re.sub(r"^<!-- (examples/\S+).*?-->\n", r"`\1`:\n\n", text, flags=re.MULTILINE)
    return re.sub(r"\0(\d+)\0", lambda match: kept[int(match[1])], text)


def _link(match: re.Match, source: str, page: str, pages: dict[str, str]) -> str:
    picture, text, target = match.groups()
    if "://" in target or target.startswith("#"):
        return match[0]
    path, _, anchor = target.partition("#")
    file = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    if picture:
        return f"![{text}]({posixpath.relpath(posixpath.basename(file), posixpath.dirname(page) or '.')})"
    if file in pages:
        there = posixpath.relpath(pages[file], posixpath.dirname(page) or ".")
        return f"[{text}]({there}{'#' + anchor if anchor else ''})"
    if not (ROOT / file).exists():
        raise SystemExit(f"{source}: {target} is not there")
    return f"{text} (`{file}`)"
