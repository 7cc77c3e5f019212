# SPDX-License-Identifier: Apache-2.0
"""The Future of a call: a thread that waits for it takes the answer from the lanes itself, and no other has to run."""
from __future__ import annotations

import threading
from typing import Any, Callable

import torch

from . import _devices
from ._awaiting import future_in_loop

Outcome = tuple[Any, "Exception | None"]


class CallFuture(torch.futures.Future):
    """Completes once. Where a thread waits, that thread takes the answer, sets the result, and runs the callbacks; else a
    worker does.
    Thread safety: all members may be called concurrently, but for begin(), which is called before the Future is given away.
    """

    def __init__(self, outcome_of: Callable[[Any, CallFuture], Outcome], context: Any = None) -> None:
        """`outcome_of(call, future)` is the outcome of a call that ended without complete(); `context` is that of autograd
        in which the call was made."""
        super().__init__()
        self.context = context
        self._outcome_of, self._turn = outcome_of, threading.Lock()
        self._call: Any = None
        self._given: Outcome | None = None
        self._is_settled = False
        self.points: Any = ()  # events in streams behind which the result's tensors are there

    def begin(self, call: Any) -> None:
        """`call` is a _core._RpcCall that has this Future for its owner."""
        self._call = call

    def wait(self) -> Any:
        """The result. Throws the call's error."""
        if not self._is_settled:
            if self._call is not None:
                self._call.wait()
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
        """Ends the call from here; the first outcome counts. Runs no callback but where there is no call."""
        with self._turn:
            if self._given is not None or self._is_settled:
                return
            self._given = (value, error)
            if self._call is not None and not self._call.end():
                self._given = None
        if self._call is None:
            self._settle()

    def complete_in_order(self, call: Any, value: Any, error: Exception | None) -> None:
        """For an answer that had to be decoded before the next message."""
        with self._turn:
            self._given = self._given or (value, error)
        call.complete()

    def _settle(self, call: Any = None) -> None:
        with self._turn:
            if self._is_settled:
                return
            self._is_settled = True
        value, error = self._given or self._outcome_of(call or self._call, self)
        self._outcome_of = None
        if error is None:
            self.set_result(value)
        else:
            self.set_exception(error)
