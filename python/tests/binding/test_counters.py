# SPDX-License-Identifier: Apache-2.0
"""A counter has one name everywhere: in Python, for Prometheus and on the page."""

import re
import subprocess
import sys

import pytest

import onecopy


def rows_of_the_page(repository) -> list[tuple[str, str, str]]:
    """Returns (counter, metric, meaning) of each row."""
    page = (repository / "docs/reference/counters.md").read_text()
    return re.findall(r"^\| `(\w+)` \| (?:`(\w+)` )?\| (.+) \|$", page, re.MULTILINE)


def test_the_page_has_the_counters_of_python(repository):
    named = [counter for counter, *_ in rows_of_the_page(repository)]
    assert sorted(named) == sorted(onecopy.stats())
    assert all(f"``{name}``" in onecopy.stats.__doc__ for name in named)


@pytest.fixture
def metrics(store) -> str:
    """What Prometheus reads while this process shares a tensor and the store has an object and a KV pool."""
    kept = onecopy.share(onecopy.zeros(3))
    store.publish("x", {"w": onecopy.zeros(3)})
    pool = store.kv_pool("kv", block_bytes=4096, budget=1 << 20)
    command = [sys.executable, "-m", "onecopy", "ls", "--format", "prometheus"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert kept and pool
    return text


def test_the_page_has_the_metrics_and_the_help_of_prometheus(repository, metrics):
    helped = dict(re.findall(r"^# HELP (\w+) (.+)$", metrics, re.MULTILINE))
    typed = dict(re.findall(r"^# TYPE (\w+) (\w+)$", metrics, re.MULTILINE))
    shown = {metric: meaning for _, metric, meaning in rows_of_the_page(repository) if metric}
    page = (repository / "docs/reference/counters.md").read_text()
    shown |= dict(re.findall(r"^\| `(onecopy_(?!group_)\w+)` \| ([^|]+) \|$", page, re.MULTILINE))
    assert shown == helped and helped.keys() == typed.keys()
    assert all(metric.endswith("_total") == (typed[metric] == "counter") for metric in shown)


def test_each_metric_on_a_page_is_one_of_prometheus(repository, metrics):
    known = set(re.findall(r"^# TYPE (\w+)", metrics, re.MULTILINE))
    pages = [repository / "README.md", *(repository / "docs").rglob("*.md")]
    named = {name for page in pages for name in re.findall(r"\bonecopy_(?!group_)[a-z_]+\b", page.read_text())}
    assert {"onecopy_host_waits_total", "onecopy_limbo", "onecopy_store_up"} <= named
    assert named <= known
