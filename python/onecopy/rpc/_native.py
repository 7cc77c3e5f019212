# SPDX-License-Identifier: Apache-2.0
"""Calls of exported functions, with deadlines that go along, cancelling, streams, and a bound on the calls under way."""

import asyncio
import inspect
import itertools
import threading
import time

from ..errors import Timeout
from . import _calls, _modes, _programs, _quick, _rooms, _running, _values, functions, registry, telemetry
from ._awaiting import future_in_loop
from .errors import Cancelled, RemoteFailure, late
from .registry import ASYNC_MARK, Deferred, handler, handlers

_PARTS = {"[4]": "args", "[5]": "kwargs"}  # of a call's value: how errors name them

_numbers = itertools.count(1)
_lock = threading.Lock()
_under_way = {}  # number -> Call
_limits = {"most": 4096, "when_full": _rooms.WAIT, "rooms": {}}


def set_limits(most, when_full):
    if when_full not in (_rooms.WAIT, _rooms.REFUSE):
        raise ValueError(f"when_full is 'wait' or 'refuse', not {when_full!r}")
    if most < 1:
        raise ValueError(f"max_calls is the number of calls that may be under way to one member, not {most}")
    with _lock:
        _limits.update(most=most, when_full=when_full, rooms={})


def _room_of(member):
    with _lock:
        rooms = _limits["rooms"]
        if member.info.id not in rooms:
            rooms[member.info.id] = _rooms.Room(_limits["most"], _limits["when_full"])
        return rooms[member.info.id]


def rooms():
    """{member's id: (calls under way, callers that had to wait)}."""
    with _lock:
        return {rank: (room.used, room.waits) for rank, room in _limits["rooms"].items()}


class Call:
    """A call under way. ``wait()`` and ``await`` give its result, or throw what it threw.

    Thread safety: all members may be called concurrently."""

    def __init__(self, agent, member, function, deadline):
        parent = _running.current()
        self._agent, self._member, self.function = agent, member, function
        self.number, self.deadline = next(_numbers), deadline
        self._parents_trace = parent.trace if parent is not None else None
        self.trace = self._parents_trace or telemetry.new_trace(agent.info)
        self.stages, self._future = telemetry.Stages("made"), None

    @property
    def to(self):
        """The WorkerInfo of the callee."""
        return self._member.info

    def wait(self):
        """The result. Throws what the function threw; Timeout, PeerDied, Cancelled."""
        future = self._future
        del self  # the failure has the traceback, which has this frame
        try:
            return future.wait()
        finally:
            del future

    def done(self):
        """Whether the outcome is here."""
        return self._future.done()

    def cancel(self):
        """The call fails at once with Cancelled, and its function is told: current_call().cancelled. A function that has
        not begun does not begin. False when the outcome was here already."""
        if self.done():
            return False
        error = Cancelled(f"{self.function} at {self.to} was cancelled by this process")
        self._tell_callee()
        self._future.complete(None, error)
        return True

    def sent_plainly(self, sent):
        """It goes the way of plain calls, as `sent` (_RpcCall), and both sides know it by the number of that."""
        self.number = -sent.number
        self.trace = self._parents_trace or _quick.trace_of(self._agent.info, sent.number)

    def _tell_callee(self):
        if self._member.info.id == self._agent.info.id:
            _running.cancel(self._agent.info.id, self.number)
        else:
            self._agent.note(self._member.info.id, "cancel", self.number)

    def add_done_callback(self, callback):
        """`callback(call)` runs once the outcome is here, in a thread of its own choice."""
        self._future.add_done_callback(lambda _: callback(self))

    def then(self, callback):
        """A torch.futures.Future of callback(future)."""
        return self._future.then(callback)

    def __await__(self):
        future = future_in_loop(self.add_done_callback, self.wait)
        future.add_done_callback(lambda f: f.cancelled() and self.cancel())
        return future.__await__()

    def __repr__(self):
        return f"<Call of {self.function} at {self.to.name}, {self.stages.last}>"


# --- in the caller


def call(to, function, args=(), kwargs=None, *, timeout=None):
    """The result of function(*args, **kwargs), run in the member `to`: a name, an id or a WorkerInfo.

    `function` is exported there (see export()), or "module:name" of one that is. Throws what it throws, as its own class
    with the place in the text; Timeout after `timeout` seconds (0: no limit; None: that of init()), or when the call that
    this thread runs for another is late; PeerDied when the member has ended; TypeError for a value that cannot cross."""
    agent = registry.current()
    result = _call_quickly(agent, to, function, args, kwargs, timeout)
    if result is not NotImplemented:
        return result
    with telemetry.range_of_call("sync", _name_at(agent.member(to), function), agent, to):
        return call_async(to, function, args, kwargs, timeout=timeout).wait()


def _call_quickly(agent, to, function, args, kwargs, timeout):
    """The result; NotImplemented, with nothing sent, for a call that does not go the way of plain ones."""
    member = agent.member(to)
    callee = _callee(agent, member, function)
    if callee is None or telemetry.is_profiled():
        return NotImplemented
    made = Call(agent, member, callee.name, _running.deadline_for(timeout, agent.timeout))
    room = _room_of(member)
    room.enter(member, made.deadline)
    try:
        seconds = agent.seconds_for(timeout) if made._parents_trace is None else _running.seconds_until(made.deadline)
        try:
            sent = agent.node.begin_plain(member.info, callee, args, kwargs, seconds, made._parents_trace)
        except Timeout as error:  # another host has not taken it
            telemetry.observe(telemetry.called, made.function, seconds, True)
            raise late(seconds, error) from None
        return sent if sent is NotImplemented else _wait_for(made, sent, seconds)
    finally:
        room.leave()


def _callee(agent, member, function):
    """None where the general way is wanted: it makes the first contact, and knows this process itself and programs."""
    return agent.quick.callee(function, name_for) if member.was_called else None


def _wait_for(made, sent, seconds):
    made.sent_plainly(sent)
    _note_sent(made)
    try:
        sent.wait()
        outcome = made._agent.outcome(sent, seconds)
    except BaseException as interrupt:  # of a signal handler
        sent.end()
        _note_end(made, interrupt)
        raise
    _note_end(made, outcome[1])
    return made._agent._result(outcome)


def _begin_quickly(made, agent, member, args, kwargs, seconds):
    """A Future, or None as _call_quickly()."""
    callee = _callee(agent, member, made.function)
    if callee is None:
        return None
    future = agent.begin_plain(member.info, callee, args, kwargs, seconds, made._parents_trace)
    if future is NotImplemented:
        return None
    if future.call is not None:  # it was sent
        made.sent_plainly(future.call)
    return future


def call_async(to, function, args=(), kwargs=None, *, timeout=None):
    """A Call, which is waited for with wait() or await. It waits here only for room (see init(max_calls=...))."""
    return begin(to, "native", function, args, kwargs, timeout)


def begin(to, verb, function, args, kwargs, timeout, extra=(), keep=None):
    """`keep` is told of the Call before anything is sent."""
    agent = registry.current()
    member = agent.member(to)
    _programs.refuse_other_verbs(member, verb)
    made = Call(agent, member, _name_at(member, function), _running.deadline_for(timeout, agent.timeout))
    args, kwargs = list(_checked(args)), dict(kwargs or {})
    if keep is not None:
        keep(made)
    room = _room_of(member)
    room.enter(member, made.deadline)
    try:
        made._future = _start(made, agent, member, verb, args, kwargs, extra)
    except BaseException:
        room.leave()
        raise
    _watch(made, room)
    return made


def _checked(args):
    if isinstance(args, (list, tuple)):
        return args
    raise TypeError(f"args is a tuple of arguments, not a {type(args).__name__}: args=({args!r:.60},)")


def _name_at(member, function):
    """A program in C++ gives its functions names of any kind."""
    return function if isinstance(member, _programs.Program) and isinstance(function, str) else name_for(function)


def name_for(function):
    """How the callee finds it. Throws TypeError for what no process can call by name."""
    if isinstance(function, str):
        module, colon, qualname = function.partition(":")
        if not (module and colon and qualname):
            raise TypeError(f"a function is named as 'module:name', not {function!r}")
        return function
    if not callable(function):
        raise TypeError(f"a function is wanted, not a {type(function).__name__}")
    if isinstance(function, type) or getattr(function, "__qualname__", None):
        name = functions.text_name_of(function)
        if "<" not in name and getattr(function, "__self__", None) is None or name.startswith("torch:"):
            return name
    raise TypeError(f"{function!r} cannot be called in another process: it is no function at the top level of a module")


def _start(made, agent, member, verb, args, kwargs, extra):
    if member.info.id == agent.info.id:
        return _start_here(made, agent, verb, args, kwargs, extra)
    if isinstance(member, _programs.Program):
        seconds = _running.seconds_until(made.deadline)
        return agent.call_program(member, made.function, args, kwargs, made.deadline, seconds)
    seconds = _running.seconds_until(made.deadline)
    quick = _begin_quickly(made, agent, member, args, kwargs, seconds) if verb == "native" else None
    if quick is not None:
        return quick
    marked = [*_modes.marked_in(args), *_modes.marked_in(kwargs)]
    value = (made.number, made.deadline, made.trace, made.function, args, kwargs, *extra)
    try:
        future = agent.call(member.info.id, verb, value, timeout=seconds, context=registry.context())
    except _values.RefusedValue as refused:
        raise refused.named(_PARTS) from None
    member.was_called = True
    for each in marked:
        each.finish()
    return future


def _start_here(made, agent, verb, args, kwargs, extra):
    """A call to this process itself: nothing crosses, and nothing is copied."""
    seconds = _running.seconds_until(made.deadline)
    number, future = agent.begin_here(seconds)
    value = (
        made.number,
        made.deadline,
        made.trace,
        made.function,
        _modes.unmarked(args),
        _modes.unmarked(kwargs),
        *extra,
    )
    context = registry.context()

    def run():
        with registry.within(context):
            result = _outcome_of(agent, verb, value)
        if isinstance(result, Deferred):
            result.future.add_done_callback(lambda f: _complete_here(agent, number, lambda: result.then(f.value())))
        else:
            _complete_here(agent, number, lambda: result)

    agent.workers.run(run)
    return future


def _outcome_of(agent, verb, value):
    try:
        return handlers[verb](agent, agent.info.id, value)
    except Exception as error:
        return RemoteFailure.of(error, agent.info)


def _complete_here(agent, number, result):
    try:
        value = result()
        error = value.exception() if isinstance(value, RemoteFailure) else None
    except Exception as failure:
        value, error = None, failure
    agent.end_here(number, None if error else _modes.unmarked(value), error)


def _watch(made, room):
    """Until the outcome is here."""
    _note_sent(made)

    def ended(future):
        room.leave()
        _note_end(made, _error_of(future))

    made._future.add_done_callback(ended)


def _note_sent(made):
    made.stages.reach("sent")
    telemetry.log.debug("%s: call %s at %s", made.trace, made.function, made.to)
    with _lock:
        _under_way[made.number] = made


def _note_end(made, error):
    with _lock:
        _under_way.pop(made.number, None)
    if error is not None and (isinstance(error, Timeout) or not isinstance(error, Exception)):
        made._tell_callee()  # the result is not wanted
    seconds = time.monotonic() - made.stages.times["made"]
    made.stages.reach("answered" if error is None else "failed")
    telemetry.observe(telemetry.called, made.function, seconds, error is not None)
    telemetry.log.debug("%s: %s at %s %s after %.6f s", made.trace, made.function, made.to, made.stages.last, seconds)


def _error_of(future):
    try:
        future.value()
    except Exception as error:
        return error.with_traceback(None)  # its frames, and their callers', have the future, which has the error
    return None


def remote(to, function, args=(), kwargs=None, *, timeout=None):
    """A Reference, at once, to the result of function(*args, **kwargs), which stays in the member `to`. Methods of the
    value whose names do not begin with an underscore are called through it: reference.rpc_sync().method(...)."""
    agent = registry.current()
    _programs.refuse_other_verbs(agent.member(to), "remote")
    deadline = _running.deadline_for(timeout, agent.timeout)
    return _calls.remote(to, function, args, kwargs, _running.seconds_until(deadline))


def wait_all(calls, timeout=None):
    """The results of calls, in their order. Throws the error of the first that fails, as soon as it has, and Timeout after
    `timeout` seconds; the others go on."""
    calls, changed, ended = list(calls), threading.Condition(), []

    def note(call):
        with changed:
            ended.append(call)
            changed.notify()

    for each in calls:
        each.add_done_callback(note)
    end = None if timeout is None else time.monotonic() + timeout
    for count in range(len(calls)):
        with changed:
            changed.wait_for(lambda: len(ended) > count, None if end is None else max(end - time.monotonic(), 0))
            if len(ended) <= count:
                raise Timeout(f"{len(calls) - count} of {len(calls)} calls have not ended within {timeout:g} s")
        ended[count].wait()
    return [each.wait() for each in calls]


def calls(of=None):
    """The calls under way: a dict for each that this process, or the member `of`, has made or runs, with its trace,
    function, member, direction and the seconds since it came to each stage."""
    if of is not None:
        return registry.current().call(of, "calls", None).wait()
    now = time.monotonic()
    with _lock:
        made = list(_under_way.values())
    return [_described(c, c.to, "made", now) for c in made] + [
        _described(c, c.caller, "served", now) for c in _running.all_running()
    ]


def _described(call, member, direction, now):
    return {
        "trace": call.trace,
        "function": call.function,
        "member": member.name,
        "direction": direction,
        "stage": call.stages.last,
        "ages": call.stages.ages(now),
        "remaining": None if call.deadline is None else call.deadline - now,
    }


# --- in the member that is called


def serve(agent, caller, value, run):
    """run(function, args, kwargs, call) as the current call. Its failure is a RemoteFailure."""
    number, deadline, trace, name, args, kwargs = value[:6]
    running = _running.RunningCall(number, agent.get_worker_info(caller), name, deadline, trace)
    telemetry.log.debug("%s: %s for %s begins", trace, name, running.caller)
    failed = False
    with _running.Entered(running):
        try:
            running.check()
            with telemetry.range_of_served(name, running.caller):
                return run(functions.find(name), args, kwargs, running)
        except Exception as error:
            failed = True
            return RemoteFailure.of(error, agent.info)
        finally:
            seconds = time.monotonic() - running.stages.times["taken"]
            telemetry.observe(telemetry.served, name, seconds, failed)
            telemetry.log.debug(
                "%s: %s for %s %s after %.6f s", trace, name, running.caller, "failed" if failed else "is done", seconds
            )


@handler(handlers, "calls")
def _tell_calls(agent, caller, value):
    return calls()


@handler(handlers, "native")
def _run_native(agent, caller, value):
    return serve(agent, caller, value, _run)


def _run(function, args, kwargs, running):
    result = function(*args, **kwargs)
    if inspect.iscoroutine(result):
        return asyncio.run(result)
    if inspect.isgenerator(result):
        result.close()
        raise TypeError(f"{running.function} is a generator function: call it with onecopy.rpc.stream()")
    if getattr(function, ASYNC_MARK, False):
        return _calls._answer(registry.current(), function, result)
    return result
