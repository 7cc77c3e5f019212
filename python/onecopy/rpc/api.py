# SPDX-License-Identifier: Apache-2.0
"""The native interface: calls of exported functions, with deadlines that travel along, cancelling, and a bound on the calls
under way.

Thread safety: all functions may be called concurrently.
"""

from __future__ import annotations

import collections
import itertools
import threading
import time
from collections.abc import Callable, Generator, Iterable
from typing import Any

import torch

from .. import _core
from ..errors import Timeout
from . import devices, functions, group, meeting, registry, routes, telemetry, torch_calls
from .errors import Cancelled, RemoteFailure
from .futures import CallFuture, error_of, future_in_loop
from .peers import Member, WorkerInfo
from .references import PyRRef
from .registry import Deferred, note, verb
from .values import RefusedValue

_lock = threading.Lock()
_under_way: dict[int, Call] = {}  # by numbers of this table: calls that no thread waits for from the start
_numbers = itertools.count(1)


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
        device_maps: {member: {device here: device there}}. Without them a tensor of a card goes to that card in a member
            of this host that numbers the cards alike; to another one it is an error that names it.
    Throws RuntimeError for a name that is taken, a second call, and a member that does not come in time."""
    if registry.find() is not None:
        raise RuntimeError("RPC is already initialized: this process is a member of a group")
    if when_full not in ("wait", "refuse"):
        raise ValueError(f"when_full is 'wait' or 'refuse', not {when_full!r}")
    if max_calls < 1:
        raise ValueError(f"max_calls is the number of calls that may be under way to one member, not {max_calls}")
    options = meeting.Options(
        float(timeout),
        rendezvous,
        float(join_timeout),
        devices.parse_maps(device_maps),
        maps_itself=device_maps is None,
    )
    functions.restrict(allow)
    devices.received.update(pull=0, staged=0)
    try:
        rank, size = meeting.place_in_group(rendezvous, rank, world_size)
        store = meeting.open_store(options, rank, size)
        agent = group.Agent(store, name, rank, size or None, options)
        agent.max_calls, agent.refuses_calls = max_calls, when_full == "refuse"
        meeting.start(agent, options)
    except BaseException:
        functions.lift()
        raise


def shutdown(graceful: bool = True, timeout: float = 0.0) -> None:
    """Leaves the group. Graceful: when all members of a group of fixed size have called it, and no call of this process is
    under way; a member that has ended is an error, and `timeout` seconds are the limit (0: none)."""
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
    found: bytes = registry.current().endpoint.address()
    return found


def enter(address: bytes) -> WorkerInfo:
    """Enters the program in C++ of that address, which Agent::address() gave. From now on it can be called:
    call(info, "name", args), with the names that Agent::define_plain() gave, and without keyword arguments.

    Throws BadHandle for bytes that are no address, InvalidArgument if its number is that of a member, RuntimeError if its
    name is."""
    info: WorkerInfo = registry.current().add_program(address)
    return info


# --- calls


class Call:
    """A call under way. ``wait()`` and ``await`` give its result, or throw what it threw.

    Thread safety: all members may be called concurrently."""

    def __init__(self, agent: Any, member: Member, function: str, timeout: float | None) -> None:
        parent: Any = _core._current_call()
        self._agent, self._member, self.function = agent, member, function
        self._key = next(_numbers)
        self._parents_trace = parent.trace if parent is not None else None
        self.seconds, self.deadline = agent.endpoint.native_deadline(timeout)
        self.number = 0  # that of the endpoint; 0 before it is sent
        self.stages = telemetry.Stages("made")
        self._future = CallFuture(agent, self.seconds)

    @property
    def trace(self) -> str:
        """The name of the call in the logs of both sides, and of calls that its function makes."""
        trace: str = self._parents_trace or self._agent.trace_of(self._agent.info.id, self.number)
        return trace

    @property
    def to(self) -> WorkerInfo:
        """The WorkerInfo of the callee."""
        return self._member.info

    def wait(self) -> Any:
        """Returns the result. Throws what the function threw; Timeout, PeerDied, Cancelled."""
        future = self._future
        del self  # the failure has the traceback, which has this frame
        try:
            return future.wait()
        finally:
            del future

    def done(self) -> bool:
        """Returns whether the outcome is here."""
        return self._future.done()

    def cancel(self) -> bool:
        """Fails the call at once with Cancelled, and tells its function: current_call().cancelled. A function that has
        not begun does not begin. Returns False when the outcome was here already."""
        if self.done():
            return False
        error = Cancelled(f"{self.function} at {self.to} was cancelled by this process")
        self._tell_callee()
        self._future.complete(None, error)
        return True

    def _tell_callee(self) -> None:
        if self._member.info.id == self._agent.info.id:
            self._agent.endpoint.cancel(self._agent.info.id, self.number)
        else:
            self._agent.note(self._member.info.id, "cancel", self.number)

    def add_done_callback(self, callback: Callable[[Call], None]) -> None:
        """Calls ``callback(call)`` once the outcome is here, in a thread of its own choice."""
        self._future.add_done_callback(lambda _: callback(self))

    def then(self, callback: Callable[[Any], Any]) -> Any:
        """Returns a torch.futures.Future of callback(future)."""
        return self._future.then(callback)

    def __await__(self) -> Generator[Any, None, Any]:
        future = future_in_loop(self.add_done_callback, self.wait)
        future.add_done_callback(lambda f: f.cancelled() and self.cancel())
        return future.__await__()

    def __repr__(self) -> str:
        return f"<Call of {self.function} at {self.to.name}, {self.stages.last}>"

    # --- from here on for this module and for streams

    def send(self, start: Callable[[], None]) -> None:
        """Makes the call with `start`, which begins the Future, when there is room for it."""
        rank, endpoint = self._member.info.id, self._agent.endpoint
        left = 0.0 if self.deadline is None else max(self.deadline - time.monotonic(), 1e-6)
        endpoint.acquire(self._agent, rank, left)
        try:
            start()
        except BaseException:
            endpoint.release(rank)
            raise
        sent = self._future.call
        if sent is not None:
            self.number = sent.number
        self.stages.reach("sent")
        telemetry.log.debug("%s: call %s at %s", self.trace, self.function, self.to)
        with _lock:
            _under_way[self._key] = self
        self._future.add_done_callback(self._ended)

    def _ended(self, future: Any) -> None:
        self._agent.endpoint.release(self._member.info.id)
        with _lock:
            _under_way.pop(self._key, None)
        error = error_of(future)
        if isinstance(error, Timeout):
            self._tell_callee()  # the result is not wanted
        seconds = time.monotonic() - self.stages.times["made"]
        self.stages.reach("answered" if error is None else "failed")
        self._agent.endpoint.observe(True, self.function, seconds, error is not None)
        telemetry.log.debug(
            "%s: %s at %s %s after %.6f s", self.trace, self.function, self.to, self.stages.last, seconds
        )


def call(to: Any, function: Any, args: Any = (), kwargs: Any = None, *, timeout: float | None = None) -> Any:
    """Returns the result of function(*args, **kwargs), run in the member `to`: a name, an id or a WorkerInfo.

    `function` is exported there (see export()), or "module:name" of one that is. Throws what it throws, as its own class
    with the place in the text; Timeout after `timeout` seconds (0: no limit; None: that of init()), or when the call that
    this thread runs for another is late; PeerDied when the member has ended; TypeError for a value that cannot cross."""
    agent = registry.current()
    if not telemetry.is_profiled():
        try:
            result = agent.endpoint.call_native(to, function, args, kwargs, timeout)
        except RefusedValue as refused:
            raise refused.located(args=args, kwargs=kwargs) from None
        if result is not NotImplemented:
            return result
    member = agent.member(to)
    with telemetry.range_of_call("sync", _name_at(member, function), agent, to):
        return call_async(to, function, args, kwargs, timeout=timeout).wait()


def call_async(to: Any, function: Any, args: Any = (), kwargs: Any = None, *, timeout: float | None = None) -> Call:
    """Returns a Call, which is waited for with wait() or await. It waits here only for room (see init(max_calls=...))."""
    agent = registry.current()
    member = agent.member(to)
    made = Call(agent, member, _name_at(member, function), timeout)
    rank, args = member.info.id, _checked(args)

    def start() -> None:
        if rank == agent.info.id:
            _start_here(made, args, dict(kwargs or {}))
            return
        agent.endpoint.begin_native(rank, made.function, args, kwargs, made._parents_trace, made.seconds, made._future)

    try:
        made.send(start)
    except RefusedValue as refused:
        raise refused.located(args=args, kwargs=kwargs) from None
    return made


def _checked(args: Any) -> Any:
    if isinstance(args, (list, tuple)):
        return args
    raise TypeError(f"args is a tuple of arguments, not a {type(args).__name__}: args=({args!r:.60},)")


def _name_at(member: Member, function: Any) -> str:
    """A program in C++ gives its functions names of any kind."""
    return function if member.is_program and isinstance(function, str) else group.native_name(function)


def _start_here(made: Call, args: Any, kwargs: dict[str, Any]) -> None:
    """A call to this process itself: nothing crosses, and nothing is copied."""
    agent, context = made._agent, registry.context()
    args, kwargs = devices.unmarked(args), devices.unmarked(kwargs)
    begin_here(made)

    def run(running: Any) -> Any:
        found = functions.find(made.function)
        running.check()
        return torch_calls.finished(agent, found, running, found(*args, **kwargs))

    agent.run_soon(serve_here, made, context, run)


def begin_here(made: Call) -> None:
    """Begins the Future of a call to this process."""
    sent = made._agent.endpoint.begin_here(made.seconds, made._future)
    made.number = sent.number
    made._future.begin(sent)


def serve_here(made: Call, context: Any, run: Callable[[Any], Any]) -> None:
    """Runs run(running call) for a call of this process, in a worker, and completes the call."""
    with registry.within(context):
        result = serve(
            made._agent, made._agent.info.id, made.number, made.function, made.seconds, made._parents_trace, run
        )
    if isinstance(result, Deferred):
        result.future.add_done_callback(lambda f: _complete_here(made, lambda: result.then(f.value())))
    else:
        _complete_here(made, lambda: result)


def _complete_here(made: Call, result: Callable[[], Any]) -> None:
    try:
        value = result()
        error = value.exception() if isinstance(value, RemoteFailure) else None
    except Exception as failure:
        value, error = None, failure
    made._future.complete(None if error else devices.unmarked(value), error)


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
    """Returns a Reference, at once, to the result of function(*args, **kwargs), which stays in the member `to`. Methods of
    the value whose names do not begin with an underscore are called through it: reference.rpc_sync().method(...)."""
    agent = registry.current()
    member = agent.member(to)
    if member.is_program:
        raise TypeError(f"{member.info} is a program in C++: it can be called with call() and call_async() alone")
    seconds, _ = agent.endpoint.native_deadline(timeout)
    return torch_calls.remote(to, function, args, kwargs, seconds)


def wait_all(calls: Iterable[Call], timeout: float | None = None) -> list[Any]:
    """Returns the results of calls, in their order. Throws the error of the first that fails, as soon as it has, and Timeout
    after `timeout` seconds; the others go on."""
    calls, changed, ended = list(calls), threading.Condition(), list[Call]()

    def note_end(call: Call) -> None:
        with changed:
            ended.append(call)
            changed.notify()

    for each in calls:
        each.add_done_callback(note_end)
    end = None if timeout is None else time.monotonic() + timeout
    for count in range(len(calls)):
        with changed:
            left = None if end is None else max(end - time.monotonic(), 0)
            changed.wait_for(lambda count=count: len(ended) > count, left)  # type: ignore[misc]
            if len(ended) <= count:
                raise Timeout(f"{len(calls) - count} of {len(calls)} calls have not ended within {timeout:g} s")
        ended[count].wait()
    return [each.wait() for each in calls]


def current_call() -> Any:
    """Returns the call that this thread runs for another member; None outside of a call."""
    return _core._current_call()


@note("cancel")
def _cancel(agent: Any, caller: int, number: int) -> None:
    agent.endpoint.cancel(caller, number)


# --- reports


def calls(of: Any = None) -> list[dict[str, Any]]:
    """Returns the calls under way: a dict for each that this process, or the member `of`, has made or runs, with its trace,
    function, member, direction and the seconds since it came to each stage."""
    agent = registry.current()
    if of is not None:
        found: list[dict[str, Any]] = agent.call_verb(agent.member(of).info.id, ".calls", ())
        return found
    now = time.monotonic()
    with _lock:
        made = list(_under_way.values())
    waited = [_waited(agent, *entry) for entry in agent.endpoint.calls_made()]
    return [_made(c, now) for c in made] + waited + list(agent.endpoint.calls_running())


def _made(call: Call, now: float) -> dict[str, Any]:
    return _described(call.trace, call.function, call.to.name, call.stages.ages(now), call.deadline, now)


def _waited(
    agent: Any, to: int, number: int, function: str, trace: str | None, made: float, sent: float, deadline: float | None
) -> dict[str, Any]:
    now = time.monotonic()
    ages = {"made": now - made, **({"sent": now - sent} if sent else {})}
    trace = trace or agent.trace_of(agent.info.id, number)
    return _described(trace, function, agent.get_worker_info(to).name, ages, deadline, now)


def _described(
    trace: str, function: str, member: str, ages: dict[str, float], deadline: float | None, now: float
) -> dict[str, Any]:
    remaining = None if deadline is None else deadline - now
    stage = next(reversed(ages))
    return {
        **{"trace": trace, "function": function, "member": member, "direction": "made"},
        **{"stage": stage, "ages": ages, "remaining": remaining},
    }


@verb(".calls")
def _tell_calls(agent: Any, caller: int) -> list[dict[str, Any]]:
    return calls()


def stats(of: Any = None) -> dict[str, Any]:
    """Returns the work of this process, or the member `of`, since it joined its group: tensors by route, sent and received,
    and a histogram of latency for each function, called and served."""
    agent = registry.current()
    if of is not None:
        found: dict[str, Any] = agent.call_verb(agent.member(of).info.id, ".stats", ())
        return found
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


def explain(to: Any, tensor: Any) -> routes.Route:
    """Returns the Route that `tensor`, or borrow(tensor) or move(tensor), takes as an argument of a call to the member `to`:
    its name, and the reason. Nothing is sent but, for a tensor on a card, a question about the other's cards.

    Throws RuntimeError for a tensor on a card that no device map sends anywhere."""
    agent = registry.current()
    member = agent.member(to)
    mode = tensor.mode if isinstance(tensor, devices.MarkedTensor) else devices.COPY
    tensor = devices.unmarked(tensor)
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"explain() takes a tensor, not a {type(tensor).__name__}")
    if member.info.id == agent.info.id:
        return routes.choose(routes.source_of(tensor, mode), routes.Target("cpu", is_here=True))
    if member.is_far:
        if mode == devices.BORROW:
            devices.check_far(member.info)
        return routes.choose(routes.source_of(tensor, mode), routes.Target("cpu", is_far=True))
    target = agent.target_of(tensor, member.info.id, False)
    card = _card(tensor.device)
    return routes.choose(routes.source_of(tensor, mode, card), _target(agent, member, target, card))


def _target(agent: Any, member: Member, target: str, card: str | None) -> routes.Target:
    if target == "cpu":
        return routes.Target("cpu")
    there, can_reach = agent.call_verb(member.info.id, ".card", (target, card))
    return routes.Target(there, can_reach=can_reach)


def _card(device: torch.device) -> str | None:
    """Returns the UUID of a card, by which all processes know it; None for the CPU."""
    return None if device.type == "cpu" else str(torch.cuda.get_device_properties(device).uuid)


@verb(".card")
def _about_card(agent: Any, caller: int, target: str, card: str | None) -> tuple[str | None, bool]:
    """Returns (UUID of a card of this process, whether it reads the memory of the card with that UUID)."""
    here = torch.device(target)
    there = [i for i in range(torch.cuda.device_count()) if _card(torch.device("cuda", i)) == card]
    can_reach = None if not there or there[0] == here.index else torch.cuda.can_device_access_peer(here.index, there[0])
    return _card(here), bool(there) if can_reach is None else can_reach
