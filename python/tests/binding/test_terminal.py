# SPDX-License-Identifier: Apache-2.0
"""The command fits the terminal of its user, and 80 columns in a pipe."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading

import pytest

COMMANDS = ["share", "load", "open", "ls", "doctor", "gc", "key", "help", "version"]


def on_terminal(columns: int, *arguments: str) -> str:
    """Returns what the command writes to a terminal of that many columns, on stdout and stderr."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    parts: list[bytes] = []

    def read() -> None:
        try:
            while part := os.read(ours, 65536):
                parts.append(part)
        except OSError:  # the last writer has closed it
            pass

    reader = threading.Thread(target=read)
    with subprocess.Popen([sys.executable, "-m", "onecopy", *arguments], stdin=theirs, stdout=theirs, stderr=theirs):
        os.close(theirs)
        reader.start()
    reader.join()
    os.close(ours)
    return re.sub(r"\033\[[0-9;]*[mK]", "", b"".join(parts).decode())


def longest(text: str) -> int:
    """Returns the columns of the longest line, where an update of a line counts as a line. Commands to paste and long
    paths are not broken, and count as nothing."""
    return max(len(line) for line in re.split("[\r\n]+", re.sub(r"`.*`|/\S{40,}", "", text)))


@pytest.mark.parametrize("columns", [80, 100])
def test_doctor_breaks_no_line_in_a_word(columns):
    text = on_terminal(columns, "doctor")
    assert "Everything that onecopy needs for CPU tensors works here." in text.replace("\r", "")
    assert longest(text) <= columns


def run(*arguments: str) -> str:
    return subprocess.run([sys.executable, "-m", "onecopy", *arguments], capture_output=True, text=True).stdout


def test_doctor_has_80_columns_in_a_pipe():
    assert longest(run("doctor")) <= 80


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_80_columns_in_a_pipe(command):
    lines = [line for line in run("help", command).splitlines() if not line.startswith("  onecopy ")]
    assert longest("\n".join(lines)) <= 80
