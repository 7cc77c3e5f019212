# SPDX-License-Identifier: Apache-2.0
"""deploy/report.py: what is on the page, and that a browser shows it without a network."""

import os
import re
import shutil
import signal
import subprocess
import sys
from html import escape
from pathlib import Path

import pytest

import onecopy

REPORT = Path(__file__).parents[3] / "deploy/report.py"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
BORROWER = """
import onecopy, sys
x = onecopy.open(sys.argv[1])
print('open', flush=True)
input()
"""


@pytest.fixture(autouse=True)
def processes_of_this_test_alone(tmp_path, monkeypatch):
    """The command is the one of this Python, and the store is empty."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("ONECOPY_STORE_DIR", str(tmp_path / "store"))


def report(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-X", "dev", "-W", "error", str(REPORT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def page(tmp_path: Path) -> Path:
    file = tmp_path / "report.html"
    result = report("--for", "0.4", "--every", "0.3", str(file))
    assert result.returncode == 0, result.stderr
    watched = re.search(r"watched for ([\d.]+) s", result.stderr)
    assert watched is not None and float(watched[1]) >= 0.4  # although the time is not a multiple of the interval
    return file


@pytest.fixture
def borrower():
    """A process that has a tensor of this process open; its name is written to the page as text."""
    tensor = onecopy.zeros(1 << 20)
    command = [sys.executable, "-c", BORROWER, str(onecopy.share(tensor)), "<b>&\"'"]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout.readline() == "open\n"
        yield process
        process.communicate("\n")


def test_it_names_what_this_process_has(tmp_path):
    queue, tensor = onecopy.Queue(), onecopy.zeros(1 << 20)
    queue.put(tensor)
    text = page(tmp_path).read_text()
    assert f"<td>{os.getpid()}</td>" in text
    assert "queue " in text and text.count("<polyline") >= 2


def test_it_names_borrowers_and_objects_of_the_store(tmp_path, borrower):
    store = onecopy.store.connect()
    store.publish("llama", {"w": onecopy.zeros(4)})
    text = page(tmp_path).read_text()
    assert f"<td>{os.getpid()}</td><td>{borrower.pid}</td>" in text and 'class="claim"' in text
    assert "<td>llama</td><td>1*</td>" in text
    subprocess.run([sys.executable, "-m", "onecopy", "store", "stop"], check=True, stdout=-3)


def test_it_needs_no_network_and_has_no_script_and_names_are_text(borrower):
    library = onecopy.zeros(1)
    onecopy.share(library)
    command = [
        sys.executable,
        "-c",
        "import onecopy\nx = onecopy.zeros(9)\nonecopy.share(x)\nprint(flush=True)\ninput()",
        "<b>&\"'",
    ]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as owner:
        owner.stdout.readline()
        text = report("--for", "0", "-").stdout
        owner.communicate("\n")
    assert text.startswith("<!DOCTYPE html>") and text.endswith("</html>\n")
    assert not [part for part in ("http:", "https:", "<script", "<link", "@import", "url(", "src=") if part in text]
    assert escape("<b>&\"'") in text and "<b>&" not in text


def test_it_closes_every_element_that_it_opens(borrower):
    text = report("--for", "0", "-").stdout
    for name in (
        "html",
        "head",
        "body",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "svg",
        "h1",
        "h2",
        "p",
        "text",
        "path",
    ):
        assert len(re.findall(f"<{name}[ >]", text)) == text.count(f"</{name}>"), name


def test_it_says_so_when_there_is_nothing(tmp_path, monkeypatch):
    (tmp_path / "sockets").mkdir(mode=0o700)
    monkeypatch.setenv("ONECOPY_RUNTIME_DIR", str(tmp_path / "sockets"))
    text = report("--for", "0", "-").stdout
    assert "No process has memory of another open." in text and "Nothing is in transit." in text


def test_it_says_that_it_cannot_write_before_it_watches(tmp_path):
    lost = report("--for", "3600", str(tmp_path / "no such folder/page.html"))
    assert lost.returncode == 1 and "cannot write" in lost.stderr and "No such file" in lost.stderr
    assert "watching" not in lost.stderr


def test_without_the_command_it_says_so_and_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    result = subprocess.run([sys.executable, REPORT, tmp_path / "page.html"], capture_output=True, text=True)
    assert result.returncode == 1 and "onecopy is not in PATH" in result.stderr
    assert os.listdir(tmp_path) == []


def test_it_leaves_no_part_of_a_page_that_cannot_be_written(tmp_path):
    file = tmp_path / "page.html"
    limited = [
        "bash",
        "-c",
        'ulimit -f 1; trap "" XFSZ; exec "$@"',
        "bash",
        sys.executable,
        str(REPORT),
        "--for",
        "0",
        str(file),
    ]
    result = subprocess.run(limited, capture_output=True, text=True, timeout=120)
    assert result.returncode == 1 and f"cannot write {file}" in result.stderr
    assert not file.exists()


def test_ctrl_c_ends_the_watch_early_and_writes_the_page(tmp_path):
    file = tmp_path / "page.html"
    command = [sys.executable, str(REPORT), "--for", "3600", "--every", "0.05", str(file)]
    with subprocess.Popen(command, stderr=-1, text=True, start_new_session=True) as process:
        assert "Ctrl-C" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 0 and "</html>" in file.read_text()


@pytest.mark.skipif(CHROMIUM is None, reason="wants Chromium: apt-get install chromium")
def test_a_browser_draws_it_and_asks_the_network_for_nothing(tmp_path, borrower):
    file = page(tmp_path)
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1200,1600",
               f"--user-data-dir={tmp_path}/profile", "--host-resolver-rules=MAP * ~NOTFOUND"]  # fmt: skip
    picture = tmp_path / "report.png"
    shown = subprocess.run(
        [CHROMIUM, *options, f"--screenshot={picture}", file.as_uri()], capture_output=True, timeout=200
    )
    assert shown.returncode == 0, shown.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")
    dom = subprocess.run(
        [CHROMIUM, *options, "--dump-dom", file.as_uri()], capture_output=True, text=True, timeout=200
    ).stdout
    assert dom.count("<svg") == dom.count("</svg>") == 2
    assert f"{borrower.pid} " in dom and 'class="claim"' in dom
