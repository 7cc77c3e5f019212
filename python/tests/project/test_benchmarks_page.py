# SPDX-License-Identifier: Apache-2.0
"""docs/benchmarks.md is what bench/page.py makes of bench/results."""

import importlib
import json
import re
import subprocess
import sys


def test_the_page_has_the_newest_results(repository):
    subprocess.run([sys.executable, repository / "bench/page.py", "--check"], check=True)


def test_readme_quotes_the_figures_of_its_chart(repository, monkeypatch):
    """The chart has a row for each row of the table "How fast"."""
    for folder in ("bench", "bench/python"):
        monkeypatch.syspath_prepend(repository / folder)
    chart, page = importlib.import_module("chart"), importlib.import_module("page")
    readme = (repository / "README.md").read_text()
    table = readme.split("## How fast")[1].split("![")[0]
    rows = re.findall(r"^\| (.+?) \| ([\d.,]+)[^|]* \| ([\d.,]+)[^|]* \|", table, re.MULTILINE)
    assert [text for text, *_ in rows] == [row.text for row in chart.ROWS]
    results = {path.name: json.loads(path.read_text()) for path in (repository / "bench/results").iterdir()}
    for row, (_, ours, without) in zip(chart.ROWS, rows, strict=True):
        shown = [page._cell(figure) for _, figure in chart.bars_of(row, results)]
        assert is_the_rounded(ours, shown[0]) and is_the_rounded(without, shown[-1]), (row.text, shown)


def test_the_summary_and_the_contents_of_the_page_lead_to_its_sections(repository):
    page = (repository / "docs/benchmarks.md").read_text()
    headings = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    before = page.split("\n## ")[0]
    links = re.findall(r"\]\(#([^)]*)\)", before)
    assert len(anchors) == len(headings) and len(links) > 10
    assert set(links) <= anchors


def is_the_rounded(quoted: str, shown: str) -> bool:
    """Returns whether the quoted number is the shown one to within 3 percent."""
    number, exact = (float(re.match(r"[\d.,]+", text)[0].replace(",", "")) for text in (quoted, shown))
    return abs(number - exact) <= 0.03 * exact


def test_results_are_kept_of_the_newest_run_of_each_kind_of_machine(repository):
    results = sorted(path.name for path in (repository / "bench/results").iterdir())
    kinds = [name.removesuffix(".json")[11:] for name in results]
    assert sorted(set(kinds)) == sorted(kinds)


def test_every_result_names_its_date_and_machine(repository):
    for path in (repository / "bench/results").iterdir():
        result = json.loads(path.read_text())
        assert path.name.startswith(result["date"])
        assert result["machine"]["processor"]
