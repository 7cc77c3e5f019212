# SPDX-License-Identifier: Apache-2.0
"""This process as a member of a group.

_core._RpcEndpoint has the whole way of a call (see python/src/rpc/endpoint.h). The agent decides what is rare: how
functions are named and found, what an error says, where tensors go, and what the end of a member means.

Invariants: a call's Future completes once, by its answer, its deadline, the end of its member, or shutdown. A member's
end is looked at after all that the member had put into its lane.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
import types
from collections.abc import Callable
from typing import Any

import onecopy

from .. import _core, errors as onecopy_errors
from ..errors import PeerDied
from . import devices, elastic, functions, peers, registry, telemetry, torch_calls, values
from .errors import Busy, Cancelled, RemoteFailure, late
from .futures import CallFuture
from .peers import Member, Options, WorkerInfo
from .references import References
from .registry import ASYNC_MARK, Deferred, end_hooks, note_handlers

_PATIENCE = 5.0  # seconds that stop() waits for requests that still run
_SLICE = 0.1  # seconds of one wait: signal handlers of Python run in between
_MAX_WORKERS = 1024
_NATIVE = "native "  # in front of the names of functions that native calls run
_NAMED = (types.FunctionType, types.BuiltinFunctionType)

_ERRORS = {
    kind.code: kind
    for kind in vars(onecopy_errors).values()
    if isinstance(kind, type) and issubclass(kind, onecopy.Error)
}


class _NotServed(Exception):
    """A function that others may not call, or that is not here."""

    def __init__(self, failure: RemoteFailure) -> None:
        super().__init__(failure.text)
        self.failure = failure


class _Task:
    """What a worker runs."""

    __slots__ = ("_arguments", "_function")

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._function, self._arguments = function, arguments

    def _settle(self, call: Any) -> None:
        self._function(*self._arguments)


def _autograd_hook(name: str) -> staticmethod[..., Any]:
    def call(*args: Any) -> Any:
        return getattr(registry.autograd(), name)(*args)

    return staticmethod(call)


class Agent:
    """Thread safety: all members may be called concurrently, but for start() and stop()."""

    marked_type = devices.MarkedTensor
    points_behind = staticmethod(devices.points_behind)
    wait_for_points = staticmethod(devices.wait_for)

    def __init__(self, store: Any, name: str, rank: int, world_size: int | None, options: Options) -> None:
        """Without a world size the group is one that members join and leave at any time."""
        self.store, self.info, self.options = store, WorkerInfo(name, rank), options
        self.is_static_group, self._world_size = bool(world_size), world_size or 0
        self.cards = peers.visible_cards()
        self.is_running, self.why_stopped = True, "RPC agent is shut down"
        self._lock, self._threads = threading.Lock(), list[threading.Thread]()
        self.endpoint: Any = None
        self.references = References(self)
        self._members: dict[int, Member] = {}
        self._served: dict[str, Any] = {}  # functions that are found by a name of ours

    def seconds_for(self, timeout: float | None) -> float:
        """Returns how long a call may take that is given this timeout; 0: no limit."""
        return self.endpoint.timeout if timeout is None or timeout < 0 else timeout

    # --- joining and leaving

    def make_endpoint(self) -> None:
        """Called once this process's id in the group is known."""
        self.endpoint = _core._RpcEndpoint(self, values.reduce, values.rebuild, self.info.name, self.info.id)
        self.endpoint.timeout = self.options.rpc_timeout
        self.endpoint.set_limit(self.options.max_calls, self.options.refuses_calls)

    def start(self) -> None:
        """Joins the group, and returns when all members have. Raises RuntimeError with the name of one that has not."""
        if self.is_static_group:
            peers.join(self, self._world_size)
        else:
            elastic.join(self)

    def open(self, found: list[Member]) -> None:
        """Enters members, this process among them. From here on this process can send."""
        for member in found:
            self.add_member(member)
        hooks = registry.autograd_if_loaded()
        if hooks is not None:
            hooks.started(self)

    def start_serving(self) -> None:
        """Starts serving calls. REQUIRES: every member is known here, and knows this one."""
        self._add_worker()

    def connect_far(self) -> None:
        """Connects to members on other hosts: only the end of a connection tells their end. One of two members
        connects."""
        for rank, member in self._members.items():
            if member.is_far and rank > self.info.id:
                self.endpoint.connect(rank, self.options.join_timeout)

    def add_member(self, member: Member) -> None:
        """Enters another member."""
        rank = member.info.id
        self._members = {**self._members, rank: member}  # others iterate over the one before
        self.endpoint.join(member.address)
        member.is_far = self.endpoint.is_far(rank)
        member.has_our_cards = not member.is_far and member.cards == self.cards
        self.endpoint.set_devices(
            rank,
            devices.numbers(self.map_to(member)),
            devices.numbers(self.map_back(member)),
            member.has_our_cards,
            self.options.maps_itself,
        )

    def add_program(self, address: bytes) -> WorkerInfo:
        """Enters a program in C++ that can be called from now on."""
        name, number, _ = self.endpoint.join(address, True)
        if any(m.info.name == name and not m.is_program for m in self._members.values()):
            raise RuntimeError(f"{name} is a member of this group already: give the program in C++ another name")
        member = Member(WorkerInfo(name, number), address, {})
        member.is_program = True
        self._members = {**self._members, number: member}
        return member.info

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

    # --- members

    def get_worker_info(self, to: Any = None) -> WorkerInfo:
        """Returns the WorkerInfo of a member, or of this process."""
        return self.info if to is None else self.member(to).info

    def get_worker_infos(self) -> list[WorkerInfo]:
        """Returns all members of a static group, or the living members of another."""
        known = sorted(self._members.items())
        return [m.info for _, m in known if not m.is_program and (self.is_static_group or not m.has_ended)]

    def member(self, to: Any) -> Member:
        """Returns the member of that name, rank or WorkerInfo. Raises RuntimeError for an unknown one, ValueError for a
        value that names none."""
        if isinstance(to, WorkerInfo):
            to = to.id
        if isinstance(to, str):
            named = [m for m in self._members.values() if m.info.name == to]
            if not named:
                raise RuntimeError(
                    f"could not find destination {to}; the members are "
                    f"{', '.join(i.name for i in self.get_worker_infos())}"
                )
            return next((m for m in named if not m.has_ended), named[-1])
        if not isinstance(to, int):
            raise ValueError(f"Cannot get WorkerInfo from name {to}")
        found = self._members.get(to)
        if found is None:
            raise RuntimeError(f"Unknown destination worker id {to}")
        return found

    def member_ids(self) -> list[int]:
        """Returns the ids of all members and programs that there ever were."""
        return list(self._members)

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

    def run_soon(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Runs a function in a worker."""
        self.endpoint.run_soon(_Task(function, arguments))

    def resolve(self, function: Any) -> tuple[Any, str, str, Any] | None:
        """Returns how both sides find a function: (the names of its module, its name there, its wire name, a check of
        its arguments or None). None for a function that crosses as a value."""
        if not callable(function):
            raise TypeError("function should be callable.")
        if type(function) not in _NAMED:
            return None
        operator = functions.operator_of(function)
        try:
            module, name = ("torch", function.__name__) if operator else functions.name_of(function)
            names = vars(functions.module_named(module))
        except (TypeError, AttributeError, PermissionError):
            return None
        if names.get(name) is not function:
            return None
        check = operator and (lambda args, kwargs: functions.check_operator(operator, args, kwargs))
        return names, sys.intern(name), f"{module}:{name}", check

    def resolve_native(self, function: Any) -> tuple[None, None, str, None]:
        """As resolve(), of a native call, whose callee finds the function."""
        return None, None, _NATIVE + native_name(function), None

    # --- what the endpoint asks of distributed autograd: see registry.AutogradHooks

    context, about_to_send, not_sent, arrived = map(_autograd_hook, ("context", "about_to_send", "not_sent", "arrived"))

    # --- where tensors go

    def target_of(self, tensor: Any, receiver: int, is_result: bool) -> str:
        """Returns the device of a member that a tensor goes to. Raises RuntimeError for a device without a target."""
        member = self._members[receiver]
        found = self.map_back(member) if is_result else self.map_to(member)
        what = "Response" if is_result else "Request"
        return devices.target(tensor, found, self.info.name, member.info.name, what)

    def map_to(self, member: Member) -> devices.DeviceMap:
        """Returns the map of calls."""
        return self._completed(member, devices.parse_map(self.options.device_maps.get(member.info.name, {})))

    def map_back(self, member: Member) -> devices.DeviceMap:
        """Returns the map of results and gradients: the inverse of the other's map, and this process's own map."""
        theirs = devices.inverse(devices.parse_map(member.device_maps.get(self.info.name, {})))
        return self._completed(member, {**theirs, **self.map_to(member)})

    def _completed(self, member: Member, known: devices.DeviceMap) -> devices.DeviceMap:
        return devices.Automatic(known) if self.options.maps_itself and member.has_our_cards else known

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
            return PeerDied(member.why_ended if member.has_ended else self._why_ended(member))
        return self.error_named(code, text) if self.is_running else RuntimeError(self.why_stopped)

    def end_error(self, end: str, to: int, seconds: float) -> Exception:
        """Makes the error of a call that has ended without an answer."""
        if end == "late":
            return late(seconds)
        if end == "ended":
            return PeerDied(self._why_ended(self._members[to]))
        return RuntimeError(self.why_stopped)

    @staticmethod
    def exception_of(failure: tuple[type, str]) -> Exception:
        """Makes the exception that the callee answered with."""
        return RemoteFailure(*failure).exception()

    def _why_ended(self, member: Member) -> str:
        has_left = self.endpoint.has_left(member.info.id)
        return f"{member.info} has left the group" if has_left else f"{member.info} has ended"

    def take_end(self, rank: int) -> None:
        """Called after all messages of a member that has ended were taken."""
        member = self._members.get(rank)
        if member is None:
            return
        if not member.has_ended:
            member.why_ended, member.has_ended = self._why_ended(member), True
        self.references.owned.forget_member(rank)
        for hook in end_hooks:
            hook(rank)

    def take_note(self, sender: int, note: tuple[str, Any]) -> None:
        """Called with each note, in the order of its lane."""
        verb, value = note
        note_handlers[verb](self, sender, value)

    # --- serving

    def find_target(self, wire_name: str) -> tuple[Any, Any, str, str, Any]:
        """Returns (function, the names that it is found in, its name there, how it is run, what prepares its
        arguments).
        Raises AttributeError, PermissionError."""
        prepare, names, name, how = None, dict[str, Any](), wire_name, "python"
        if wire_name.startswith("."):
            function, prepare = registry.handlers[wire_name]
        elif wire_name.startswith(_NATIVE):
            try:
                function = functions.find(wire_name.removeprefix(_NATIVE))
            except Exception as error:
                raise _NotServed(RemoteFailure.of(error, self.info)) from None
            (names, name), how = functions.names_of(wire_name.removeprefix(_NATIVE)), "native"
        else:
            module, _, name = wire_name.partition(":")
            function, names = self.function_named(wire_name), vars(functions.module_named(module))
            how = "python" if getattr(function, ASYNC_MARK, False) else "result"
        if names.get(name) is not function:
            names, name = self._served, wire_name
            names[name] = function
        return function, names, sys.intern(name), how, prepare and functools.partial(prepare, self)

    def function_named(self, wire_name: str) -> Any:
        """Returns the function that a member names. Raises AttributeError, PermissionError."""
        module, _, qualname = wire_name.partition(":")
        function = functions.look_up(module, qualname)
        functions.check(function)
        return function

    def serve(self, function: Any, sender: int, call: int, args: tuple[Any, ...], kwargs: Any) -> tuple[Any] | None:
        """Runs a verb, or a function that returns a Future. Returns (its answer,), or None if it answers later."""
        try:
            if getattr(function, ASYNC_MARK, False):
                result = torch_calls.run_async(self, function, args, kwargs or {})
            else:
                result = function(self, sender, *args)
        except Exception as error:
            self.fail(sender, call, _failure(error))
            return None
        return self.answer_of(sender, call, result)

    def answer_of(self, sender: int, call: int, result: Any) -> tuple[Any] | None:
        """Returns (the answer,); or None if it is a failure, which is sent, or comes later."""
        if isinstance(result, RemoteFailure):
            self.fail(sender, call, result)
            return None
        if not isinstance(result, Deferred):
            return (result,)
        if self._members[sender].is_program:
            text = "the function gives its result later, which no program in C++ can take"
            self.fail(sender, call, RemoteFailure(RuntimeError, f"On {self.info}:\n{text}"))
            return None
        context = registry.context()
        result.future.add_done_callback(
            lambda future: self.run_soon(self._answer_later, sender, call, context, result.then, future)
        )
        return None

    def _answer_later(self, sender: int, call: int, context: Any, then: Callable[[Any], Any], future: Any) -> None:
        try:
            with registry.within(context):
                answer = self.answer_of(sender, call, then(future.value()))
                if answer is not None:
                    self.endpoint.answer(sender, call, answer[0])
        except Exception as error:
            self.fail(sender, call, _failure(error))

    def finish_native(self, function: Any, running: Any, result: Any) -> tuple[Any] | None:
        """As answer_of(), for a result of a native call that may be a coroutine, a generator or a Future."""
        return self.answer_of(running.caller_id, running.number, torch_calls.finished(self, function, running, result))

    def fail(self, to: int, call: int, failure: RemoteFailure) -> None:
        """Answers a call with a failure."""
        self.endpoint.fail(to, call, failure.kind, failure.text, getattr(failure.kind, "code", ""))

    def refuse(self, sender: int, call: int, error: Any) -> None:
        """Answers a call that was not run, or whose answer could not be written."""
        self.fail(sender, call, self.refusal(error))

    def refusal(self, error: Any) -> RemoteFailure:
        """Makes the failure of a call that was not run."""
        if isinstance(error, _NotServed):
            return error.failure
        kind = type(error) if isinstance(error, Exception) else RuntimeError
        if issubclass(kind, (AttributeError, onecopy.Error)):  # a name that is not here, or a message of no sense
            kind = RuntimeError
        return RemoteFailure(kind, f"On {self.info}:\n{error}")

    def fail_made(self, sender: int, reference: Any, error: Exception) -> None:
        """Fails the value that a call was to make: those that ask for the value do not wait for it."""
        self.references.owned.made_by(tuple(reference), sender, self.info.id).set(self.refusal(error))

    def answer_error(self, sender: int, call: int, error: Exception, is_functions: bool, is_torch: bool) -> None:
        """Answers with the exception of a function, or with the reason why its result could not be written."""
        if not is_functions:
            self.fail(sender, call, _failure(error))
            return
        failure = RemoteFailure.of(error, self.info, unescaped=is_torch)
        if is_torch:
            print(failure.text, file=sys.stderr)
        self.fail(sender, call, failure)

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

    def log_call(self, stage: str, trace: str | None, number: int, function: str, to: int) -> None:
        """Writes a line of the log about a call of this process."""
        trace = trace or self.trace_of(self.info.id, number)
        telemetry.log.debug("%s: call %s at %s %s", trace, function, self._members[to].info, stage)

    def log_served(self, call: Any, stage: str) -> None:
        """Writes a line of the log about a call of another member."""
        telemetry.log.debug("%s: %s for %s %s", call.trace, call.function, call.caller, stage)

    # --- reports

    def pending_count(self) -> int:
        """Returns how many calls of this process have no answer yet."""
        return self.endpoint.calls_under_way


def native_name(function: Any) -> str:
    """Returns how the callee finds a function. Raises TypeError for a function that no process can call by name."""
    if isinstance(function, str):
        module, colon, qualname = function.partition(":")
        if not (module and colon and qualname):
            raise TypeError(f"a function is named as 'module:name', not {function!r}")
        return function
    if not callable(function):
        raise TypeError(f"a function is wanted, not a {type(function).__name__}")
    if isinstance(function, type) or getattr(function, "__qualname__", None):
        name = functions.text_name_of(function)
        if ("<" not in name and getattr(function, "__self__", None) is None) or name.startswith("torch:"):
            return name
    raise TypeError(f"{function!r} cannot be called in another process: it is no function at the top level of a module")


def _failure(error: Exception) -> RemoteFailure:
    kind = TypeError if isinstance(error, values.RefusedValue) else type(error)
    return RemoteFailure(kind, str(error))
