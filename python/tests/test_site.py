# SPDX-License-Identifier: Apache-2.0
"""./dev docs: pages of docs/, the Python API from docstrings and stubs, the C++ API from header comments."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import onecopy

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SITE = Path(__file__).resolve().parents[2] / "docs/site"
sys.path.insert(0, str(SITE))
import build as site_build
import cpp_api
import python_api
import sources

sys.path.remove(str(SITE))


def test_every_public_name_is_on_the_page_of_its_module(tmp_path):
    python_api.write(tmp_path)
    titles = set(re.findall(r"^##+ .*\{ #(\S+) \}$", (tmp_path / "onecopy.md").read_text(), re.MULTILINE))
    modules = {"errors", "hf", "torch", "__version__"}
    assert set(onecopy.__all__) - modules <= titles
    assert {"Queue.get", "Tensor.numpy", "Bundle.load_into"} <= titles


def test_every_module_of_the_plugs_has_a_page():
    there = {f"onecopy.integrations.{path.stem}" for path in (python_api.ROOT / "integrations").glob("[!_]*.py")}
    assert there - {"onecopy.integrations.huggingface"} <= set(python_api.MODULES)


def test_docstrings_become_lists_and_blocks_of_code():
    doc = "Says ``x``.\n\n>>> 1\n1\n\nArgs:\n    a: one,\n        and more.\n    b: two.\n\nReturns:\n    A thing.\n"
    assert python_api.prose(doc) == (
        "Says `x`.\n\n```pycon\n>>> 1\n1\n```\n\n**Args**\n\n- `a`: one, and more.\n- `b`: two.\n\n**Returns** A thing."
    )


def test_declarations_have_their_own_comment_and_no_private_members():
    header = (
        "/// One.\nint one(int a,\n        int b);\n/// A class.\nclass C {\n public:\n  C() : a_(1) {}\n"
        "  int f() const { return a_; }  ///< said\n\n private:\n  int a_;\n};\nint unsaid();\nclass D;\n"
    )
    assert cpp_api.declarations(header) == [
        ("One.", "int one(int a,\n        int b);"),
        ("A class.", "class C {\n public:\n  C();\n  int f() const;  ///< said\n};"),
    ]


def test_the_functions_that_programs_call_are_on_the_pages_for_cpp(tmp_path):
    cpp_api.write(tmp_path)
    share = (tmp_path / "share.md").read_text()
    for title in ("empty", "share", "open", "Bundle", "Handle"):
        assert f"### {title}\n" in share, title
    assert "private:" not in "".join(page.read_text() for page in tmp_path.glob("*.md"))


def test_links_of_the_repository_become_links_of_the_site():
    pages = {"README.md": "index.md", "docs/python.md": "python.md", "docs/formats/a.md": "formats/a.md"}
    assert sources.for_the_site("[a](docs/python.md#x)", "README.md", "index.md", pages) == "[a](python.md#x)"
    assert sources.for_the_site("[a](../README.md)", "docs/python.md", "python.md", pages) == "[a](index.md)"
    assert sources.for_the_site("[a](../python.md)", "docs/formats/a.md", "formats/a.md", pages) == "[a](../python.md)"
    assert sources.for_the_site("[a](LICENSE)", "README.md", "index.md", pages) == "a (`LICENSE`)"
    with pytest.raises(SystemExit, match="nowhere.md is not there"):
        sources.for_the_site("[a](nowhere.md)", "README.md", "index.md", pages)


def test_the_site_is_built_and_all_its_links_lead_somewhere():
    pytest.importorskip("material", reason="wants mkdocs-material (pip install -r python/requirements-docs.txt)")
    result = subprocess.run([sys.executable, SITE / "build.py"], capture_output=True, text=True, timeout=280)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "links checked" in result.stdout


def test_a_link_to_a_heading_that_is_not_there_is_an_error(tmp_path):
    pytest.importorskip("material", reason="wants mkdocs-material (pip install -r python/requirements-docs.txt)")
    (tmp_path / "pages").mkdir()
    settings = tmp_path / "mkdocs.yml"
    settings.write_text(
        site_build.SETTINGS.format(pages=tmp_path / "pages", site=tmp_path / "site", navigation="  - index.md")
    )
    for heading, is_right in (("here", True), ("nowhere", False)):
        (tmp_path / "pages/index.md").write_text(f"# Here\n\n[a](#{heading})\n")
        assert site_build.build(settings) is is_right


@pytest.mark.skipif(CHROMIUM is None, reason="wants Chromium: apt-get install chromium")
def test_a_page_that_is_opened_as_a_file_finds_what_is_searched_for(tmp_path):
    pytest.importorskip("material", reason="wants mkdocs-material (pip install -r python/requirements-docs.txt)")
    page = SITE.parents[1] / "build/docs/site/index.html"
    assert "unpkg.com/iframe-worker" not in page.read_text()
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=60000", "--dump-dom",
               f"--user-data-dir={tmp_path}/profile", "--host-resolver-rules=MAP * ~NOTFOUND"]  # fmt: skip
    command = [CHROMIUM, *options, page.as_uri() + "?q=load_safetensors"]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=200).stdout
    assert re.search(r"\d+ matching documents", dom)
