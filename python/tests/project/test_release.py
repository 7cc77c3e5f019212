# SPDX-License-Identifier: Apache-2.0
"""./dev release refuses what is not ready, tags after the tests of CI, and leaves nothing of a release that failed."""

import importlib.util
import shutil
import subprocess
import sys

import pytest

FILES = ("CMakeLists.txt", "CITATION.cff", "SECURITY.md", "CHANGELOG.md", "pyproject.toml")
STEP = "#!/bin/sh\necho $0 $@ >> log\n"


@pytest.fixture(scope="module")
def release(repository):
    spec = importlib.util.spec_from_file_location("release", repository / "tests/install/release.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def git(root, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    return subprocess.run(["git", *identity, *words], cwd=root, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def checkout(tmp_path, repository, monkeypatch):
    """A checkout with the files that a release reads, ready to be released, and commands that only write a log."""
    root = tmp_path / "checkout"
    (root / ".ci").mkdir(parents=True)
    (root / "news").mkdir()
    for name in FILES:
        shutil.copy(repository / name, root)
    text = (root / "SECURITY.md").read_text()
    (root / "SECURITY.md").write_text(text.replace("SECURITY_CONTACT", "security@example.org"))
    with (root / "pyproject.toml").open("a") as project:
        project.write('\n[project.urls]\nRepository = "https://example.org/onecopy"\n')
    (root / ".gitignore").write_text("log\n")
    for command in ("dev", ".ci/run"):
        (root / command).write_text(STEP)
        (root / command).chmod(0o755)
    for name in ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"):
        monkeypatch.setenv(name, "a@example.org")
    git(root, "init", "--quiet")
    commit(root)
    return root


def commit(root) -> None:
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "all")


def log_of(root) -> list[str]:
    return (root / "log").read_text().splitlines() if (root / "log").exists() else []


def version_of(root) -> str:
    return (root / "CITATION.cff").read_text().split("version: ")[2].split()[0]


def test_this_checkout_says_what_it_lacks(release, repository, capsys):
    """Before the first release that is at least a contact and an address."""
    missing = release.problems(repository, version_of(repository))
    if "SECURITY_CONTACT" in (repository / "SECURITY.md").read_text():
        assert any("SECURITY_CONTACT" in problem for problem in missing)
    assert any("Repository" in problem for problem in missing) is not bool(release.repository_of(repository))
    command = [repository / "dev", "release", "--dry-run", "9.9.9"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 1 and "CMakeLists.txt has another version" in result.stderr


def test_a_dry_run_says_what_would_be_done_and_does_nothing(release, checkout, capsys):
    version = version_of(checkout)
    assert release.main([version, "--dry-run"], checkout) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "  bash .ci/run", f"  git tag v{version}", "  ./dev wheel", "  ./dev docs",
    ]  # fmt: skip
    assert log_of(checkout) == [] and git(checkout, "tag") == "" and git(checkout, "status", "--porcelain") == ""


def test_a_release_tests_then_tags_then_builds(release, checkout):
    version = version_of(checkout)
    (checkout / "news/one.sharing.md").write_text("- One thing.\n")
    (checkout / "news/two.the_command.md").write_text("- Another thing.\n")
    commit(checkout)
    assert release.main([version], checkout) == 0
    assert log_of(checkout) == [".ci/run", "./dev wheel", "./dev docs"]
    assert git(checkout, "tag", "--points-at", "HEAD").split() == [f"v{version}"]
    changes = (checkout / "CHANGELOG.md").read_text()
    assert "not released yet" not in changes and list(checkout.glob("news/*.md")) == []
    sharing, command = changes.split("### Sharing\n")[1], changes.split("### The command\n")[1]
    assert sharing.split("\n\n### ")[0].endswith("\n- One thing.")
    assert command.split("\n\n### ")[0].endswith("\n- Another thing.")


@pytest.mark.parametrize("step", [".ci/run", "dev"])
def test_a_step_that_fails_leaves_no_tag_and_no_commit(step, release, checkout):
    (checkout / step).write_text(STEP + "exit 1\n")
    commit(checkout)
    before = git(checkout, "rev-parse", "HEAD")
    assert release.main([version_of(checkout)], checkout) == 1
    assert git(checkout, "tag") == "" and git(checkout, "rev-parse", "HEAD") == before
    assert git(checkout, "status", "--porcelain") == ""


@pytest.mark.parametrize(
    "file, old, new, problem",
    [
        ("SECURITY.md", "security@example.org", "SECURITY_CONTACT", "names nobody to report to"),
        ("pyproject.toml", 'Repository = "https://example.org/onecopy"', "", "has no address"),
        ("CITATION.cff", "\nversion: ", "\nversion: 9", "CITATION.cff has another version"),
        ("CHANGELOG.md", ", not released yet", "", "has no heading"),
    ],
)
def test_what_is_missing_is_named_before_anything_is_done(file, old, new, problem, release, checkout, capsys):
    text = (checkout / file).read_text()
    assert old in text
    version = version_of(checkout)
    (checkout / file).write_text(text.replace(old, new))
    commit(checkout)
    assert release.main([version], checkout) == 1
    assert problem in capsys.readouterr().err and log_of(checkout) == []


def test_a_piece_of_news_without_a_section_is_refused(release, checkout, capsys):
    (checkout / "news/one.nowhere.md").write_text("- x\n")
    commit(checkout)
    assert release.main([version_of(checkout)], checkout) == 1
    assert "news/one.nowhere.md names no section" in capsys.readouterr().err


def test_the_news_of_this_checkout_name_sections_and_are_items(release, repository):
    assert release.strays(repository) == []
    assert all(path.read_text().startswith("- ") for path in release.fragments(repository))


def test_words_that_are_no_version_are_answered_with_the_usage(repository):
    command = [sys.executable, repository / "tests/install/release.py", "next"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 2 and result.stderr.startswith("usage: ./dev release")
