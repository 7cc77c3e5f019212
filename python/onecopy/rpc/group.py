# SPDX-License-Identifier: Apache-2.0
"""This process as a member of a group.

_core._RpcEndpoint has the whole way of a call (see python/src/rpc/endpoint.h). The agent decides what is rare: how
functions are named and found (serving.py), who the members are (members.py), and what an error says.

Invariants: a call's Future completes once, by its answer, its deadline, the end of its member, or shutdown. A member's
end is looked at after all that the member had put into its lane.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import onecopy

from .. import _core, errors as onecopy_errors
from ..errors import PeerDied
from . import calling, devices, elastic, peers, registry, telemetry, values, verbs  # noqa: F401 - verbs enters its functions
from .errors import Busy, Cancelled, RemoteFailure, late
from .futures import CallFuture
from .peers import Member, Options, WorkerInfo
from .registry import handlers
from .serving import Serving

_PATIENCE = 5.0  # seconds that stop() waits for requests that still run
_SLICE = 0.1  # seconds of one wait: signal handlers of Python run in between
_MAX_WORKERS = 1024

_ERRORS = {
    kind.code: kind
    for kind in vars(onecopy_errors).values()
    if isinstance(kind, type) and issubclass(kind, onecopy.Error)
}


def _autograd_hook(name: str) -> staticmethod[..., Any]:
    def call(*args: Any) -> Any:
        return getattr(registry.autograd(), name)(*args)

    return staticmethod(call)


class Agent(Serving):
    """A member of a group: this process. Thread safety: all members may be called concurrently, but for start() and
    stop()."""

    marked_type = devices.MarkedTensor
    points_behind = staticmethod(devices.points_behind)
    wait_for_points = staticmethod(devices.wait_for)

    def __init__(self, store: Any, name: str, rank: int, world_size: int | None, options: Options) -> None:
        """Makes a member of a group, which members join and leave at any time if it has no world size."""
        super().__init__(WorkerInfo(name, rank), options, is_static_group=bool(world_size))
        self.store, self._world_size = store, world_size or 0
        self.is_running, self.why_stopped = True, "RPC agent is shut down"
        self._lock, self._threads = threading.Lock(), list[threading.Thread]()

    def seconds_for(self, timeout: float | None) -> float:
        """Returns how long a call may take that is given this timeout; 0: no limit."""
        return self.endpoint.timeout if timeout is None or timeout < 0 else timeout

    # --- joining and leaving

    def make_endpoint(self) -> None:
        """Makes the endpoint. REQUIRES: this process's id in the group is known."""
        self.endpoint = _core._RpcEndpoint(self, values, self.info.name, self.info.id)
        self.endpoint.timeout = self.options.rpc_timeout
        self.endpoint.set_limit(self.options.max_calls, self.options.refuses_calls)

    def start(self) -> None:
        """Joins the group, and returns when all members have. Raises RuntimeError with the name of one that has not."""
        if self.is_static_group:
            peers.join(self, self._world_size)
        else:
            elastic.join(self)

    def open(self, found: list[Member]) -> None:
        """Enters members, this process among them, so that this process can send."""
        for member in found:
            self.add_member(member)
        hooks = registry.autograd_if_loaded()
        if hooks is not None:
            hooks.started(self)

    def start_serving(self) -> None:
        """Starts serving calls. REQUIRES: every member is known here, and knows this one."""
        self._add_worker()

    def _add_worker(self) -> None:
        """Starts a worker. Called by a worker that is about to run a request while no other waits for messages."""
        with self._lock:
            if not self.is_running or len(self._threads) >= _MAX_WORKERS:
                return
            thread = threading.Thread(target=self._work, name=f"onecopy-rpc-{self.info.name}", daemon=True)
            self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        self.endpoint.run()
        with self._lock:
            if self.is_running:  # it was one too many
                self._threads.remove(threading.current_thread())

    def answering(self) -> int:
        """Returns how many requests of others run here, or have run and are not answered yet."""
        return self.endpoint.serving

    def finish_answers(self) -> None:
        """Called by a member that leaves when all have met: others get its last answers before its farewell. A request
        that runs for long is left alone."""
        end = time.monotonic() + _PATIENCE
        own = threading.current_thread() in self._threads
        while self.answering() > own and time.monotonic() < end:
            self.endpoint.wait_for_served(own, _SLICE)

    def stop(self) -> None:
        """Ends all threads, and tells the others. Pending calls fail. A request that runs for long is left alone."""
        self.is_running = False
        if self.endpoint is not None:
            self.endpoint.stop()
        self.references.stop()
        end = time.monotonic() + _PATIENCE
        with self._lock:
            threads, self._threads = self._threads, []
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(end - time.monotonic(), 0))

    # --- sending

    def call_verb(self, to: int, verb: str, args: tuple[Any, ...], timeout: float | None = -1.0) -> Any:
        """Calls a verb of a member, and returns its result."""
        return self.endpoint.call_verb(to, verb, args, self.seconds_for(timeout))

    def begin_verb(
        self,
        to: int,
        verb: str,
        args: tuple[Any, ...],
        timeout: float | None = -1.0,
        *,
        is_result: bool = False,
        reference: tuple[int, int] | None = None,
    ) -> CallFuture:
        """Returns a Future of the result of a verb. Raises TypeError for a value that cannot cross."""
        future = CallFuture(self, self.seconds_for(timeout))
        self.endpoint.begin_verb(to, verb, args, future.seconds, is_result, reference, future)
        return future

    def note(self, to: int, verb: str, value: Any) -> None:
        """Sends a message without an answer, in its order. Does nothing when the member has ended."""
        self.endpoint.note(to, verb, value)

    # --- what the endpoint asks of distributed autograd: see registry.AutogradHooks

    context, about_to_send, not_sent, arrived = map(_autograd_hook, ("context", "about_to_send", "not_sent", "arrived"))

    # --- how calls end

    def error_named(self, code: str, text: str) -> Exception:
        """Makes the error of C++ with that code."""
        return _ERRORS.get(code, onecopy.Error)(text)

    def send_error(self, code: str, text: str, to: int, seconds: float) -> Exception:
        """Makes the error of a call that was not sent."""
        if code == "timeout":  # of the first contact, or of another host that has not taken all of it
            return late(seconds, text)
        member = self._members[to]
        if code == "peer_died":
            return PeerDied(member.why_ended())
        return self.error_named(code, text) if self.is_running else RuntimeError(self.why_stopped)

    def end_error(self, end: str, to: int, seconds: float) -> Exception:
        """Makes the error of a call that has ended without an answer."""
        if end == "late":
            return late(seconds)
        if end == "ended":
            return PeerDied(self._members[to].why_ended())
        return RuntimeError(self.why_stopped)

    @staticmethod
    def exception_of(failure: tuple[type, str]) -> Exception:
        """Makes the exception that the callee answered with."""
        return RemoteFailure(*failure).exception()

    def take_note(self, sender: int, note: tuple[str, Any]) -> None:
        """Handles a note. Called in the order of its lane."""
        name, value = note
        if name.startswith("."):
            raise ValueError(f"{name} is called, and came as a note")
        handlers[name][0](self, sender, value)

    # --- native calls

    def trace_of(self, caller: int, number: int) -> str:
        """Returns the trace of a native call that no other call made."""
        return f"{self.get_worker_info(caller).name}.c{number}"

    def raise_cancelled(self, function: str, caller: int) -> None:
        """Raises Cancelled."""
        raise Cancelled(f"{function} was cancelled by {self.get_worker_info(caller)}")

    def raise_busy(self, to: int, used: int, limit: int) -> None:
        """Raises Busy."""
        raise Busy(
            f"{used} calls to {self._members[to].info} are under way, as many as init(max_calls={limit}) allows: wait "
            "for some of them, or give a larger max_calls, or when_full='wait'"
        )

    is_logged = staticmethod(telemetry.is_logged)

    def call_here(self, function: Any, args: Any, kwargs: Any, timeout: float | None) -> Any:
        """Returns the result of a native call of this process itself."""
        return calling.call_async(self.info, function, args, kwargs, timeout).wait()

    def log_call(self, stage: str, trace: str, function: str, to: int) -> None:
        """Writes a line of the log about a call of this process."""
        telemetry.log.debug("%s: call %s at %s %s", trace, function, self._members[to].info, stage)

    def log_served(self, call: Any, stage: str) -> None:
        """Writes a line of the log about a call of another member."""
        telemetry.log.debug("%s: %s for %s %s", call.trace, call.function, call.caller, stage)

    # --- reports

    def pending_count(self) -> int:
        """Returns how many calls of this process have no answer yet."""
        return self.endpoint.calls_under_way
