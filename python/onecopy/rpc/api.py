# SPDX-License-Identifier: Apache-2.0
"""The native interface: calls of exported functions, with deadlines that travel along, cancelling, and a bound on the
calls under way.

Thread safety: all functions may be called concurrently.
"""

from __future__ import annotations

import collections
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterable
from typing import Any

from .. import _core
from ..errors import Timeout
from . import devices, functions, group, meeting, registry, telemetry, torch_calls
from .errors import Cancelled, RemoteFailure
from .futures import CallFuture, error_of, future_in_loop
from .peers import Member, Options, WorkerInfo
from .registry import Deferred, note, verb
from .rref import PyRRef
from .values import RefusedValue

_lock = threading.Lock()
_under_way: set[Call] = set()  # calls that no thread waits for from the start

# --- joining and leaving


def init(
    name: str,
    *,
    rank: int = -1,
    world_size: int | None = None,
    rendezvous: str = "env://",
    timeout: float = 60.0,
    join_timeout: float = 60.0,
    allow: Iterable[str] = (),
    max_calls: int = 4096,
    when_full: str = "wait",
    device_maps: dict[str, Any] | None = None,
) -> None:
    """Joins a group of processes of one user. Those on other hosts need ONECOPY_RPC_KEY: see the guide to rpc.

    Args:
        name: this member's, unique in the group: letters, digits, ``-_:``.
        rank, world_size: this member's number and how many there are: returns when all have come. Without world_size
            members come and go, and each gets the next number if it gives none.
        rendezvous: where the members meet: file:///path, tcp://host:port or env://, as torch.distributed has it.
        timeout: seconds that a call may take. 0: no limit.
        join_timeout: seconds that joining waits for other members.
        allow: patterns of functions that others may call besides exported ones: ["package.*"].
        max_calls: calls that may be under way to one member.
        when_full: "wait" for room, or "refuse": then a call beyond max_calls throws Busy.
        device_maps: {member: {device here: device there}}. Without them a tensor of a card goes to that card in a
        member
            of this host that numbers the cards alike; to another one it is an error that names it.
    Throws RuntimeError for a name that is taken, a second call, and a member that does not come in time."""
    if registry.find() is not None:
        raise RuntimeError("RPC is already initialized: this process is a member of a group")
    if when_full not in ("wait", "refuse"):
        raise ValueError(f"when_full is 'wait' or 'refuse', not {when_full!r}")
    if max_calls < 1:
        raise ValueError(f"max_calls is the number of calls that may be under way to one member, not {max_calls}")
    options = Options(
        float(timeout),
        rendezvous,
        float(join_timeout),
        devices.parse_maps(device_maps),
        maps_itself=device_maps is None,
        max_calls=max_calls,
        refuses_calls=when_full == "refuse",
    )
    functions.restrict(allow)
    devices.received.update(pull=0, staged=0)
    try:
        meeting.start(group.Agent(*meeting.open_store(options, name, rank, world_size), options))
    except BaseException:
        functions.lift()
        raise


def shutdown(graceful: bool = True, timeout: float = 0.0) -> None:
    """Leaves the group. Graceful: when all members of a group of fixed size have called it, and no call of this process
    is under way; a member that has ended is an error, and `timeout` seconds are the limit (0: none)."""
    try:
        meeting.shutdown(graceful, timeout)
    finally:
        functions.lift()


def members() -> list[WorkerInfo]:
    """Returns the WorkerInfo of each member that lives, this process among them."""
    agent = registry.current()
    return [info for info in agent.get_worker_infos() if not agent.member(info.id).has_ended]


def address() -> bytes:
    """Returns the bytes by which a program in C++ finds this process: Agent::join() takes them. They are good until
    shutdown()."""
    return registry.current().endpoint.address()


def enter(address: bytes) -> WorkerInfo:
    """Enters the program in C++ of that address, which Agent::address() gave. From now on it can be called:
    call(info, "name", args), with the names that Agent::define_plain() gave, and without keyword arguments.

    Throws BadHandle for bytes that are no address, InvalidArgument if its number is that of a member, RuntimeError if
    its name is."""
    return registry.current().add_program(address)


# --- calls


class Call(CallFuture):
    """A call under way. ``wait()`` and ``await`` give its result, or throw what it threw.

    Thread safety: all members may be called concurrently."""

    def __init__(self, agent: Any, member: Member, function: str, timeout: float | None) -> None:
        parent: Any = _core._current_call()
        seconds, self.deadline = agent.endpoint.native_deadline(timeout)
        super().__init__(agent, seconds)
        self.agent, self.member, self.function = agent, member, function
        self.parents_trace: str | None = parent.trace if parent is not None else None
        self.number = 0  # that of the endpoint; 0 before it is sent
        self.times = {"made": time.monotonic()}  # when the call came to each stage

    @property
    def trace(self) -> str:
        """The name of the call in the logs of both sides, and of calls that its function makes."""
        return self.parents_trace or self.agent.trace_of(self.agent.info.id, self.number)

    @property
    def to(self) -> WorkerInfo:
        """The WorkerInfo of the callee."""
        return self.member.info

    def cancel(self) -> bool:
        """Fails the call at once with Cancelled, and tells its function: current_call().cancelled. A function that has
        not begun does not begin. Returns False when the outcome was here already."""
        if self.done():
            return False
        self._tell_callee()
        self.complete(None, Cancelled(f"{self.function} at {self.to} was cancelled by this process"))
        return True

    def __await__(self) -> Generator[Any, None, Any]:
        future = future_in_loop(self.add_done_callback, self.wait)
        future.add_done_callback(lambda f: f.cancelled() and self.cancel())
        return future.__await__()

    def __repr__(self) -> str:
        return f"<Call of {self.function} at {self.to.name}, {next(reversed(self.times))}>"

    # --- from here on for this module and for streams

    def send(self, start: Callable[[], None]) -> None:
        """Makes the call with `start` when there is room for it."""
        rank, endpoint = self.to.id, self.agent.endpoint
        left = 0.0 if self.deadline is None else max(self.deadline - time.monotonic(), 1e-6)
        endpoint.acquire(self.agent, rank, left)
        try:
            start()
        except BaseException:
            endpoint.release(rank)
            raise
        if self.call is not None:
            self.number = self.call.number
        self._reach("sent", f"call {self.function} at {self.to}")
        with _lock:
            _under_way.add(self)
        self.add_done_callback(Call._ended)

    def send_here(self, run: Callable[[Any], Any]) -> None:
        """Lets a worker of this process call run(running call): nothing crosses, and nothing is copied."""
        sent = self.agent.endpoint.begin_here(self.seconds, self)
        self.number = sent.number
        self.begin(sent)
        self.agent.run_soon(self._serve_here, registry.context(), run)

    def _serve_here(self, context: Any, run: Callable[[Any], Any]) -> None:
        agent = self.agent
        with registry.within(context):
            result = serve(agent, agent.info.id, self.number, self.function, self.seconds, self.parents_trace, run)
        if isinstance(result, Deferred):
            result.future.add_done_callback(lambda f: self._complete_here(lambda: result.then(f.value())))
        else:
            self._complete_here(lambda: result)

    def _complete_here(self, result: Callable[[], Any]) -> None:
        try:
            value = result()
            error = value.exception() if isinstance(value, RemoteFailure) else None
        except Exception as failure:
            value, error = None, failure
        self.complete(None if error else devices.unmarked(value), error)

    def _tell_callee(self) -> None:
        if self.to.id == self.agent.info.id:
            self.agent.endpoint.cancel(self.agent.info.id, self.number)
        else:
            self.agent.note(self.to.id, "cancel", self.number)

    def _reach(self, stage: str, text: str) -> None:
        self.times[stage] = time.monotonic()
        telemetry.log.debug("%s: %s", self.trace, text)

    def _ended(self) -> None:
        self.agent.endpoint.release(self.to.id)
        with _lock:
            _under_way.discard(self)
        error = error_of(self)
        if isinstance(error, Timeout):
            self._tell_callee()  # the result is not wanted
        seconds = time.monotonic() - self.times["made"]
        self.agent.endpoint.observe(True, self.function, seconds, error is not None)
        stage = "answered" if error is None else "failed"
        self._reach(stage, f"{self.function} at {self.to} {stage} after {seconds:.6f} s")


def call(to: Any, function: Any, args: Any = (), kwargs: Any = None, *, timeout: float | None = None) -> Any:
    """Returns the result of function(*args, **kwargs), run in the member `to`: a name, an id or a WorkerInfo.

    `function` is exported there (see export()), or "module:name" of one that is. Throws what it throws, as its own
    class with the place in the text; Timeout after `timeout` seconds (0: no limit; None: that of init()), or when the
    call that this thread runs for another is late; PeerDied when the member has ended; TypeError for a value that
    cannot cross."""
    agent = registry.current()
    if not telemetry.is_profiled():
        try:
            result = agent.endpoint.call_native(to, function, args, kwargs, timeout)
        except RefusedValue as refused:
            raise refused.located(args=args, kwargs=kwargs) from None
        if result is not NotImplemented:
            return result
    member = agent.member(to)
    with telemetry.range_of_call("sync", name_at(member, function), agent, to):
        return call_async(to, function, args, kwargs, timeout=timeout).wait()


def call_async(to: Any, function: Any, args: Any = (), kwargs: Any = None, *, timeout: float | None = None) -> Call:
    """Returns a Call, which is waited for with wait() or await. It waits here only for room (see
    init(max_calls=...))."""
    agent = registry.current()
    member = agent.member(to)
    made = Call(agent, member, name_at(member, function), timeout)
    args = checked(args)

    def start() -> None:
        if member.info.id != agent.info.id:
            agent.endpoint.begin_native(
                member.info.id, made.function, args, kwargs, made.parents_trace, made.seconds, made
            )
            return
        given = devices.unmarked(args), devices.unmarked(kwargs or {})
        made.send_here(lambda running: _run_here(agent, running, *given))

    try:
        made.send(start)
    except RefusedValue as refused:
        raise refused.located(args=args, kwargs=kwargs) from None
    return made


def _run_here(agent: Any, running: Any, args: Iterable[Any], kwargs: dict[str, Any]) -> Any:
    found = functions.find(running.function)
    running.check()
    return torch_calls.finished(agent, found, running, found(*args, **kwargs))


def checked(args: Any) -> list[Any] | tuple[Any, ...]:
    """Returns the arguments of a call. Raises TypeError for what is no list or tuple."""
    if isinstance(args, (list, tuple)):
        return args
    raise TypeError(f"args is a tuple of arguments, not a {type(args).__name__}: args=({args!r:.60},)")


def name_at(member: Member, function: Any) -> str:
    """Returns how a member finds a function. A program in C++ gives its functions names of any kind."""
    return function if member.is_program and isinstance(function, str) else group.native_name(function)


def serve(
    agent: Any, caller: int, number: int, name: str, seconds: float, trace: str | None, run: Callable[[Any], Any]
) -> Any:
    """Returns run(call) with that call as the current one. Its failure is a RemoteFailure."""
    start, failed = time.monotonic(), False
    try:
        with telemetry.range_of_served(name, agent.get_worker_info(caller)):
            return agent.endpoint.run_as(agent, caller, number, name, seconds, trace, run)
    except Exception as error:
        failed = True
        return RemoteFailure.of(error, agent.info)
    finally:
        agent.endpoint.observe(False, name, time.monotonic() - start, failed)


def remote(to: Any, function: Any, args: Any = (), kwargs: Any = None, *, timeout: float | None = None) -> PyRRef:
    """Returns a Reference, at once, to the result of function(*args, **kwargs), which stays in the member `to`. Methods
    of the value whose names do not begin with an underscore are called through it: reference.rpc_sync().method(...)."""
    agent = registry.current()
    member = agent.member(to)
    if member.is_program:
        raise TypeError(f"{member.info} is a program in C++: it can be called with call() and call_async() alone")
    seconds, _ = agent.endpoint.native_deadline(timeout)
    return torch_calls.remote(to, function, args, kwargs, seconds)


def wait_all(calls: Iterable[Call], timeout: float | None = None) -> list[Any]:
    """Returns the results of calls, in their order. Throws the error of the first that fails, as soon as it has, and
    Timeout after `timeout` seconds; the others go on."""
    calls, ended = list(calls), queue.SimpleQueue[Call]()
    for each in calls:
        each.add_done_callback(ended.put)
    end = None if timeout is None else time.monotonic() + timeout
    for count in range(len(calls)):
        try:
            each = ended.get(timeout=None if end is None else max(end - time.monotonic(), 0))
        except queue.Empty:
            text = f"{len(calls) - count} of {len(calls)} calls have not ended within {timeout:g} s"
            raise Timeout(text) from None
        each.wait()
    return [each.wait() for each in calls]


def current_call() -> Any:
    """Returns the call that this thread runs for another member; None outside of a call."""
    return _core._current_call()


@note("cancel")
def _cancel(agent: Any, caller: int, number: int) -> None:
    agent.endpoint.cancel(caller, number)


# --- reports


def calls(of: Any = None) -> list[dict[str, Any]]:
    """Returns the calls under way: a dict for each that this process, or the member `of`, has made or runs, with its
    trace, function, member, direction and the seconds since it came to each stage."""
    agent = registry.current()
    if of is not None:
        return agent.call_verb(agent.member(of).info.id, ".calls", ())
    with _lock:
        found = [_made(one.trace, one.function, one.to, one.times, one.deadline) for one in _under_way]
    for to, number, function, trace, made, sent, deadline in agent.endpoint.calls_made():
        times = {"made": made, **({"sent": sent} if sent else {})}
        trace = trace or agent.trace_of(agent.info.id, number)
        found.append(_made(trace, function, agent.get_worker_info(to), times, deadline))
    return found + list(agent.endpoint.calls_running())


def _made(trace: str, function: str, to: WorkerInfo, times: dict[str, float], deadline: float | None) -> dict[str, Any]:
    now = time.monotonic()
    ages = {stage: now - when for stage, when in times.items()}
    remaining = None if deadline is None else deadline - now
    return {
        "trace": trace,
        "function": function,
        "member": to.name,
        "direction": "made",
        "stage": next(reversed(ages)),
        "ages": ages,
        "remaining": remaining,
    }


@verb(".calls")
def _tell_calls(agent: Any, caller: int) -> list[dict[str, Any]]:
    return calls()


def stats(of: Any = None) -> dict[str, Any]:
    """Returns the work of this process, or the member `of`, since it joined its group: tensors by route, sent and
    received, and a histogram of latency for each function, called and served."""
    agent = registry.current()
    if of is not None:
        return agent.call_verb(agent.member(of).info.id, ".stats", ())
    sent: collections.Counter[str] = collections.Counter()
    for number in agent.member_ids():  # those that have ended, too
        if number != agent.info.id:
            sent.update(agent.endpoint.routes(number))
    limits = agent.endpoint.limits().items()
    return {
        "routes": {"sent": dict(sent), "received": {r: n for r, n in devices.received.items() if n}},
        "called": agent.endpoint.times_called(),
        "served": agent.endpoint.times_served(),
        "members": {rank: {"under_way": used, "waits_for_room": waits} for rank, (used, waits) in limits},
    }


@verb(".stats")
def _tell_stats(agent: Any, caller: int) -> dict[str, Any]:
    return stats()
