# SPDX-License-Identifier: Apache-2.0
"""Writes one HTML page from `onecopy ls --format json`: owners, borrowers, blocks in transit, objects of the store,
memory over time, and a map of who holds what. It needs no network and has no script. Command lines are on it."""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from html import escape
from pathlib import Path
from typing import Any

COMMAND = ["onecopy", "ls", "--format", "json"]
COLOURS = ["#3b6ea8", "#c2742e", "#4f8f56", "#9a5ba5", "#b3484f", "#5f7f8c"]
MAX_BOXES, MAX_MOMENTS = 24, 1000
LEFT, TOP, WIDTH, HEIGHT = 90, 14, 760, 190  # of the chart
ROW, BOX, RIGHT = 52, 300, 560  # of the map
STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; } th { text-align: left; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .6rem; vertical-align: top; overflow-wrap: anywhere; }
svg { width: 100%; height: auto; font: 13px system-ui, sans-serif; } svg text { fill: currentColor; }
.box { fill: var(--soft); stroke: var(--line); } .claim { fill: none; stroke: #3b6ea8; opacity: .7; }
"""


def look() -> dict[str, Any]:
    """Returns what all processes of this user say of themselves now."""
    try:
        result = subprocess.run(COMMAND, capture_output=True, text=True, start_new_session=True)  # Ctrl-C is not for it
    except FileNotFoundError:
        sys.exit("the command onecopy is not in PATH; with a virtual environment, activate it")
    if result.returncode:
        sys.exit(result.stderr.strip())
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def memory_of(found: dict[str, Any]) -> dict[int, int]:
    """Returns the bytes that each process shares."""
    return {owner["pid"]: owner["stats"]["bytes_shared"] for owner in found["owners"]}


def watch(seconds: float, every: float) -> tuple[dict[str, Any], list[tuple[float, dict[int, int]]]]:
    """Returns the last look, and the memory of each process at each look. Ctrl-C ends the watch early."""
    last, start = look(), time.monotonic()
    past = [(0.0, memory_of(last))]
    with contextlib.suppress(KeyboardInterrupt):
        if seconds > 0:
            print(f"watching for {seconds:g} s; Ctrl-C writes the page earlier", file=sys.stderr, flush=True)
        while (at := time.monotonic() - start) < seconds:
            time.sleep(min(every, seconds - at))
            last = look()
            past.append((time.monotonic() - start, memory_of(last)))
            if len(past) >= MAX_MOMENTS:
                del past[1::2]
    return last, past


def size(count: float) -> str:
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while count >= 1024 and len(units) > 1:
        count /= 1024
        del units[0]
    return f"{count:.1f} {units[0]}" if units[0] != "B" else f"{count:.0f} B"


def table(titles: str, rows: list[list[object]], otherwise: str = "") -> str:
    head = "".join(f"<th>{title}</th>" for title in titles.split(", "))
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>\n" for row in rows)
    whole = f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>\n"
    return whole if rows else f"<p>{otherwise}</p>\n"


def chart(past: list[tuple[float, dict[int, int]]]) -> str:
    """Draws the memory of the largest owners over time, and the sum of all."""
    most = max(1, *(sum(memory.values()) for _, memory in past))
    length = past[-1][0] or 1
    peaks = {pid: max(memory.get(pid, 0) for _, memory in past) for _, memory in past for pid in memory}
    lines = {f"process {pid}": {at: memory[pid] for at, memory in past if pid in memory}
             for pid in sorted(peaks, key=lambda pid: -peaks[pid])[: len(COLOURS)]}  # fmt: skip
    text = ""
    for part in (0, 0.5, 1):
        y, time_at = TOP + HEIGHT * (1 - part) + 4, f"{past[-1][0] * part:.1f} s"
        text += f'<text text-anchor="end" x="{LEFT - 8}" y="{y:.1f}">{size(most * part)}</text>\n'
        text += f'<text text-anchor="middle" x="{LEFT + WIDTH * part}" y="{TOP + HEIGHT + 18}">{time_at}</text>\n'
    everything = {"all": {at: sum(memory.values()) for at, memory in past}, **lines}
    for row, (name, line) in enumerate(everything.items()):
        colour = ["currentColor", *COLOURS][row]
        points = [(LEFT + WIDTH * at / length, TOP + HEIGHT * (1 - memory / most)) for at, memory in line.items()]
        points += [(points[0][0] + 3, points[0][1])] if len(points) == 1 else []
        places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        x, y = LEFT + 185 * (row % 4), TOP + HEIGHT + 40 + 18 * (row // 4)
        text += f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{places}"/>\n'
        text += f'<rect x="{x}" y="{y - 6}" width="12" height="4" fill="{colour}"/>'
        text += f'<text x="{x + 18}" y="{y}">{name}</text>\n'
    return f'<svg viewBox="0 0 880 270" role="img" aria-label="memory over time">\n{text}</svg>\n'


def box(x: int, row: int, title: str, below: str) -> str:
    y = 4 + ROW * row
    return (
        f'<rect class="box" x="{x}" y="{y}" width="{BOX}" height="40" rx="6"/>'
        f'<text x="{x + 12}" y="{y + 17}">{escape(title)}</text>'
        f'<text x="{x + 12}" y="{y + 32}">{escape(below)}</text>\n'
    )


def borrowing_map(owners: list[dict[str, Any]]) -> str:
    """Draws owners to the left, borrowers to the right, and a line for each pair with borrowed blocks."""
    lines, boxes, right = "", "", dict[int, int]()
    lenders = [owner for owner in owners if owner["borrowers"]][:MAX_BOXES]
    for row, owner in enumerate(lenders):
        boxes += box(0, row, f"{owner['pid']} {owner['name']}", size(owner["stats"]["bytes_shared"]))
        for borrower in owner["borrowers"]:
            at, is_new = right.get(borrower["pid"], len(right)), borrower["pid"] not in right
            if at >= MAX_BOXES:
                continue
            right[borrower["pid"]] = at
            boxes += (
                box(RIGHT, at, f"{borrower['pid']} {borrower['name']}", f"{borrower['claims']} blocks")
                if is_new
                else ""
            )
            y, z, middle = 24 + ROW * row, 24 + ROW * at, (BOX + RIGHT) // 2
            lines += f'<path class="claim" d="M{BOX} {y} C{middle} {y} {middle} {z} {RIGHT} {z}"></path>\n'
    height = ROW * max(len(lenders), len(right)) + 8
    return (
        f'<svg viewBox="0 0 860 {height}" role="img" aria-label="who holds what">\n{lines}{boxes}</svg>\n'
        if lenders
        else ""
    )


def borrower_rows(owners: list[dict[str, Any]]) -> list[list[object]]:
    return [[o["pid"], b["pid"], b["claims"], b["name"]] for o in owners for b in o["borrowers"]]


def owner_row(owner: dict[str, Any]) -> list[object]:
    stats = owner["stats"]
    counts = (stats[name] for name in ("live_blocks", "in_transit", "limbo", "borrowers", "leases", "descriptors"))
    return [owner["pid"], size(stats["bytes_shared"]), size(stats["live_bytes"]), *counts, owner["command"]]


def transit_rows(owners: list[dict[str, Any]]) -> list[list[object]]:
    return [[o["pid"], t["where"], t["blocks"], round(t["age_seconds"])] for o in owners for t in o["transit"]]


def segment_rows(owners: list[dict[str, Any]]) -> list[list[object]]:
    return [[o["pid"], d["device"], d["segments"], size(d["bytes"]), d["uuid"]] for o in owners for d in o["devices"]]


def version_row(name: str, version: dict[str, Any], current: int) -> list[object]:
    number, age = version["version"], time.time() - version["made_at"]
    return [name, f"{number}*" if number == current else number, size(version["bytes"]), version["device"],
            version["readers"], version["publisher"], round(age)]  # fmt: skip


def sections(last: dict[str, Any], past: list[tuple[float, dict[int, int]]]) -> dict[str, str]:
    owners = sorted(last["owners"], key=lambda owner: -owner["stats"]["bytes_shared"])
    versions = [version_row(o["name"], v, o["current"]) for o in last["store"]["objects"] for v in o["versions"]]
    of_owners = "pid, memory, bytes, blocks, in transit, limbo, borrowers, leases, descriptors, command"
    of_versions = "object, version, bytes, device, readers, publisher, seconds"
    borrowers = table("owner, borrower, blocks, name", borrower_rows(owners), "No process has memory of another open.")
    silent: list[list[object]] = [[owner["pid"], owner["why"]] for owner in last["silent"]]
    return {
        "Memory over time": chart(past),
        "Owners": table(of_owners, [owner_row(owner) for owner in owners], "No process of this user shares memory."),
        "Who holds what": borrowing_map(owners) + borrowers,
        "Queues and handles": table("owner, where, blocks, seconds", transit_rows(owners), "Nothing is in transit."),
        "Segments": table("pid, device, segments, memory, UUID", segment_rows(owners), "There are no segments."),
        "Store": table(of_versions, versions, "The store has no objects."),
        "Not listed": table("pid, why", silent, "Every process answered."),
    }


def page(last: dict[str, Any], past: list[tuple[float, dict[int, int]]]) -> str:
    title = escape(f"onecopy on {os.uname().nodename} at {time.strftime('%Y-%m-%d %H:%M:%S')}")
    content = "".join(f"<h2>{name}</h2>\n{part}" for name, part in sections(last, past).items())
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
        f"<p>Watched for {past[-1][0]:.1f} s. All processes of this user.</p>\n{content}</body>\n</html>\n"
    )


def write(file: str, text: str) -> None:
    if file == "-":
        print(text, end="", flush=True)
        return
    try:
        Path(file).write_text(text)
    except OSError:
        if Path(file).is_file():
            Path(file).unlink()  # a part of a page
        raise


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", default="onecopy-report.html", help="where to write the page; - is stdout")
    parser.add_argument(
        "--for", dest="seconds", type=float, default=5, help="how long to watch, in seconds (default: 5)"
    )
    parser.add_argument("--every", type=float, default=0.5, help="seconds between two samples (default: 0.5)")
    options = parser.parse_args()
    look()  # fails before there is a file
    try:
        if options.file != "-":
            open(options.file, "a").close()  # fails before the watch, and leaves what is in a present file
        last, past = watch(options.seconds, max(options.every, 0.05))
        write(options.file, page(last, past))
    except OSError as error:
        sys.exit(f"cannot write {options.file}: {error.strerror}")
    print(f"{options.file}: {len(last['owners'])} processes, watched for {past[-1][0]:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
