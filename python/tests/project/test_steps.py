# SPDX-License-Identifier: Apache-2.0
"""tests/steps.sh: how a run of tests ends."""

import subprocess
from pathlib import Path

import pytest

STEPS = Path(__file__).parents[3] / "tests/steps.sh"


def summary(tmp_path: Path, *steps: str) -> subprocess.CompletedProcess:
    script = f"set -euo pipefail; . {STEPS}; LOGS={tmp_path}/logs; start_steps; {'; '.join(steps)}; summary"
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=STEPS.parents[1], timeout=60)


def test_a_run_without_failures_ends_with_success(tmp_path):
    result = summary(tmp_path, "step one true", "step two true")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines()[-1] == "2 passed, 0 failed, 0 skipped"


@pytest.mark.parametrize(
    "order", [("step one false || true", "step two true"), ("step two true", "step one false || true")]
)
def test_a_run_with_a_failure_ends_with_its_name_and_status_1(tmp_path, order):
    result = summary(tmp_path, *order)
    assert result.returncode == 1
    assert result.stdout.splitlines()[-2:] == ["failed step: one", "1 passed, 1 failed, 0 skipped"]


def test_a_run_names_failed_cases_and_unexpected_skips_at_its_end(tmp_path):
    lines = [
        "unexpected: python__tests: a.b::c: no reason given",
        "failed: python__tests: a.b::d",
        "        assert 1 == 2",
    ]
    said = tmp_path / "said"
    said.write_text("\n".join(lines) + "\n")
    result = summary(tmp_path, f"step 'skips are expected' bash -c 'cat {said}; exit 1' || true")
    end = ["failed step: skips are expected", "0 passed, 1 failed, 0 skipped"]
    assert result.stdout.splitlines()[-4:] == [*lines[:2], *end]


STUBS = """
VENV=/nowhere
say() {{ echo "$*" >>{order}; }}
build() {{ say build "$1"; [ "$1" != "${{BROKEN:-}}" ]; }}
ctest_step() {{ say tests "$2"; }}
python_steps() {{ sleep 1; say python; }}
library_step() {{ touch "$LOGS/library"; }}
find_ucx() {{ :; }}
llvm_tool() {{ echo true; }}
tsan_starts() {{ true; }}
"""


@pytest.mark.parametrize("broken", ["", "release", "asan"])
def test_sanitizers_are_built_ahead_and_a_build_that_fails_ends_its_step_alone(tmp_path, broken):
    order = tmp_path / "order"
    stubs = STUBS.format(order=order)
    script = f"set -euo pipefail; . {STEPS}; LOGS={tmp_path}/logs; BROKEN={broken}; start_steps\n{stubs}"
    script += "run_steps python release asan tsan; summary"
    result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=STEPS.parents[1], timeout=60)
    assert result.returncode == bool(broken), result.stdout + result.stderr
    done = order.read_text().splitlines()
    assert ("tests release" in done, "tests asan" in done) == (broken != "release", broken != "asan")
    assert done.index("tests tsan") > max(done.index("build tsan"), done.index("python"))
    assert done.count("build asan") == done.count("build tsan") == 1


def words_of(run: str) -> list[list[str]]:
    """Returns the words that a run gives to run_steps, a list for each call."""
    stubs = 'step() { :; }; start_steps() { :; }; find_cmake() { :; }; summary() { :; }; report_cases() { :; }; run_steps() { echo "$@"; }'
    script = f"set -euo pipefail; . {STEPS}; {stubs}; run_tests {run}"
    result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, timeout=60)
    return [line.split() for line in result.stdout.splitlines()]


def test_the_nightly_run_has_each_step_of_ci_and_those_of_the_sanitizers():
    (ci,) = words_of("all")
    same, more = words_of("nightly")
    assert set(same) - set(ci) == {"asan", "tsan", "fuzz"} and set(ci) < set(same)
    assert not set(more) & set(same)
