# SPDX-License-Identifier: Apache-2.0
"""Writes the pages of the site and lets MkDocs build it: ./dev docs. A link that leads nowhere is an error."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import hooks
import python_api
import sources

BUILD = sources.ROOT / "build/docs"

NAVIGATION = {
    "Start": ["index.md"],
    "Guides": [f"guides/{name}.md" for name in (
        "sharing", "weights-trainer-engine", "coming-from-torch-multiprocessing", "data-loading", "numpy", "asyncio",
        "kv-cache", "kv-pool", "kv-pool-engines", "to-the-card", "rpc", "rpc-native", "rpc-hosts", "rpc-cpp", "graphs",
        "torchair", "store", "store-hosts", "checkpoints", "cpp", "huggingface", "ray",
        "vllm", "vllm-start", "vllm-sleep", "vllm-lora", "sglang", "refit", "lmcache", "operators")],
    "Reference": [*(f"reference/{name}.md" for name in (
                      "python", "what-goes-in", "cpp", "cli", "environment", "errors", "limits", "counters", "versions",
                      "tested", "patches",
                      "rpc-compatibility", "graphs-compatibility")),
                  "benchmarks.md", "SECURITY.md", "CHANGELOG.md"],
}  # fmt: skip
# Lines of code have 100 columns and more. Code in tables is not broken in a word.
STYLE = """\
.md-grid { max-width: 80rem; }
.md-typeset table:not([class]) code { word-break: normal; overflow-wrap: normal; }
"""
# Pages for contributors.
BEHIND = ["ARCHITECTURE.md", "CONTRIBUTING.md", "design/README.md", "design/protocol.md",
          "design/cuda_gotchas.md", "design/ascend.md"]  # fmt: skip
THEIR_WORKER = "https://unpkg.com/iframe-worker/shim"

SETTINGS = r"""
site_name: onecopy {version}
site_description: One copy of a tensor, used by every process
repo_url: {repository}
docs_dir: {pages}
site_dir: {site}
use_directory_urls: false
strict: true
theme:
  name: material
  font: false
  features: [navigation.tabs, navigation.top, navigation.indexes, navigation.footer, search.suggest, search.highlight,
             content.code.copy, content.action.edit]
  palette:
    - media: "(prefers-color-scheme: light)"
      scheme: default
      primary: blue grey
      accent: orange
      toggle: {{icon: material/weather-night, name: Dark}}
    - media: "(prefers-color-scheme: dark)"
      scheme: slate
      primary: blue grey
      accent: orange
      toggle: {{icon: material/weather-sunny, name: Light}}
extra_css: [wide.css]
extra: {{generator: false}}
copyright: onecopy {version}, Apache 2.0
hooks: [{site_folder}/hooks.py]
plugins:
  - search:
      separator: '[\s\-,:!=\[\]()"/`]+|\.(?!\d)|&[lg]t;'
  - offline
  - mkdocstrings:
      handlers:
        python:
          paths: [{python}]
          options:
            extensions: [{site_folder}/docstrings.py]
            docstring_style: google
            docstring_options: {{warnings: false}}
            filters: public
            heading_level: 2
            members_order: alphabetical
            inherited_members: true
            separate_signature: true
            show_root_heading: false
            show_root_toc_entry: false
            show_signature_annotations: true
            show_source: false
            show_symbol_type_heading: true
markdown_extensions:
  - attr_list
  - tables
  - pymdownx.superfences
  - pymdownx.highlight
  - toc: {{permalink: true, toc_depth: 3}}
validation:
  nav: {{omitted_files: warn, not_found: warn}}
  links: {{not_found: warn, anchors: warn, absolute_links: warn, unrecognized_links: warn}}
nav:
{navigation}
"""


def main() -> int:
    pages = BUILD / "pages"
    shutil.rmtree(BUILD, ignore_errors=True)
    sources.write(pages)
    navigation = {title: list(found) for title, found in NAVIGATION.items()}
    navigation["Python API"] = python_api.write(pages)
    if not _write_cpp_pages(pages / "cpp"):
        return 1
    navigation["Design"] = BEHIND + _rest(pages, navigation)
    (pages / "wide.css").write_text(STYLE)
    settings = BUILD / "mkdocs.yml"
    settings.write_text(settings_of(pages, BUILD / "site", _yaml(navigation) + "\n  - C++ API: cpp/index.html"))
    if not build(settings):
        return 1
    _search_in_files(BUILD / "site")
    print(
        f"the site is {BUILD / 'site/index.html'}: {len(list((BUILD / 'site').rglob('*.html')))} pages, links checked"
    )
    return 0


def settings_of(pages: Path, site: Path, navigation: str) -> str:
    """Returns the settings of MkDocs for a site with this navigation."""
    return SETTINGS.format(
        pages=pages, site=site, navigation=navigation, python=sources.ROOT / "python",
        site_folder=Path(__file__).parent, version=sources.version(), repository=hooks.repository() or '""',
    )  # fmt: skip


def _write_cpp_pages(target: Path) -> bool:
    """Lets doxygen write the pages of the public headers. Returns whether all their references exist."""
    if shutil.which("doxygen") is None:
        print("the pages of the C++ API need doxygen: apt-get install doxygen", file=sys.stderr)
        return False
    options = (Path(__file__).parent / "Doxyfile").read_text() + f"HTML_OUTPUT = {target}\n"
    result = subprocess.run(["doxygen", "-"], input=options, cwd=sources.ROOT, capture_output=True, text=True)
    print(result.stderr, end="", file=sys.stderr)
    return result.returncode == 0


def build(settings: Path) -> bool:
    """Returns true if MkDocs printed no warning. MkDocs counts only warnings that it prints: with --quiet a broken link
    would not be an error."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(settings)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    result = subprocess.run(command, env=environment, stdout=-1, stderr=subprocess.STDOUT, text=True)
    if result.returncode != 0:
        print(result.stdout, end="", file=sys.stderr)
    return result.returncode == 0


def _search_in_files(site: Path) -> None:
    """The theme loads what search in files wants from the network: our script takes its place."""
    shutil.copy(Path(__file__).with_name("worker.js"), site / "assets/javascripts/worker.js")
    for page in site.rglob("*.html"):
        text = page.read_text()
        ours = os.path.relpath(site / "assets/javascripts/worker.js", page.parent)
        page.write_text(text.replace(THEIR_WORKER, ours))


def _rest(pages: Path, navigation: dict[str, list[str]]) -> list[str]:
    """Pages that the navigation does not list: decisions, formats, and new ones of docs/."""
    named = {page for found in navigation.values() for page in found} | set(BEHIND)
    return sorted(
        str(path.relative_to(pages)) for path in pages.rglob("*.md") if str(path.relative_to(pages)) not in named
    )


def _yaml(navigation: dict[str, list[str]]) -> str:
    return "\n".join(
        f"  - {title}:\n" + "\n".join(f"    - {page}" for page in found) for title, found in navigation.items()
    )


if __name__ == "__main__":
    sys.exit(main())
