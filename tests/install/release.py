# SPDX-License-Identifier: Apache-2.0
"""usage: ./dev release VERSION [--dry-run]

Checks that the checkout can be released as VERSION, runs the tests of CI, moves the news into CHANGELOG.md, commits and tags,
and builds wheels and site from the tag. Without the tag nothing is left of a release that failed. Nothing is published:
pushing the tag and uploading dist/ are steps of their own.
--dry-run: only checks, and prints what would be done.
"""

from __future__ import annotations

import datetime
import re
import subprocess
import sys
from pathlib import Path

TESTS = [["bash", ".ci/run"]]
BUILDS = [["./dev", "wheel"], ["./dev", "docs"]]
UNRELEASED = ", not released yet"


def main(arguments: list[str], root: Path) -> int:
    words = [word for word in arguments if word != "--dry-run"]
    if len(words) != 1 or not re.fullmatch(r"\d+\.\d+\.\d+", words[0]):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    version = words[0]
    if found := problems(root, version):
        print(f"not ready to be released as {version}:", *found, sep="\n- ", file=sys.stderr)
        return 1
    if "--dry-run" in arguments:
        steps = [" ".join(step) for step in TESTS] + [f"git tag v{version}"] + [" ".join(step) for step in BUILDS]
        print(f"ready to be released as {version}. Would run:", *steps, sep="\n  ")
        return 0
    return release(root, version)


def problems(root: Path, version: str) -> list[str]:
    """Returns what keeps the checkout from being released, with what to do."""
    text = {
        name: (root / name).read_text() for name in ("CMakeLists.txt", "CITATION.cff", "SECURITY.md", "CHANGELOG.md")
    }
    checks = {
        f"CMakeLists.txt has another version: write project(onecopy VERSION {version} ...)":
            f"project(onecopy VERSION {version} " in text["CMakeLists.txt"],
        f"CITATION.cff has another version: write version: {version}": f"version: {version}\n" in text["CITATION.cff"],
        f'CHANGELOG.md has no heading "## {version}{UNRELEASED}" for the news of this version':
            f"## {version}{UNRELEASED}\n" in text["CHANGELOG.md"],
        "SECURITY.md names nobody to report to: write an address in the place of SECURITY_CONTACT":
            "SECURITY_CONTACT" not in text["SECURITY.md"],
        'pyproject.toml has no address: write [project.urls] with Repository = "https://..." into it':
            bool(repository_of(root)),
        "there are changes that are not committed": not git(root, "status", "--porcelain"),
        f"the tag v{version} exists": not git(root, "tag", "--list", f"v{version}"),
        **{f"news/{name} names no section of CHANGELOG.md: call it NAME.SECTION.md, with a section in small letters and _":
            False for name in strays(root)},
    }  # fmt: skip
    return [problem for problem, is_right in checks.items() if not is_right]


def repository_of(root: Path) -> str:
    """Returns the web address of the repository, which pyproject.toml has from the first release on."""
    found = re.search(r'^Repository = "(https://[^"\s]+)"$', (root / "pyproject.toml").read_text(), re.MULTILINE)
    return found[1] if found else ""


def release(root: Path, version: str) -> int:
    for step in TESTS:
        if subprocess.run(step, cwd=root).returncode != 0:
            print(f"{' '.join(step)} failed: nothing was changed", file=sys.stderr)
            return 1
    changelog = root / "CHANGELOG.md"
    today = datetime.datetime.now(datetime.timezone.utc).date()
    changelog.write_text(with_news(root).replace(f"## {version}{UNRELEASED}\n", f"## {version}, {today}\n"))
    if files := [str(path) for path in fragments(root)]:
        git(root, "rm", "--quiet", *files)
    git(root, "commit", "--quiet", "--all", "--message", f"Release {version}")
    git(root, "tag", f"v{version}")
    for step in BUILDS:
        if subprocess.run(step, cwd=root).returncode != 0:
            git(root, "tag", "--delete", f"v{version}")
            git(root, "reset", "--hard", "--quiet", "HEAD~1")
            print(f"{' '.join(step)} failed: the tag and the commit are gone again", file=sys.stderr)
            return 1
    print(f"released {version}: dist/ has the wheels, build/docs/site the site. git push origin HEAD v{version}")
    return 0


# --- news: one file for each change, NAME.SECTION.md, so that two changes do not touch the same lines


def fragments(root: Path) -> list[Path]:
    return sorted(path for path in (root / "news").glob("*.md") if path.name != "README.md")


def sections(root: Path) -> dict[str, str]:
    """Returns the headings of the newest version by the word that names them in file names."""
    newest = (root / "CHANGELOG.md").read_text().split("\n## ")[1]
    return {title.lower().replace(" ", "_"): title for title in re.findall(r"^### (.+)$", newest, re.MULTILINE)}


def strays(root: Path) -> list[str]:
    return [path.name for path in fragments(root) if path.name.split(".")[-2] not in sections(root)]


def with_news(root: Path) -> str:
    """Returns CHANGELOG.md with the text of each fragment at the end of its section of the newest version."""
    before, newest, *older = (root / "CHANGELOG.md").read_text().split("\n## ")
    for path in fragments(root):
        title = sections(root)[path.name.split(".")[-2]]
        head, heading, rest = newest.partition(f"### {title}\n")
        items, line, others = rest.partition("\n### ")
        newest = f"{head}{heading}{items.rstrip()}\n{path.read_text().strip()}\n{line}{others}"
    return "\n## ".join([before, newest, *older])


def git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Path.cwd()))
