# SPDX-License-Identifier: Apache-2.0
"""`onecopy report` in a browser: headless Chromium shows it, without a network."""

import shutil
import subprocess
import sys

import pytest

import onecopy

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def page(tmp_path):
    file = tmp_path / "report.html"
    command = [sys.executable, "-m", "onecopy", "report", "--for", "0.3", "--every", "0.1", str(file)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return file


def test_it_names_what_this_process_has(tmp_path):
    queue, tensor = onecopy.Queue(), onecopy.zeros(1 << 20)
    queue.put(tensor)
    text = page(tmp_path).read_text()
    assert f'<td class="n">{__import__("os").getpid()}</td>' in text
    assert "queue " in text and text.count("<polyline") >= 2


@pytest.mark.skipif(CHROMIUM is None, reason="wants Chromium: apt-get install chromium")
def test_a_browser_draws_it_and_asks_the_network_for_nothing(tmp_path):
    tensor = onecopy.zeros(1 << 20)
    handle = onecopy.share(tensor)
    borrower = subprocess.Popen(
        [sys.executable, "-c", "import onecopy, sys\nx = onecopy.open(sys.argv[1])\nprint('open', flush=True)\ninput()",
         str(handle)], stdin=-1, stdout=-1, text=True,
    )  # fmt: skip
    with borrower:
        assert borrower.stdout.readline() == "open\n"
        file = page(tmp_path)
        borrower.communicate("\n")
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
