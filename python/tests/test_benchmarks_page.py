# SPDX-License-Identifier: Apache-2.0
"""docs/benchmarks.md is what bench/page.py makes of bench/results."""

import json
import subprocess
import sys


def test_the_page_has_the_newest_results(repository):
    subprocess.run([sys.executable, repository / "bench/page.py", "--check"], check=True)


def test_results_are_kept_of_the_newest_run_of_each_kind_of_machine(repository):
    results = sorted(path.name for path in (repository / "bench/results").iterdir())
    kinds = [name.removesuffix(".json")[11:] for name in results]
    assert sorted(set(kinds)) == sorted(kinds)


def test_every_result_names_its_date_and_machine(repository):
    for path in (repository / "bench/results").iterdir():
        result = json.loads(path.read_text())
        assert path.name.startswith(result["date"])
        assert result["machine"]["processor"]
