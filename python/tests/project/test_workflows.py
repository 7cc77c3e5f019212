# SPDX-License-Identifier: Apache-2.0
"""The workflows for a forge run commands and name paths that exist, and need no secret."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[3]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ACTIONS = {"actions/checkout", "actions/cache", "actions/upload-artifact"}


def steps(workflow: Path) -> list[dict]:
    """Returns the steps of all jobs."""
    jobs = yaml.safe_load(workflow.read_text())["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


def usage() -> str:
    """Returns what ./dev prints about its commands."""
    return subprocess.run([ROOT / "dev", "help"], capture_output=True, text=True, check=True).stdout


def test_there_are_workflows():
    assert {workflow.stem for workflow in WORKFLOWS} == {"ci", "nightly", "wheels"}


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_each_command_of_a_workflow_exists(workflow):
    commands = [step["run"] for step in steps(workflow) if "run" in step]
    assert commands
    for command in commands:
        words = shlex.split(command)
        if words[0] == "bash":
            assert (ROOT / words[1]).is_file(), command
            continue
        assert words[0] == "./dev", command
        assert re.search(rf"^  {re.escape(' '.join(words[1:]))}\b", usage(), re.MULTILINE), command


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_has_no_secret_and_may_only_read(workflow):
    text = workflow.read_text()
    assert "secrets." not in text
    assert yaml.safe_load(text)["permissions"] == {"contents": "read"}
    for step in steps(workflow):
        assert "uses" not in step or step["uses"].partition("@")[0] in ACTIONS


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_each_job_ends_by_itself(workflow):
    for job in yaml.safe_load(workflow.read_text())["jobs"].values():
        assert 0 < job["timeout-minutes"] <= 360


def test_ci_has_the_time_that_its_script_is_allowed(workflow=ROOT / ".github" / "workflows" / "ci.yml"):
    (job,) = yaml.safe_load(workflow.read_text())["jobs"].values()
    assert job["timeout-minutes"] == 90
    assert [step["run"] for step in job["steps"] if "run" in step] == ["bash .ci/run"]
