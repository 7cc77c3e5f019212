# SPDX-License-Identifier: Apache-2.0
"""Copies between the host and a card: pinned shared memory, whole models, and weights from files, each beside torch
(and safetensors) in the same run, with its bound.

    python bench/python/pinned.py [--device cuda:0] [--gib 4] [--folder DIR] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

GIB = 1 << 30
SAYING = {**os.environ, "ONECOPY_LOG": "info"}  # makes the library log its times
rows: list[dict[str, Any]] = []


def row(what: str, figure: float, unit: str, bound: str = "", met: bool | None = None) -> None:
    verdict = "" if met is None else "pass" if met else "MISS"
    rows.append({"what": what, "figure": figure, "unit": unit, "bound": bound, "verdict": verdict})
    print(f"| {what:<66} | {figure:>10.2f} {unit:<8} | {bound:<28} | {verdict:<4} |", flush=True)


def say(text: str) -> None:
    """Prints the lines that the library logs in a process next to its row."""
    for line in text.splitlines():
        if "[onecopy]" in line:
            print("    " + line, flush=True)


def seconds(call: Callable[[], object], rounds: int = 5) -> float:
    import torch

    taken = []
    for _ in range(rounds + 1):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken[1:])


def caller_us(call: Callable[[], object], rounds: int = 20) -> float:
    import torch

    taken = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begin)
    torch.cuda.synchronize()
    return statistics.median(taken) * 1e6


def copies(device: str) -> None:
    import torch

    import onecopy

    for mib in (256, 1024):
        size = mib << 20
        there = torch.empty(size, dtype=torch.uint8, device=device)
        theirs = torch.ones(size, dtype=torch.uint8).pin_memory()
        pageable = onecopy.full(size, 1, "uint8").torch()
        ours = onecopy.full(size, 1, "uint8", pin=True).torch()
        assert ours.is_pinned() and not pageable.is_pinned()
        rate = {
            name: (size / seconds(lambda: there.copy_(t, non_blocking=True)), size / seconds(lambda: t.copy_(there, non_blocking=True)))
            for name, t in (("pageable", pageable), ("torch", theirs), ("ours", ours))
        }  # fmt: skip
        row(f"{mib} MiB to the card, shared and not pinned", rate["pageable"][0] / 1e9, "GB/s")
        row(f"{mib} MiB to the card, torch's pinned memory", rate["torch"][0] / 1e9, "GB/s")
        for way, at in (("to the card", 0), ("back", 1)):
            ratio = rate["ours"][at] / rate["torch"][at]
            row(
                f"{mib} MiB {way}, pinned shared memory",
                rate["ours"][at] / 1e9,
                "GB/s",
                f"{ratio:.2f} x torch's, >= 0.97",
                ratio >= 0.97,
            )
        held = caller_us(lambda: there.copy_(ours, non_blocking=True))
        row(
            f"{mib} MiB, caller held",
            held,
            "us",
            f"torch {caller_us(lambda: there.copy_(theirs, non_blocking=True)):.1f}, <= 20",
            held <= 20,
        )
        del ours, pageable


def second_process(gib: float, device: str) -> None:
    import onecopy

    weights = onecopy.full(int(gib * GIB), 1, "uint8")
    code = (
        "import sys, time, torch, onecopy; torch.zeros(1, device=sys.argv[2]); "
        "b = time.perf_counter(); w = onecopy.open(sys.argv[1], framework='torch', pin=True); t = time.perf_counter() - b; "
        "assert w.is_pinned(); print(t)"
    )
    handle = onecopy.share(weights)
    out = subprocess.run([sys.executable, "-c", code, str(handle), device], capture_output=True, text=True, env=SAYING)
    say(out.stderr)
    if out.returncode:
        print(out.stderr[-2000:])
        return
    took = float(out.stdout.split()[-1]) * 1e3
    by_hand = registered_by_hand(int(gib * GIB), device) * 1e3
    row(f"{gib:g} GiB mapped and registered by hand in a second process", by_hand, "ms")
    bound = f"{took / by_hand:.2f} x by hand, <= {50 * gib:.0f} ms"
    row(f"open(pin=True) of {gib:g} GiB in a second process", took, "ms", bound, took <= 50 * gib)


def registered_by_hand(nbytes: int, device: str) -> float:
    """Returns the seconds that the driver and the kernel alone need to pin existing pages."""
    code = (
        "import mmap, sys, time, numpy, torch; torch.zeros(1, device=sys.argv[3]); "
        "b = time.perf_counter(); m = mmap.mmap(int(sys.argv[1]), int(sys.argv[2])); "
        "at = numpy.frombuffer(m, numpy.uint8).ctypes.data; "
        "r = torch.cuda.cudart().cudaHostRegister(at, len(m), 0); t = time.perf_counter() - b; assert int(r) == 0; print(t)"
    )
    pages = os.memfd_create("pages")
    try:
        os.ftruncate(pages, nbytes)
        with mmap.mmap(pages, nbytes) as content:
            for at in range(0, nbytes, mmap.PAGESIZE):
                content[at] = 1
        command = [sys.executable, "-c", code, str(pages), str(nbytes), device]
        return float(
            subprocess.run(command, capture_output=True, text=True, check=True, pass_fds=[pages]).stdout.split()[-1]
        )
    finally:
        os.close(pages)


def model(device: str, count: int, gib: float) -> None:
    """Returns tensors with the sizes of a model: many small ones and some large ones."""
    import torch

    import onecopy

    large = count // 20
    small_bytes = 64 << 10
    large_bytes = int((gib * GIB - (count - large) * small_bytes) / large) // 4096 * 4096
    state = {f"t{i}": torch.ones(large_bytes if i % 20 == 0 else small_bytes, dtype=torch.uint8) for i in range(count)}
    handle = onecopy.share(state)
    bundle = onecopy.open(handle, framework="torch", pin=True)
    state = {name: bundle[name] for name in bundle}
    total = sum(t.nbytes for t in state.values())
    flat = onecopy.empty(total, "uint8", pin=True).torch()
    there = torch.empty(total, dtype=torch.uint8, device=device)
    one = seconds(lambda: there.copy_(flat, non_blocking=True), 3)
    del there, flat
    onecopy.collect()
    ours = seconds(lambda: onecopy.to_device(state, device), 3)
    onecopy.torch.trim()
    torch.cuda.empty_cache()
    naive = {k: v.clone() for k, v in state.items()}
    stock = seconds(lambda: {k: v.to(device) for k, v in naive.items()}, 1)
    row(f"one copy of {total / GIB:.1f} GiB, pinned", one * 1e3, "ms")
    row(
        f"to_device of {count} tensors, {total / GIB:.1f} GiB",
        ours * 1e3,
        "ms",
        f"{ours / one:.2f} x one copy, <= 1.1",
        ours / one <= 1.1,
    )
    row('{k: v.to("cuda")} of the same', stock * 1e3, "ms", f"{stock / ours:.1f} x ours, >= 5", stock / ours >= 5)


LOAD = """
import sys, time
path, device, how = sys.argv[1:]
import torch
torch.zeros(1, device=device); torch.cuda.synchronize()
if how == "safetensors":
    from safetensors.torch import load_file as load
else:
    import onecopy
    load = lambda path, device: onecopy.load(path, device=device, framework="torch")
for again in range(int(how != "cold") + 1):
    begin = time.perf_counter(); t = load(path, device=device); torch.cuda.synchronize(); print(time.perf_counter() - begin)
    assert all(int(v.view(torch.uint8)[0]) == 7 for v in list(t.values())[:3]), "what was loaded is not what is in the file"
    del t
"""


def write_file(path: Path, gib: float, tensors: int = 256) -> int:
    size = int(gib * GIB) // tensors // 4096 * 4096
    header = {
        f"t{i}": {"dtype": "U8", "shape": [size], "data_offsets": [i * size, (i + 1) * size]} for i in range(tensors)
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        piece = b"\7" * size
        for _ in range(tensors):
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    return size * tensors


def drop_cache(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def load_times(path: Path, device: str, how: str) -> list[float]:
    out = subprocess.run(
        [sys.executable, "-c", LOAD, str(path), device, how], capture_output=True, text=True, env=SAYING
    )
    say(out.stderr)
    if out.returncode:
        print(f"{how}: {out.stderr.strip().splitlines()[-1] if out.stderr.strip() else out.returncode}")
        return []
    return [float(line) for line in out.stdout.split()]


def raw_direct(path: Path, threads: int = 16) -> float:
    """Returns the disk's rate for direct reads of 2 MiB by this number of threads."""
    part, size = 2 << 20, path.stat().st_size // (2 << 20) * (2 << 20)
    fd, places, lock = os.open(path, os.O_RDONLY | os.O_DIRECT), iter(range(0, size, part)), threading.Lock()

    def read() -> None:
        buffer = mmap.mmap(-1, part)
        while True:
            with lock:
                at = next(places, None)
            if at is None:
                return
            os.preadv(fd, [buffer], at)

    begin = time.perf_counter()
    all_threads = [threading.Thread(target=read) for _ in range(threads)]
    for thread in all_threads:
        thread.start()
    for thread in all_threads:
        thread.join()
    os.close(fd)
    return size / (time.perf_counter() - begin)


def files(device: str, gib: float, folder: str) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as made:
        path = Path(made) / "model.safetensors"
        size = write_file(path, gib)
        path.read_bytes()  # into the page cache
        theirs = load_times(path, device, "safetensors")
        ours = load_times(path, device, "onecopy")
        if theirs:
            row(f"safetensors.load_file of {gib:g} GiB in the page cache, new process", size / theirs[0] / 1e9, "GB/s")
            row("the same again", size / theirs[1] / 1e9, "GB/s")
        if ours:
            first, again = size / ours[0] / 1e9, size / ours[1] / 1e9
            ratio = f", {theirs[0] / ours[0]:.1f} x safetensors" if theirs else ""
            row(f"load of {gib:g} GiB in the page cache, new process", first, "GB/s", f">= 25{ratio}", first >= 25)
            row("the same again", again, "GB/s", ">= 45", again >= 45)
        try:
            drop_cache(path)
            raw = raw_direct(path)
        except OSError as error:
            print(f"direct reads: {error}")
            return
        drop_cache(path)
        cold = load_times(path, device, "cold")
        if cold:
            rate = size / cold[0]
            row(
                "load of a file that is not in the page cache",
                rate / 1e9,
                "GB/s",
                f"{rate / raw:.2f} x O_DIRECT ({raw / 1e9:.2f}), >= 0.9",
                rate / raw >= 0.9,
            )


def releases(device: str) -> None:
    import torch

    import onecopy

    count = 2000

    def drop(pin: bool, busy: bool) -> float:
        tensors = [onecopy.empty(256, "uint8") for _ in range(count)]
        if pin:
            onecopy.pin(tensors)
        if busy:
            for stream in [torch.cuda.Stream(device) for _ in range(32)]:
                with torch.cuda.stream(stream):
                    torch.cuda._sleep(200_000_000)
        begin = time.perf_counter()
        for i in range(count):
            tensors[i] = None
        taken = time.perf_counter() - begin
        torch.cuda.synchronize()
        onecopy.collect()
        return taken / count * 1e6

    drop(False, False)
    plain = statistics.median(drop(False, False) for _ in range(5))
    idle = statistics.median(drop(True, False) for _ in range(5)) - plain
    busy = statistics.median(drop(True, True) for _ in range(5)) - plain
    row("release of a pinned tensor more than of another, idle card", idle, "us", "<= 1", idle <= 1)
    row("the same while 32 streams are busy", busy, "us", "<= 12", busy <= 12)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--gib", type=float, default=4)
    parser.add_argument("--folder", default=None)
    parser.add_argument("--json")
    parser.add_argument("--only", default="")
    chosen = parser.parse_args()
    parts: dict[str, Callable[[], None]] = {
        "releases": lambda: releases(chosen.device),
        "copies": lambda: copies(chosen.device),
        "second": lambda: second_process(chosen.gib, chosen.device),
        "files": lambda: files(chosen.device, chosen.gib, chosen.folder),
        "model": lambda: model(chosen.device, 18867, 7.1 * chosen.gib / 4),
    }
    for name, part in parts.items():
        if not chosen.only or name in chosen.only.split(","):
            try:
                part()
            except Exception as error:  # the other rows are still measured
                print(f"{name}: {type(error).__name__}: {error}", flush=True)
    if chosen.json:
        Path(chosen.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
