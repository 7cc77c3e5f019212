# SPDX-License-Identifier: Apache-2.0
"""Describes the measured machine, as bench/support/machine.cpp does."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import pathlib
import platform
import re
import subprocess

_ROOT = pathlib.Path(__file__).resolve().parents[2]


def _first_line(path: str) -> str:
    try:
        return pathlib.Path(path).read_text().split("\n", 1)[0]
    except OSError:
        return ""


def _value_in(path: str, key: str) -> str:
    found = re.search(rf"^{key}\s*:\s*(.*)$", pathlib.Path(path).read_text(), re.MULTILINE)
    return found[1] if found else ""


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", _ROOT, *arguments], capture_output=True, text=True)
    return done.stdout.strip()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _is_virtual() -> bool:
    return "hypervisor" in _value_in("/proc/cpuinfo", "flags").split()


def _processor() -> str:
    return _value_in("/proc/cpuinfo", "model name") or "unknown processor"


def today() -> str:
    return datetime.datetime.now(datetime.timezone.utc).date().isoformat()


def kind() -> str:
    """Returns the processor, the number of processors and whether it is virtual, for file names."""
    slug = "-".join(re.findall(r"[a-z0-9]+", _processor().lower()))
    return f"{slug}-{len(os.sched_getaffinity(0))}cpu{'-vm' if _is_virtual() else ''}"


def describe() -> dict[str, str]:
    """Returns the facts that a reader of the numbers must know."""
    commit = _git("rev-parse", "--short=12", "HEAD")
    changed = " with changes" if _git("status", "--porcelain", "-uno") else ""
    huge = "/sys/kernel/mm/transparent_hugepage/"
    policy = os.sched_getscheduler(0)
    return {
        "processor": _processor() + (", in a virtual machine" if _is_virtual() else ""),
        "processors usable": str(len(os.sched_getaffinity(0))),
        "memory": f"{int(_value_in('/proc/meminfo', 'MemTotal').split()[0]) / (1 << 20):.1f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "huge pages": f"anonymous {_first_line(huge + 'enabled')}, shared {_first_line(huge + 'shmem_enabled')}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "torch": _version("torch"),
        "commit": commit + changed,
        "scheduling": "normal" if policy == os.SCHED_OTHER else "real time: others wait (chrt)",
        "load average at the start": _first_line("/proc/loadavg"),
    }


def describe_device(device: str) -> dict[str, str]:
    """Returns the facts about a CUDA device, which a new process collects."""
    if device == "cpu":
        return {}
    asked = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        lines = subprocess.run(asked, capture_output=True, text=True).stdout.strip().splitlines()
    except OSError:
        lines = []
    return {"device": f"{device}: {', '.join(sorted(set(lines))) or 'nvidia-smi does not answer'}"}
