# SPDX-License-Identifier: Apache-2.0
"""Programs that were not started for each other exchange tensors over the standard library's connections."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(program, *arguments, stdin=None):
    return subprocess.Popen(
        [sys.executable, "-X", "dev", "-W", "error", str(program), *map(str, arguments)],
        stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def finish(process) -> str:
    out, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    assert error == ""
    return out


def wait_until_it_listens(process, port) -> None:
    """Looks at the kernel's table: a connection made only to look would be the one that is accepted."""
    wanted = f"0100007F:{port:04X} 00000000:0000 0A"
    while wanted not in Path("/proc/net/tcp").read_text():
        assert process.poll() is None, process.communicate()
        try:
            process.wait(0.02)
        except subprocess.TimeoutExpired:
            continue


def test_a_tensor_is_shared_by_two_programs(repository):
    program, port = repository / "examples/python/two_programs.py", free_port()
    receiver = start(program, "receiver", port)
    wait_until_it_listens(receiver, port)
    assert finish(start(program, "sender", port)) == program.with_suffix(".expected").read_text()
    assert finish(receiver) == ""


def start_of_guide(repository, name, *arguments):
    program = repository / f"examples/python/{name}.py"
    assert program.read_text().partition("\n")[2] in (repository / "docs/guides/weights-trainer-engine.md").read_text()
    return start(program, *arguments, stdin=subprocess.PIPE)


def enter(process) -> str:
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline()


def test_an_engine_has_what_the_trainer_of_the_guide_learns(repository):
    """Also after the trainer was killed."""
    trainer = start_of_guide(repository, "trainer")
    engine = start_of_guide(repository, "engine", trainer.stdout.readline().strip())
    assert engine.stdout.readline() == "ready\n"
    before = enter(engine)
    assert before.startswith("3 + 4 = ") and before != "3 + 4 = 7.000\n"
    assert enter(trainer) == "trained; 3 + 4 = 7.000\n"
    assert enter(engine) == "3 + 4 = 7.000\n"
    trainer.kill()
    trainer.communicate()
    assert enter(engine) == "3 + 4 = 7.000\n"
    assert finish(engine) == ""


SERVER = """
import sys
import torch
import onecopy, onecopy.multiprocessing as mp
from multiprocessing.connection import Listener

with Listener(sys.argv[1], "AF_UNIX") as listener:
    print("listening", flush=True)
    kept = []
    with listener.accept() as connection:
        while True:
            kept.append(connection.recv())
            connection.send(len(kept))
            if kept[-1] is None:
                break
    with listener.accept() as connection:
        connection.send(kept[0])
        assert connection.recv() == "seen"
"""

CLIENT = """
import sys
import torch
import onecopy, onecopy.multiprocessing as mp
from multiprocessing.connection import Client

with Client(sys.argv[1], "AF_UNIX") as connection:
    if sys.argv[2] == "give":
        for message in (torch.arange(4.0), {"weights": [torch.nn.Linear(2, 2)]}, onecopy.zeros(3), None):
            connection.send(message)
            connection.recv()
    else:
        tensor = connection.recv()
        assert tensor.tolist() == [0, 1, 2, 3], tensor
        connection.send("seen")
print("ok")
"""


def test_a_third_program_gets_what_the_first_left_with_the_second(tmp_path):
    """The owner is gone by then; no program inherited anything from another."""
    programs = {}
    for name, text in (("server", SERVER), ("client", CLIENT)):
        programs[name] = tmp_path / f"{name}.py"
        programs[name].write_text(text)
    address = tmp_path / "socket"
    server = start(programs["server"], address)
    assert server.stdout.readline() == "listening\n"
    assert finish(start(programs["client"], address, "give")) == "ok\n"
    assert finish(start(programs["client"], address, "take")) == "ok\n"
    assert finish(server) == ""


def test_the_published_pair_of_programs(repository):
    script = repository.parent / "shared/acceptance/two_programs.py"
    if not script.exists():
        pytest.skip("the published scripts are not beside this checkout")
    port = free_port()
    receiver = start(script, "--mode", "receiver", "--port", port)
    wait_until_it_listens(receiver, port)
    assert "ok sender" in finish(start(script, "--mode", "sender", "--port", port))
    assert "ok receiver" in finish(receiver)
