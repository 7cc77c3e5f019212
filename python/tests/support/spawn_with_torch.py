# SPDX-License-Identifier: Apache-2.0
"""Children of the start method spawn that find torch imported: the import is most of what a fresh interpreter costs.

`Spawner` takes the place of `multiprocessing.util.spawnv_passfds`. Its server is this file as a program: an interpreter
that has imported torch, numpy and pytest, and nothing of onecopy. A child is forked from it, and is then a child of the
process that wanted it. It has that process's environment, directory, limits, signals and descriptors, as after exec,
and runs the interpreter's command. Tests of fresh interpreters themselves have the mark `fresh_interpreters`.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from multiprocessing import util

PR_SET_CHILD_SUBREAPER = 36
LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
COMMAND = "from multiprocessing.spawn import spawn_main"


class Spawner:
    """The side of the tests. A fork of the process starts children as the standard library does."""

    def __init__(self, requests: socket.socket | None = None) -> None:
        """requests: to a server that there is already."""
        self._socket = requests
        self._spawnv = util.spawnv_passfds
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._prctl = ctypes.CDLL(None).prctl
        self._server: subprocess.Popen | None = None
        self._environment = _read_at_start()

    def spawnv_passfds(self, path, arguments, descriptors):
        """As multiprocessing.util has it: the number of the new process."""
        is_ours = str(arguments[-2]).startswith(COMMAND) and os.getpid() == self._pid
        if not is_ours or self._environment != _read_at_start():
            return self._spawnv(path, arguments, descriptors)
        with self._lock:
            return self._spawn(arguments, sorted(map(int, descriptors)))

    def _spawn(self, arguments, descriptors):
        if self._socket is None:
            self._socket = self._start()
        given = [0, 1, 2, *descriptors]
        self._prctl(PR_SET_CHILD_SUBREAPER, 1)  # the child's parent ends at once, and we are the next
        try:
            socket.send_fds(self._socket, [json.dumps(_state(arguments, given)).encode()], given)
            return json.loads(self._socket.recv(100))
        finally:
            self._prctl(PR_SET_CHILD_SUBREAPER, 0)

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-X", "dev", "-W", "error", __file__]
            self._server = subprocess.Popen(command, stdin=theirs)
        return ours

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._server is not None:
            self._server.wait()


def _read_at_start() -> dict[str, str]:
    """The variables that an interpreter or a loader reads before the first line of a program."""
    return {name: value for name, value in os.environ.items() if name.startswith(("LD_", "PYTHON"))}


def _state(arguments: list, descriptors: list[int]) -> dict:
    """All that a process keeps when it executes another program."""
    ignored = [number for number in signal.valid_signals() if signal.getsignal(number) == signal.SIG_IGN]
    mask = os.umask(0)
    os.umask(mask)
    return {
        "code": arguments[-2],
        "arguments": ["-c", *arguments[-1:]],
        "env": dict(os.environ),
        "directory": os.getcwd(),
        "descriptors": descriptors,
        "limits": [resource.getrlimit(limit) for limit in LIMITS],
        "blocked": list(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "ignored": ignored,
        "umask": mask,
    }


def _become(request: dict, received: list[int]) -> types.ModuleType:
    """Makes this process the one of the request; its module __main__."""
    above = 1 + max(*request["descriptors"], *received)
    moved = [os.dup2(descriptor, above + i) for i, descriptor in enumerate(received)]
    for descriptor in received:
        os.close(descriptor)
    for descriptor, number in zip(moved, request["descriptors"]):
        os.dup2(descriptor, number, inheritable=True)
        os.close(descriptor)
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["env"])
    os.umask(request["umask"])
    for limit, value in zip(LIMITS, request["limits"]):
        resource.setrlimit(limit, value)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in request["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])
    sys.argv, sys.path[0] = request["arguments"], ""
    main = types.ModuleType("__main__")
    main.__builtins__ = __builtins__  # type: ignore[attr-defined]
    sys.modules["__main__"] = main
    return main


def _fork_away() -> int:
    """A process whose parent is none of ours: 0 in it. Otherwise returns its number."""
    reader, writer = os.pipe()
    middle = os.fork()
    if middle != 0:
        os.close(writer)
        with open(reader) as pipe:
            child = int(pipe.read())
        os.waitpid(middle, 0)
        return child
    os.close(reader)
    middle = os.getpid()
    if (child := os.fork()) != 0:
        os.write(writer, str(child).encode())
        os._exit(0)
    os.close(writer)
    while os.getppid() == middle:
        time.sleep(0.0002)
    return 0


def serve(requests: socket.socket) -> tuple[types.ModuleType, str] | None:
    """Returns in each child, with its module and its code. Returns None when no more children are wanted."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # which is for the tests
    with requests:
        while True:
            text, received, _, _ = socket.recv_fds(requests, 1 << 17, 250)
            if not text:
                return None
            if (number := _fork_away()) == 0:
                break
            requests.send(json.dumps(number).encode())
            for descriptor in received:
                os.close(descriptor)
    request = json.loads(text)
    return _become(request, received), request["code"]


def main() -> tuple[types.ModuleType, str] | None:
    import numpy  # noqa: F401
    import pytest  # noqa: F401
    import torch  # noqa: F401

    return serve(socket.socket(fileno=os.dup(0)))


if __name__ == "__main__" and (child := main()):
    exec(child[1], child[0].__dict__)
