# SPDX-License-Identifier: Apache-2.0
"""Draws docs/how-fast.svg, a row of bars for each row of README's table "How fast", from the files in bench/results."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from html import escape
from typing import Any

WIDTH, LEFT, BAR = 720, 190, 14
STYLE = """\
  <style>
    text { fill: #1c2b45; } .quiet { fill: #5a6472; } .ours { fill: #3c7a3c; } .other { fill: #b9c0ca; }
    @media (prefers-color-scheme: dark) {
      .page { fill: #1e2129; } text { fill: #e6ebf5; } .quiet { fill: #a3adbb; } .ours { fill: #7cc47c; } .other { fill: #5a6472; }
    }
  </style>
"""


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of README's table: the figures of a row in one file of results, ours first, each with a label."""

    text: str  # as in README
    file: str  # how the name of the file ends
    title: str  # how the title in the file begins
    figures: tuple[tuple[str, str], ...]


ROWS = (
    Row("a new torch tensor of 64 bytes through `mp.Queue`, and an int back", "-22-amd-epyc-2cpu-vm-python.json", "A fresh tensor of 16",
        (("onecopy", "onecopy.multiprocessing.Queue"),
         ("torch.multiprocessing", "torch.multiprocessing.Queue, file_descriptor"))),
    Row("a new torch tensor of 16 MiB through `mp.Queue`, and an int back", "-22-amd-epyc-2cpu-vm-python.json", "A tensor of 16 MiB",
        (("onecopy", "a fresh tensor of torch, steady state"),
         ("torch.multiprocessing", "torch.multiprocessing.Queue, file_descriptor"))),
    Row("20,000 shared tensors, sent to another process and opened", "-22-amd-epyc-2cpu-vm-python.json", "20,000 tensors of 4 KiB",
        (("onecopy", "bundle"), ("torch.multiprocessing", "torch.multiprocessing.Queue, file_system"))),
    Row("an engine reads 1 GiB of new weights, a byte of each page", "-25-amd-epyc-2cpu-vm-python-plugs.json", "1 GiB of new weights",
        (("onecopy", "onecopy"), ("a shared buffer", "a bucket of 512 MiB in shared memory, copied twice"),
         ("a safetensors file", "a safetensors file, written and mapped"))),
    Row("a new CUDA tensor of 64 bytes through `mp.Queue`, and an int back", "-23-intel-r-xeon-r-processor-32cpu-vm-python-cuda.json",
        "A fresh CUDA tensor of 16",
        (("onecopy", "onecopy.multiprocessing.Queue"), ("torch.multiprocessing", "torch.multiprocessing.Queue"))),
    Row("a `state_dict` of 18,867 tensors, 7.1 GiB, to the GPU", "1x-nvidia-h100-80gb-hbm3-pinned.json", "18,867 tensors",
        (("onecopy", "onecopy.to_device()"), ('{k: v.to("cuda")}', '{k: v.to("cuda")}'))),
)  # fmt: skip


def section_of(row: Row, results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Returns the title and the figures from which the row is made. `results` are the contents of the files by name."""
    (content,) = [content for name, content in results.items() if name.endswith(row.file)]
    (found,) = [one for one in content["rows"] if one["title"].startswith(row.title)]
    return dict(found)


def bars_of(row: Row, results: dict[str, dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Returns the label and the figure of each bar."""
    figures = {figure["what"].strip(): figure for figure in reversed(section_of(row, results)["figures"])}
    return [(label, figures[what]) for label, what in row.figures]


def chart(results: dict[str, dict[str, Any]], cell: Callable[[dict[str, Any]], str]) -> str:
    """Returns the drawing. `cell` writes a figure as the page does."""
    body, y = "", 20
    for row in ROWS:
        bars = bars_of(row, results)
        body += _row(row, bars, y, cell)
        y += 34 + len(bars) * (BAR + 6)
    about = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" font-family="sans-serif" font-size="13" role="img">'
    title = "  <title>How long each row of the table takes with onecopy and without it</title>\n"
    return f'{about}\n{title}{STYLE}  <rect class="page" width="{WIDTH}" height="{y}" fill="#ffffff"/>\n{body}</svg>\n'


def _times(bars: list[tuple[str, dict[str, Any]]]) -> int:
    """Returns how many times as fast the first bar is as the second one, the best of the others."""
    ours, other = bars[0][1]["value"], bars[1][1]["value"]
    return round(max(ours, other) / min(ours, other))


def _row(row: Row, bars: list[tuple[str, dict[str, Any]]], y: int, cell: Callable[[dict[str, Any]], str]) -> str:
    longest = max(figure["value"] for _, figure in bars)
    better = "longer is better" if "/s" in bars[0][1]["unit"] else "shorter is better"
    text = (
        f'  <text x="16" y="{y}">{escape(row.text.replace("`", ""))} <tspan class="quiet">({better})</tspan></text>\n'
    )
    for number, (label, figure) in enumerate(bars):
        said, weight = cell(figure), "normal"
        if not number:
            said, weight = f"{said}, {_times(bars)} times as fast", "bold"
        top = y + 10 + number * (BAR + 6)
        width = max(1.0, figure["value"] / longest * (WIDTH - LEFT - 270))
        kind = "other" if number else "ours"
        text += (
            f'  <text x="{LEFT - 8}" y="{top + 11}" text-anchor="end" class="quiet">{escape(label)}</text>\n'
            f'  <rect class="{kind}" x="{LEFT}" y="{top}" width="{width:.1f}" height="{BAR}"/>\n'
            f'  <text x="{LEFT + width + 6:.1f}" y="{top + 11}" font-weight="{weight}">{escape(said)}</text>\n'
        )
    return text
