# SPDX-License-Identifier: Apache-2.0
"""A counter has one name everywhere: in Python, for Prometheus and on the page."""

import re
import subprocess
import sys

import onecopy


def rows_of_the_page(repository) -> list[tuple[str, str, str]]:
    """Returns (counter, metric, meaning) of each row."""
    page = (repository / "docs/reference/counters.md").read_text()
    return re.findall(r"^\| `(\w+)` \| (?:`(\w+)` )?\| (.+) \|$", page, re.MULTILINE)


def test_the_page_has_the_counters_of_python(repository):
    named = [counter for counter, *_ in rows_of_the_page(repository)]
    assert sorted(named) == sorted(onecopy.stats())
    assert all(f"``{name}``" in onecopy.stats.__doc__ for name in named)


def test_the_page_has_the_metrics_and_the_help_of_prometheus(repository):
    kept = onecopy.share(onecopy.zeros(3))
    command = [sys.executable, "-m", "onecopy", "ls", "--format", "prometheus"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    helped = dict(re.findall(r"^# HELP (\w+) (.+)$", text, re.MULTILINE))
    typed = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    shown = {metric: meaning for _, metric, meaning in rows_of_the_page(repository) if metric}
    assert shown.items() <= helped.items() and helped.keys() == typed.keys()
    assert all(metric.endswith("_total") == (typed[metric] == "counter") for metric in shown)
    assert kept
