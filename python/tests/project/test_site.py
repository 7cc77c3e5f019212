# SPDX-License-Identifier: Apache-2.0
"""./dev docs: pages of docs/, the Python API by mkdocstrings, the C++ API by doxygen."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import onecopy

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SITE = Path(__file__).resolve().parents[3] / "docs/site"
SITE_BUILT = SITE.parents[1] / "build/docs/site"
sys.path.insert(0, str(SITE))
import build as site_build
import docstrings
import hooks
import python_api
import sources

sys.path.remove(str(SITE))


def test_every_module_of_the_plugs_has_a_page():
    there = {
        f"onecopy.integrations.{path.stem}" for path in (sources.ROOT / "python/onecopy/integrations").glob("[!_]*.py")
    }
    assert there - {"onecopy.integrations.huggingface"} <= set(python_api.MODULES)


def test_links_of_the_repository_become_links_of_the_site():
    pages = {"README.md": "index.md", "docs/python.md": "python.md", "docs/formats/a.md": "formats/a.md"}
    assert sources.for_the_site("[a](docs/python.md#x)", "README.md", "index.md", pages) == "[a](python.md#x)"
    assert sources.for_the_site("[a](../README.md)", "docs/python.md", "python.md", pages) == "[a](index.md)"
    assert sources.for_the_site("[a](../python.md)", "docs/formats/a.md", "formats/a.md", pages) == "[a](../python.md)"
    assert sources.for_the_site("[a](LICENSE)", "README.md", "index.md", pages) == "a (`LICENSE`)"
    with pytest.raises(SystemExit, match="nowhere.md is not there"):
        sources.for_the_site("[a](nowhere.md)", "README.md", "index.md", pages)


@pytest.fixture
def mkdocs():
    for module in ("material", "mkdocstrings"):
        pytest.importorskip(module, reason="wants mkdocs-material (pip install -r python/requirements-docs.txt)")


def test_the_site_is_built_and_all_its_links_lead_somewhere(mkdocs):
    if shutil.which("doxygen") is None:
        pytest.skip("wants doxygen: apt-get install doxygen")
    result = subprocess.run([sys.executable, SITE / "build.py"], capture_output=True, text=True, timeout=280)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "links checked" in result.stdout
    names = re.findall(r'id="onecopy\.([\w.]+)"', (SITE_BUILT / "api/onecopy.html").read_text())
    errors = {name for name in onecopy.__all__ if isinstance(getattr(onecopy, name), type(onecopy.Error))}
    errors = {name for name in errors if issubclass(getattr(onecopy, name), onecopy.Error)}
    assert set(onecopy.__all__) - errors - {"errors", "hf", "store", "torch", "__version__"} <= set(names)
    assert not errors & set(names), "errors have a page of their own"
    assert {"Queue.get", "Tensor.numpy", "Bundle.load_into"} <= set(names)
    assert names[0] == "share" and "open" in names[1:3], "the page begins with what programs need first"
    cpp = (SITE_BUILT / "cpp/namespaceonecopy.html").read_text()
    assert all(f">{name}<" in cpp for name in ("empty", "share", "open", "Bundle", "Handle"))
    assert "Back to the documentation" in (SITE_BUILT / "cpp/index.html").read_text()


def words_of(text: str, separator: str) -> set[str]:
    return {word.lower() for word in re.split(separator, re.sub("<[^>]+>", " ", text)) if word}


@pytest.mark.parametrize(
    "query, page", [("max_map_count", "reference/errors"), ("Queue.get", "api/onecopy"), ("docker", "reference/limits")]
)
def test_the_search_finds(query, page, mkdocs):
    """A page has all words of the query, as the theme separates words. REQUIRES: the site was built above."""
    index = json.loads((SITE_BUILT / "search/search_index.json").read_text())
    separator = index["config"]["separator"]
    wanted = words_of(query, separator)
    found = [
        doc["location"] for doc in index["docs"] if wanted <= words_of(doc["title"] + " " + doc["text"], separator)
    ]
    assert any(location.startswith(page) for location in found), found


def test_pages_for_contributors_come_after_guides_in_the_search(mkdocs):
    index = json.loads((SITE_BUILT / "search/search_index.json").read_text())
    boosts = {doc["location"].split("#")[0]: doc.get("boost", 1) for doc in index["docs"]}
    guides = [boost for page, boost in boosts.items() if page.startswith("guides/")]
    behind = [boost for page, boost in boosts.items() if page.startswith(("design/", "ARCHITECTURE", "CONTRIBUTING"))]
    assert guides and behind and min(guides) > 1 > max(behind)


def test_examples_in_docstrings_are_code():
    text = "About.\n\n>>> a = 1\n>>> a\n1\n\nMore."
    assert docstrings.as_code(text) == "About.\n\n```pycon\n>>> a = 1\n>>> a\n1\n```\n\nMore."


@pytest.mark.parametrize(
    "remote, address",
    [
        ("git@example.org:owner/name.git", "https://example.org/owner/name"),
        ("https://example.org/owner/name", "https://example.org/owner/name"),
        ("https://user:secret@example.org/owner/name", ""),
        ("/a/folder", ""),
        ("", ""),
    ],
)
def test_pages_link_to_the_repository_if_it_has_an_address(remote, address):
    assert hooks.repository_of(remote) == address


def test_a_link_to_a_heading_that_is_not_there_is_an_error(tmp_path, mkdocs):
    (tmp_path / "pages").mkdir()
    settings = tmp_path / "mkdocs.yml"
    settings.write_text(site_build.settings_of(tmp_path / "pages", tmp_path / "site", "  - index.md"))
    for heading, is_right in (("here", True), ("nowhere", False)):
        (tmp_path / "pages/index.md").write_text(f"# Here\n\n[a](#{heading})\n")
        assert site_build.build(settings) is is_right


@pytest.mark.skipif(CHROMIUM is None, reason="wants Chromium: apt-get install chromium")
def test_a_page_that_is_opened_as_a_file_finds_what_is_searched_for(tmp_path, mkdocs):
    page = SITE_BUILT / "index.html"
    assert "unpkg.com/iframe-worker" not in page.read_text()
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=60000", "--dump-dom",
               f"--user-data-dir={tmp_path}/profile", "--host-resolver-rules=MAP * ~NOTFOUND"]  # fmt: skip
    command = [CHROMIUM, *options, page.as_uri() + "?q=load_safetensors"]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=200).stdout
    assert re.search(r"\d+ matching documents", dom)


def test_the_site_links_to_the_repository_that_is_named(monkeypatch):
    monkeypatch.setenv("ONECOPY_REPOSITORY", "https://example.org/owner/name")
    assert hooks.repository() == "https://example.org/owner/name"
    assert "repo_url: https://example.org/owner/name\n" in site_build.settings_of("pages", "site", "  - index.md")
