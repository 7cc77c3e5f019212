# SPDX-License-Identifier: Apache-2.0
"""Runs programs in forked children of an interpreter that has imported torch: the import is most of what a fresh one
costs.

Run as a program itself, with a socket as its standard input: see Programs for the messages that come through it. A
program sees what it would see as `python FILE ARGUMENTS...`, but for torch and numpy, which are imported before its
first line. Children of the method spawn are forked from a process of this kind, too (see spawn_with_torch.py)."""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
import threading
import types
from multiprocessing import util

if __name__ == "__main__":  # whose folder is that of this file
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
from support import spawn_with_torch


class Programs:
    """The side of the tests: one program at a time. Must be used by one thread at a time."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-X", "dev", "-W", "error", __file__]
            self._process = subprocess.Popen(command, stdin=theirs)

    def run(self, arguments: list[str], timeout: float, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
        """As subprocess.run() of an interpreter, with its output captured; raises TimeoutExpired when the program was
        killed.
        """
        pipes = [os.pipe() for _ in range(2)]
        said = ["", ""]
        threads = [threading.Thread(target=_read, args=(pipe[0], said, i)) for i, pipe in enumerate(pipes)]
        for thread in threads:
            thread.start()
        request = {"arguments": arguments, "env": env, "directory": os.getcwd()}
        socket.send_fds(self._socket, [json.dumps(request).encode()], [pipe[1] for pipe in pipes])
        for pipe in pipes:
            os.close(pipe[1])
        pid = json.loads(self._socket.recv(100))
        self._socket.settimeout(timeout)
        try:
            status = json.loads(self._socket.recv(100))
        except TimeoutError:
            os.kill(pid, 9)
            self._socket.settimeout(None)
            self._socket.recv(100)
            raise subprocess.TimeoutExpired(arguments, timeout) from None
        self._socket.settimeout(None)
        for thread in threads:
            thread.join()
        return subprocess.CompletedProcess(arguments, status, *said)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


def _read(descriptor: int, said: list[str], number: int) -> None:
    with open(descriptor) as file:
        said[number] = file.read()


def _next_program(requests: socket.socket) -> dict | None:
    """In a child, the program that it must run. In the parent, None when no more programs come."""
    while True:
        text, outputs, _, _ = socket.recv_fds(requests, 1 << 17, 2)
        if not text:
            return None
        if (pid := os.fork()) == 0:
            for number, output in enumerate(outputs, start=1):
                os.dup2(output, number)
                os.close(output)
            return json.loads(text)
        for output in outputs:
            os.close(output)
        requests.send(json.dumps(pid).encode())
        requests.send(json.dumps(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


def _become(request: dict) -> types.ModuleType:
    """The module __main__ of the program, as the interpreter makes it."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = request["arguments"]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    main = types.ModuleType("__main__")
    main.__file__ = sys.argv[0]
    main.__builtins__ = __builtins__  # type: ignore[attr-defined]
    sys.modules["__main__"] = main
    return main


def _serve() -> tuple[types.ModuleType, types.CodeType | str] | None:
    """The module and the code of a program, or of a child that a program spawned."""
    import numpy  # noqa: F401
    import torch  # noqa: F401

    with socket.socket(fileno=os.dup(0)) as requests:
        request = _next_program(requests)
    if request is None:
        return None
    program = _become(request)
    with open(sys.argv[0]) as source:
        text = source.read()
    if "spawn" in text:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            ours.close()
            return spawn_with_torch.serve(theirs)
        theirs.close()
        spawner = spawn_with_torch.Spawner(ours)
        atexit.register(spawner.close)
        util.spawnv_passfds = spawner.spawnv_passfds
    return program, compile(text, sys.argv[0], "exec")


if __name__ == "__main__" and (program := _serve()):
    exec(program[1], program[0].__dict__)
