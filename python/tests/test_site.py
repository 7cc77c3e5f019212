# SPDX-License-Identifier: Apache-2.0
"""./dev docs: pages of docs/, the Python API by mkdocstrings, the C++ API by doxygen."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import onecopy

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SITE = Path(__file__).resolve().parents[2] / "docs/site"
SITE_BUILT = SITE.parents[1] / "build/docs/site"
sys.path.insert(0, str(SITE))
import build as site_build
import sources

sys.path.remove(str(SITE))


def test_every_module_of_the_plugs_has_a_page():
    there = {
        f"onecopy.integrations.{path.stem}" for path in (sources.ROOT / "python/onecopy/integrations").glob("[!_]*.py")
    }
    assert there - {"onecopy.integrations.huggingface"} <= set(site_build.MODULES)


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
    names = set(re.findall(r'id="onecopy\.([\w.]+)"', (SITE_BUILT / "api/onecopy.html").read_text()))
    assert set(onecopy.__all__) - {"errors", "hf", "store", "torch", "__version__"} <= names
    assert {"Queue.get", "Tensor.numpy", "Bundle.load_into"} <= names
    cpp = (SITE_BUILT / "cpp/namespaceonecopy.html").read_text()
    assert all(f">{name}<" in cpp for name in ("empty", "share", "open", "Bundle", "Handle"))


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
