# SPDX-License-Identifier: Apache-2.0
"""Calls that this process runs for others: their deadline, whether they are cancelled, and their report.

Thread safety: all members may be called concurrently."""

import collections
import contextvars
import threading
import time

from ..errors import Timeout
from .errors import Cancelled
from .registry import end_hooks, handler, note_handlers
from .telemetry import Stages

_current = contextvars.ContextVar("onecopy_rpc_call", default=None)
_lock = threading.Lock()
_running = {}  # (caller's id, call) -> RunningCall
_early = collections.OrderedDict()  # cancelled before they began
_MOST_EARLY = 4096


class RunningCall:
    """A call that this process runs.

    Attributes:
        function: "module:name".
        caller: the WorkerInfo of the caller.
        trace: its name in the logs of both sides, and that of calls that it makes.
        deadline: as time.monotonic() has it, or None."""

    def __init__(self, number, caller, function, deadline, trace):
        self.number, self.caller, self.function = number, caller, function
        self.deadline, self.trace = deadline, trace
        self.stages = Stages("taken")
        self._is_cancelled, self._on_cancel = False, []

    @property
    def cancelled(self):
        """Whether its caller has cancelled it, waits for it no more, or has ended. Functions that take long look here."""
        return self._is_cancelled

    def remaining(self):
        """Seconds until the deadline, or None. Negative behind it."""
        return None if self.deadline is None else self.deadline - time.monotonic()

    def check(self):
        """Throws Cancelled when the caller wants the result no more, Timeout behind the deadline."""
        if self.cancelled:
            raise Cancelled(f"{self.function} was cancelled by {self.caller}")
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise Timeout(f"{self.function} is {-self.remaining():.3f} s behind the deadline that {self.caller} gave")

    def cancel(self):
        with _lock:
            self._is_cancelled = True
            hooks, self._on_cancel = self._on_cancel, []
        for hook in hooks:
            hook()

    def on_cancel(self, hook):
        """Called once, at once when it is cancelled already. It must not wait."""
        with _lock:
            if not self._is_cancelled:
                self._on_cancel.append(hook)
                return
        hook()


def current():
    """The call that this thread, or this task of asyncio, runs for another member; None outside of one."""
    return _current.get()


class Entered:
    """Makes `call` the current one, as long as its function runs."""

    __slots__ = ("_call", "_key", "_token")

    def __init__(self, call):
        self._call, self._key = call, (call.caller.id, call.number)

    def __enter__(self):
        with _lock:
            was_cancelled = _early.pop(self._key, False)
            _running[self._key] = self._call
        if was_cancelled:
            self._call.cancel()
        self._token = _current.set(self._call)
        self._call.stages.reach("running")

    def __exit__(self, *_):
        _current.reset(self._token)
        with _lock:
            _running.pop(self._key, None)


def cancel(caller, number):
    """Remembered for a call that has not begun."""
    with _lock:
        call = _running.get((caller, number))
        if call is None:
            _early[(caller, number)] = True
            while len(_early) > _MOST_EARLY:
                _early.popitem(last=False)
    if call is not None:
        call.cancel()


def cancel_of(caller):
    """All that a member which has ended wanted."""
    with _lock:
        calls = [call for (rank, _), call in _running.items() if rank == caller]
    for call in calls:
        call.cancel()


def all_running():
    with _lock:
        return list(_running.values())


def deadline_for(seconds, default):
    """When a call made now must be answered, or None: `seconds` from now (None: the default; 0: no limit), and not behind
    the deadline of the call that this thread runs. Throws Timeout when that is over."""
    seconds = default if seconds is None else seconds
    if seconds < 0:
        raise ValueError(f"a timeout is a number of seconds, 0 for no limit, not {seconds}")
    own = time.monotonic() + seconds if seconds else None
    call = current()
    if call is None or call.deadline is None:
        return own
    call.check()
    return call.deadline if own is None else min(own, call.deadline)


def seconds_until(deadline):
    """A timeout for that deadline; 0 for none."""
    return 0 if deadline is None else max(deadline - time.monotonic(), 1e-6)


@handler(note_handlers, "cancel")
def _cancel(agent, caller, number):
    cancel(caller, number)


end_hooks.append(cancel_of)
