# SPDX-License-Identifier: Apache-2.0
"""Figures, their bounds, and the file of results, like bench/support/report.h."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any


@dataclasses.dataclass(frozen=True)
class Bound:
    """The bound of a value."""

    value: float
    limit: float
    is_lower: bool = False

    def holds(self) -> bool:
        return self.value >= self.limit if self.is_lower else self.value <= self.limit


def at_most(value: float, limit: float) -> Bound:
    return Bound(value, limit)


def at_least(value: float, limit: float) -> Bound:
    return Bound(value, limit, is_lower=True)


@dataclasses.dataclass(frozen=True)
class Figure:
    """A measured number. `ratio` is its ratio to the row that `to` names."""

    what: str
    value: float
    unit: str
    ratio: float | None = None
    to: str = ""
    bound: Bound | None = None

    def value_text(self) -> str:
        return format_value(self.value, self.unit)

    def ratio_text(self) -> str:
        return "" if self.ratio is None else f"{self.ratio:.2f} x {self.to}"

    def bound_text(self) -> str:
        if self.bound is None:
            return ""
        limit = self.bound.limit
        text = format_value(limit, self.unit) if self.ratio is None else f"{limit:.2f} x"
        return f"{'≥' if self.bound.is_lower else '≤'} {text}"

    def verdict(self) -> str:
        if self.bound is None:
            return ""
        return "pass" if self.bound.holds() else "MISS"

    def as_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"what": self.what, "value": self.value, "unit": self.unit}
        if self.ratio is not None:
            out |= {"ratio": self.ratio, "to": self.to}
        if self.bound is not None:
            side = "at_least" if self.bound.is_lower else "at_most"
            out |= {side: self.bound.limit, "pass": self.bound.holds()}
        return out


class Row:
    """A promise and its figures."""

    def __init__(self, title: str, promise: str) -> None:
        self.title = title
        self.promise = promise
        self.figures: list[Figure] = []
        self.notes: list[str] = []

    def add(self, what: str, value: float, unit: str, ratio: float | None = None, to: str = "") -> None:
        self.figures.append(Figure(what, value, unit, ratio, to))

    def judge(self, what: str, value: float, unit: str, bound: Bound) -> None:
        self.figures.append(Figure(what, value, unit, bound=bound))

    def judge_ratio(self, what: str, value: float, unit: str, to: str, bound: Bound) -> None:
        """Adds a figure that is judged by its ratio to the row `to`, which the bound limits."""
        self.figures.append(Figure(what, value, unit, bound.value, to, bound))

    def note(self, text: str) -> None:
        self.notes.append(text)

    def misses(self) -> int:
        return sum(figure.verdict() == "MISS" for figure in self.figures)

    def as_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "promise": self.promise,
            "figures": [figure.as_json() for figure in self.figures],
            "notes": self.notes,
        }


def format_value(value: float, unit: str) -> str:
    """Returns a text such as 312 ns, 4.10 µs or 3.20 million/s."""
    if unit == "ns":
        scales = [(1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1, "ns")]
    elif unit == "/s":
        scales = [(1e6, "million/s"), (1e3, "thousand/s"), (1, "/s")]
    elif not unit:
        return f"{value:.0f}"
    else:
        scales = [(1, unit)]
    scale, name = next((s for s in scales if abs(value) >= s[0]), scales[-1])
    scaled = value / scale
    return f"{scaled:,.{2 if abs(scaled) < 10 else 1 if abs(scaled) < 100 else 0}f} {name}"


def to_text(row: Row) -> str:
    """Returns a row as a block of text for terminals."""
    widest = max((len(figure.what) for figure in row.figures), default=0)
    lines = [row.title, f"  promise: {row.promise}"]
    for f in row.figures:
        line = f"  {f.what:<{widest}}  {f.value_text():<15}  {f.ratio_text():<24}  {f.bound_text():<15}"
        lines.append(f"{line}  {f.verdict()}".rstrip())
    return "\n".join(lines + [f"  ({note})" for note in row.notes]) + "\n"


def write_results(path: pathlib.Path, date: str, facts: dict[str, str], rows: list[Row]) -> None:
    """Writes the results to `path`, of which bench/page.py makes docs/benchmarks.md."""
    path.parent.mkdir(parents=True, exist_ok=True)
    results = {"date": date, "machine": facts, "rows": [row.as_json() for row in rows]}
    path.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")
