# SPDX-License-Identifier: Apache-2.0
"""The Future of a call: a thread that waits for it takes the outcome itself, and no other has to run in between."""
from __future__ import annotations

import threading
from typing import Any

import torch

from . import _devices
from ._awaiting import future_in_loop


class CallFuture(torch.futures.Future):
    """Completes once. Where a thread waits, that thread sets the result, and runs the callbacks; else a worker does: the
    thread that takes messages never runs a program's code.
    Thread safety: all members may be called concurrently."""

    def __init__(self, workers) -> None:
        super().__init__()
        self._workers, self._turn = workers, threading.Lock()
        self._gates: list[Any] = []  # locks that waiting threads want to get
        self._outcome: tuple[Any, Exception | None] | None = None
        self._has_come = False
        self.points: Any = ()  # events in streams behind which the result's tensors are there

    def wait(self) -> Any:
        """The result. Throws the call's error."""
        with self._turn:
            gate = None
            if not self._has_come:
                gate = threading.Lock()
                gate.acquire()
                self._gates.append(gate)
        if gate is not None:
            gate.acquire()
        self._settle()
        if self.points:
            _devices.wait_for(self.points)
        return super().wait()

    def value(self) -> Any:
        """The result, which must be here. Throws the call's error."""
        if self.points:
            _devices.wait_for(self.points)
        return super().value()

    def __await__(self) -> Any:
        return future_in_loop(self.add_done_callback, self.wait).__await__()

    def complete(self, value: Any, error: Exception | None = None) -> None:
        """The first outcome counts. Never runs a callback."""
        with self._turn:
            if self._has_come:
                return
            self._has_come, self._outcome = True, (value, error)
            gates, self._gates = self._gates, []
        for gate in gates:
            gate.release()
        if not gates:
            self._workers.run(self._settle)

    def _settle(self) -> None:
        with self._turn:
            outcome, self._outcome = self._outcome, None
        if outcome is None:
            return
        value, error = outcome
        if error is None:
            self.set_result(value)
        else:
            self.set_exception(error)
