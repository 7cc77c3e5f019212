# SPDX-License-Identifier: Apache-2.0
"""Starts processes that measure: each is a new interpreter that runs one function and answers questions.

`python peers.py <module> <function> <arguments as JSON>` calls `function(talk, **arguments)`. Questions
and answers are lines of JSON over its standard input and output.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import selectors
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any


class Failed(RuntimeError):
    """A peer failed; the text is the reason in one line."""


class Talk:
    """The peer's side, which receives questions until they end."""

    def __init__(self) -> None:
        # Other output on standard output must not meet the answers.
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def say(self, answer: Any) -> None:
        print(json.dumps(answer), file=self._answers, flush=True)

    def questions(self) -> Iterator[Any]:
        for line in sys.stdin:
            yield json.loads(line)


class Peer:
    """A second process, which runs `role`, a function of a module in this directory.

    Thread safety: none. As a context manager, a Peer tells the process at the end of the block that there are no more
    questions, and waits for the process.
    """

    def __init__(self, role: Callable[..., None], **arguments: Any) -> None:
        self._name = f"{role.__module__}.{role.__name__} {arguments}"
        command = [sys.executable, __file__, role.__module__, role.__name__, json.dumps(arguments)]
        # The peer leads a new process group, so that a signal ends it and the processes that it starts.
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen(command, text=True, start_new_session=True, **pipes)

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            self._process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            print(f"{self._name}: did not end and was killed", file=sys.stderr)
        if self._process.returncode != 0:
            self._kill_group()

    def ask(self, question: Any, timeout: float = 120) -> Any:
        """Asks a question and returns the answer. Raises Failed if the peer fails, TimeoutError if it does not answer."""
        self.tell(question)
        return self.hear(timeout)

    def tell(self, question: Any) -> None:
        """Asks a question whose answer hear() returns."""
        print(json.dumps(question), file=self._process.stdin, flush=True)

    def hear(self, timeout: float = 120) -> Any:
        self._wait(timeout)
        line = self._process.stdout.readline()
        if not line:
            raise Failed(f"{self._name}: ended, exit code {self._process.wait()}")
        answer = json.loads(line)
        if isinstance(answer, dict) and "error" in answer:
            print(answer["traceback"], file=sys.stderr)
            raise Failed(answer["error"])
        return answer

    def _wait(self, timeout: float) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(timeout):
                self._kill_group()
                raise TimeoutError(f"{self._name}: said nothing for {timeout} s")

    def kill(self) -> None:
        """Kills a peer that does not end by itself."""
        self._kill_group()

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".split("\n", 1)[0]


def _main(module: str, function: str, arguments: str) -> int:
    talk = Talk()
    try:
        getattr(importlib.import_module(module), function)(talk, **json.loads(arguments))
        return 0
    except Exception as error:
        talk.say({"error": first_line(error), "traceback": traceback.format_exc()})
        os._exit(1)  # sys.exit() would wait for processes that wait for this one


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
