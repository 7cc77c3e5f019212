#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/benchmarks.md and docs/how-fast.svg from bench/results: the newest file of each kind of machine.

page.py            writes both
page.py --check    fails if they are not what the results say
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE, CHART = ROOT / "bench/results", ROOT / "docs/benchmarks.md", ROOT / "docs/how-fast.svg"
sys.path.insert(0, str(ROOT / "bench/python"))
sys.path.insert(0, str(ROOT / "bench"))
import chart  # noqa: E402
import names  # noqa: E402

from report import format_value  # noqa: E402

NOT_SAID = (
    "put ",
    "iceoryx was not",
    "one card here",
    "views of fresh",
    "values of state_dict()",
)  # notes of rows that are not shown

HEAD = """\
# Benchmarks

Numbers depend on the machine: compare the rows of one column, and measure on yours.

```sh
./dev bench                                           # the C++ library, about two minutes
./dev bench python                                    # the Python package, about ten minutes
./dev gpu                                             # the C++ library on CUDA devices
.venv/bin/python bench/python/run.py --device cuda:0  # the Python package on a CUDA device
.venv/bin/python bench/python/pinned.py               # copies and files with pinned memory
```

"""

METHOD = """
## How it was measured

A number is the median over rounds in which onecopy and the others run one after the other, unless the section says otherwise. torch
runs in processes that never import onecopy. [How each row is measured](../bench/README.md) says what is inside the measured time. A
column is a machine and a date. If a section names no command, the commands above measure it. *By hand*: the figures were copied from the
output of the command that the section names, or were measured once, as the section says. The slowest calls (p99, max) are not recorded,
except where a section says so. `bench/page.py` writes this page from the files in `bench/results`.

"""


def newest() -> list[tuple[str, dict[str, Any]]]:
    """Returns (date, content) of the newest file of each kind. The kind is the file name after the date."""
    files = {path.name[11:]: path for path in sorted(RESULTS.glob("*.json"))}
    return [(path.name[:10], json.loads(path.read_text())) for path in sorted(files.values(), key=_order)]


def _order(path: Path) -> tuple[bool, bool, bool, str]:
    """Returns the sort key of a file: machines without a card first, then results of `./dev bench`, then Python before
    C++."""
    has_card = "nvidia" in path.name or "cuda" in path.name
    is_special = re.search(r"-(rpc|plugs|graphs|pinned|store|store-hosts|start|engines)\.json$", path.name) is not None
    return has_card, is_special, "-python" not in path.name, path.name


def machine_of(facts: dict[str, str]) -> str:
    """Returns a description of the machine, which is the same for all its files."""
    card = re.search(r"NVIDIA[^,]*", facts.get("cuda:0", "") or facts.get("device", ""))
    count = facts.get("processors usable")
    processor = facts["processor"].replace("(R)", "").replace(" Processor", "")
    return f"{card[0] + ', ' if card else ''}{count + ' processors of ' if count else ''}{processor}"


def page() -> str:
    results = newest()
    letters: dict[str, str] = {}
    for _, result in results:
        letters.setdefault(machine_of(result["machine"]), chr(ord("A") + len(letters)))
    groups: dict[str, list[str]] = {name: [] for name, _ in names.GROUPS}
    titles = dict.fromkeys(row["title"] for _, result in results for row in result["rows"])
    for title in titles:
        if title not in names.LEFT_OUT:
            groups[names.group_of(title)].append(title)
    text = HEAD + _summary(results, letters) + _contents(groups) + METHOD + "| | machine | results |\n|---|---|---|\n"
    for machine, letter in letters.items():
        text += f"| {letter} | {machine} | {_runs(machine, results)} |\n"
    for group, members in groups.items():
        text += f"\n## {group}\n" + "".join(_section(title, results, letters) for title in members)
    return text


def _summary(results: list[tuple[str, dict[str, Any]]], letters: dict[str, str]) -> str:
    """Returns the rows of README's table, with the machine of each."""
    files = {path.name: json.loads(path.read_text()) for path in RESULTS.glob("*.json")}
    text = "| | onecopy | without it | machine |\n|---|---:|---|---|\n"
    for row in chart.ROWS:
        (_, ours), *others = chart.bars_of(row, files)
        (content,) = [content for name, content in files.items() if name.endswith(row.file)]
        without = ", ".join(f"{_cell(figure)} with {label}" for label, figure in others)
        machine = letters[machine_of(content["machine"])]
        section = names.title_of(chart.section_of(row, files)["title"])
        text += f"| [{row.text}](#{_anchor(section)}) | {_cell(ours)} | {without} | {machine} |\n"
    return text + "\n![The rows of the table as bars](how-fast.svg)\n"


def _contents(groups: dict[str, list[str]]) -> str:
    lines = [f"- [{group}](#{_anchor(group)})" for group in ("How it was measured", *groups)]
    return "\n" + "\n".join(lines) + "\n"


def _anchor(title: str) -> str:
    """Returns the anchor that GitHub and the site give a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _runs(machine: str, results: list[tuple[str, dict[str, Any]]]) -> str:
    """Returns the date, the software and the commit of each file of a machine."""
    runs = []
    for date, result in results:
        facts = result["machine"]
        if machine_of(facts) == machine:
            software = facts.get("software") or (f"torch {facts['torch']}" if "torch" in facts else "C++")
            runs.append(f"{date} ({software}, {facts.get('commit', 'by hand')})")
    return "<br>".join(dict.fromkeys(runs))


def _section(title: str, results: list[tuple[str, dict[str, Any]]], letters: dict[str, str]) -> str:
    columns: dict[str, dict[str, dict[str, Any]]] = {}
    notes: dict[str, list[str]] = {}
    for date, result in results:
        for row in result["rows"]:
            if row["title"] == title:
                letter = letters[machine_of(result["machine"])]
                columns[f"{letter}, {date}"] = names.rows_of(title, row["figures"])
                for note in row["notes"]:
                    notes.setdefault(re.sub(r"</torch_[0-9_]*>", "FILE", note), []).append(letter)
    rows = dict.fromkeys(name for figures in columns.values() for name in figures)
    lines = [f"| {' | '.join(['', *columns])} |", f"|---|{'---:|' * len(columns)}"]
    for name in rows:
        lines.append(f"| {name} | {' | '.join(_cell(figures.get(name)) for figures in columns.values())} |")
    said = [
        f"- {'' if len(of) == len(columns) else ', '.join(of) + ': '}{names.plain(note)}"
        for note, of in notes.items()
        if not note.startswith(NOT_SAID)
    ] + [f"- {note}" for note in names.NOTES.get(title, ())]
    return (
        f"\n### {names.title_of(title)}\n\n" + "\n".join(lines) + "\n" + ("\n" + "\n".join(said) + "\n" if said else "")
    )


def _cell(figure: dict[str, Any] | None) -> str:
    if figure is None:
        return ""
    microseconds = figure["unit"] == "us"
    return format_value(figure["value"] * (1e3 if microseconds else 1), "ns" if microseconds else figure["unit"])


def drawing() -> str:
    """Returns the bars of the rows of README's table."""
    return chart.chart({path.name: json.loads(path.read_text()) for path in RESULTS.glob("*.json")}, _cell)


def main(arguments: list[str]) -> int:
    made = {PAGE: page(), CHART: drawing()}
    if arguments == ["--check"]:
        differ = [
            str(path.relative_to(ROOT)) for path, text in made.items() if not path.exists() or path.read_text() != text
        ]
        if differ:
            print(f"{' and '.join(differ)}: not what bench/results says; run bench/page.py", file=sys.stderr)
        return len(differ)
    for path, text in made.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
