# SPDX-License-Identifier: Apache-2.0
"""A member of a group: sends calls, runs those of others, and answers.

_core._RpcNode has the lanes to other members, the threads that wait, deadlines and deaths; this file gives messages their meaning.
Workers, threads in _RpcNode.run(), take messages: calls and notes, and answers with references, one at a time and in the order
of their lane. They decode them, and count references there. A request is run by the thread that took it, and an answer is
decoded by the thread that waits for it. A message is (verb, context, recorded, tree, tensors, targets): plain values and
tensors, and no pickle. Where the value is plain (_plain.py) it is (verb, context, recorded, value): calls in a context of
autograd, and their results. Plain calls, and gradients, (see _RpcNode) come here only when they are no longer plain.

Invariants: a call's Future completes once, by its answer, its deadline, the end of its member, or shutdown. A member's end
is looked at behind all that it had put into its lane before.
"""

import contextlib
import functools
import os
import threading
import time

import onecopy

from ..errors import PeerDied, Timeout
from . import _calls, _devices, _dynamic, _group, _modes, _programs, _quick, _values, registry
from ._futures import CallFuture
from ._plain_calls import DEFAULT, GENERAL, PlainCalls
from ._references import PyRRef, References
from ._workers import Workers
from .errors import RemoteFailure, late
from .registry import Deferred, end_hooks, handlers, note_handlers

_PATIENCE = 5.0  # seconds that stop() waits for requests that still run
_SLICE = 0.1  # seconds of one wait: signal handlers of Python run in between
_MOST_WORKERS = 1024
_ANSWERED, _LATE, _ENDED, _STOPPED = range(1, 5)  # rpc::End

# Requests whose values and results may be plain.
_PLAIN_VERBS = frozenset(("run_named", "method_here", "remote_named", "remote_method_here", "fetch"))
# Requests that begin with the reference to their result, and references that follow, or come first, to values here: the
# caller may have none any more behind the request.
MAKING = frozenset(("remote", "remote_named", "remote_method", "remote_method_here"))
_CELL_AT = {"method_here": 0, "fetch": 0, "type": 0, "reference_backward": 0, "remote_method_here": 1}


class Agent(PlainCalls):
    """Thread safety: all members may be called concurrently, but for start() and stop()."""

    invoke_method = staticmethod(_calls.invoke_method)

    def __init__(self, store, name, rank, world_size, options):
        self.info, self.device_maps = _group.WorkerInfo(name, rank), options.device_maps
        self.maps_itself, self.join_timeout = options.maps_itself, options.join_timeout
        self.num_worker_threads, self.cards = options.num_worker_threads, _group.visible_cards()
        self.is_running, self.why_stopped = True, "RPC agent is shut down"
        self._lock, self._threads, self._here = threading.Lock(), [], {}
        self.has_gil_profiling = False
        self._timeout, self.node = options.rpc_timeout, None
        self.workers = Workers(name)
        self.references = References(self)
        self._store, self._world_size = store, world_size
        self._members, self._programs = {}, {}
        super().__init__()

    @property
    def timeout(self):
        """Seconds that a call may take when it says nothing else; 0: no limit."""
        return self._timeout

    @timeout.setter
    def timeout(self, seconds):
        self._timeout = seconds
        if self.node is not None:
            self.node.timeout = seconds

    def seconds_for(self, timeout):
        """How long a call may take that gives this; 0: no limit."""
        return self._timeout if timeout is None or timeout < 0 else timeout

    def _make_node(self):
        """Once this process's id in the group is settled."""
        self.node = onecopy._core._RpcNode(self.info.name, self.info.id)
        self.node.timeout, self.node.member_type = self._timeout, _group.WorkerInfo
        self.node.marked_type = _modes.MarkedTensor

    def start(self):
        """Joins the group, and returns when all members have. Throws RuntimeError with the name of one that has not."""
        if not self.is_static_group:
            _dynamic.join(self)
            return
        _group.check_size(self._store, self.info, self._world_size)
        self._make_node()
        _group.announce(self._store, self.info.name, self.info.id, self.node.address(), self.device_maps, self.cards)
        self.begin({rank: _group.find(self._store, rank, self.join_timeout) for rank in range(self._world_size)})
        self.take_messages()
        self._connect_far()

    @property
    def is_static_group(self):
        """Whether the members are those that it began with."""
        return self._world_size is not None

    def begin(self, members):
        """Can send from now on. `members` has this process, too."""
        for member in members.values():
            self.enter(member)
        hooks = registry.autograd_if_loaded()
        if hooks is not None:
            hooks.started(self)

    def take_messages(self):
        """From now on. REQUIRES: all members that can send or be called are known, and know this one before they serve it."""
        self._add_worker()

    def _connect_far(self):
        """To members on other hosts, whose end is known by the end of a connection alone. One of two members connects."""
        for rank, member in self._members.items():
            if member.is_far and rank > self.info.id:
                self.node.connect(rank, time.monotonic() + self.join_timeout)

    def enter(self, member):
        """Another member that there is from now on."""
        rank = member.info.id
        self._members = {**self._members, rank: member}  # others iterate over the one before
        self.node.join(member.address)
        member.is_far = self.node.is_far(rank)
        self.node.set_number_of(member.info.name, rank)
        member.has_our_cards = not member.is_far and member.cards == self.cards
        self.node.set_devices(
            rank,
            _devices.numbers(self._map_to(member)),
            _devices.numbers(self._map_back(member)),
            member.has_our_cards,
            self.maps_itself,
        )

    def enter_program(self, address):
        """A program in C++ that can be called from now on."""
        name, number, pid = self.node.join(address)
        if any(m.info.name == name for m in self._members.values()):
            raise RuntimeError(f"{name} is a member of this group already: give the program in C++ another name")
        info = _group.WorkerInfo(name, number)
        self._programs = {**self._programs, number: _programs.Program(info, pid, address, {})}
        return info

    def _known(self, rank):
        """The member, or program in C++, of that number; or None."""
        return self._members.get(rank) or self._programs.get(rank)

    def _add_worker(self):
        """Called by a worker that is about to run a request while no other waits for messages."""
        with self._lock:
            if not self.is_running or len(self._threads) >= _MOST_WORKERS:
                return
            thread = threading.Thread(
                target=self.node.run, args=(self,), name=f"onecopy-rpc-{self.info.name}", daemon=True
            )
            self._threads.append(thread)
        thread.start()

    def answering(self):
        """How many requests of others run here, or have run and are not answered yet."""
        return self.node.serving

    def finish_answers(self):
        """For a member that leaves when all have met: those that wait for its last answers get them before its farewell.
        A request that runs for long is left alone."""
        end = time.monotonic() + _PATIENCE
        own = threading.current_thread() in self._threads
        while self.answering() > own and time.monotonic() < end:
            self.node.wait_for_served(own, _SLICE)

    def stop(self):
        """Ends all threads, and tells the others. Pending calls fail. A request that runs for long is left alone."""
        self.is_running = False
        if self.node is not None:
            self.node.stop()
        self.references.stop()
        end = time.monotonic() + _PATIENCE
        with self._lock:
            threads, self._threads = self._threads, []
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(end - time.monotonic(), 0))
        self.workers.stop(_PATIENCE)

    # --- members

    def get_worker_info(self, to=None):
        if to is None:
            return self.info
        return self.member(to).info

    def get_worker_infos(self):
        return [m.info for _, m in sorted(self._members.items()) if self.is_static_group or not m.has_ended]

    def member(self, to):
        """The member of that name, rank or WorkerInfo. Throws RuntimeError for an unknown one, ValueError for a value that
        names none."""
        if isinstance(to, _group.WorkerInfo):
            to = to.id
        latest = self._members.get(self.node.number_of(to)) if type(to) is str else None
        if latest is not None and not latest.has_ended:
            return latest
        if isinstance(to, str):
            named = [m for m in (*self._members.values(), *self._programs.values()) if m.info.name == to]
            if not named:
                raise RuntimeError(
                    f"could not find destination {to}; the members are "
                    f"{', '.join(i.name for i in self.get_worker_infos())}"
                )
            return next((m for m in named if not m.has_ended), named[-1])
        if not isinstance(to, int):
            raise ValueError(f"Cannot get WorkerInfo from name {to}")
        found = self._known(to)
        if found is None:
            raise RuntimeError(f"Unknown destination worker id {to}")
        return found

    # --- sending

    def call(self, to, verb, value, *, timeout=DEFAULT, context=None, is_result=False):
        """A Future of the result. Throws TypeError for a value that cannot cross; all later failures are the Future's.
        `is_result`: its tensors answer a message of the other member, and go to the devices from which that one's came."""
        member = self.member(to)
        seconds = self.seconds_for(timeout)
        deadline = time.monotonic() + seconds if seconds else None
        future = CallFuture(self, seconds, None if verb in MAKING else context)  # no tensor comes back
        if verb in _PLAIN_VERBS and self._begin(
            future, member, seconds, lambda: self._send_plain(member, verb, context, value, deadline, future)
        ):
            return future
        devices = self._map_back(member) if is_result else self._map_to(member)
        message, given = self._message(member, verb, context, value, devices)
        self._begin(future, member, seconds, lambda: self._send(member, message, given, deadline, future))
        return future

    def result(self, to, verb, value, *, timeout=DEFAULT, context=None):
        """As call().wait(), without a Future where the value is plain. `to` is a rank."""
        result = self.call_and_wait(to, verb, value, timeout=timeout, context=context)
        if result is NotImplemented:
            result = self.call(to, verb, value, timeout=timeout, context=context).wait()
        return result

    def _send(self, member, message, given, deadline, future):
        try:
            self._check_can_send(member)
            return self.node.call(member.info.id, message, deadline, future)
        except BaseException:
            self.references.take_back(given, member.info.id)
            raise

    def _begin(self, future, member, seconds, send):
        """False when `send` returns NotImplemented; its exceptions are the Future's."""
        try:
            call = send()
            if call is NotImplemented:
                return False
            future.begin(call)
        except Timeout as error:  # of the first contact, or of another host that has not taken all of it
            future.complete(None, late(seconds, error))
        except (RuntimeError, onecopy.Error) as error:
            # Without the frames of this call: they have the future, and no collector sees through the part in C++.
            future.complete(None, self._why_not_sent(member, error).with_traceback(None))
        return True

    def call_program(self, member, function, args, kwargs, deadline, seconds):
        """A Future of the result of a function in C++. Throws TypeError for a value that cannot cross."""
        future, values = CallFuture(self, seconds), (tuple(args), kwargs or None)

        def send():
            self._check_can_send(member)
            return self.node.call_program(member.info.id, function, values, deadline, future)

        self._begin(future, member, seconds, send)
        return future

    def begin_here(self, seconds):
        """(number, Future) of a call that crosses to no other process; end_here() completes it, or its deadline."""
        deadline = time.monotonic() + seconds if seconds else None
        future = CallFuture(self, seconds)
        call = self.node.begin_here(deadline, future)
        future.begin(call)
        self._here[call.number] = future
        return call.number, future

    def end_here(self, number, value, error=None):
        self._here.pop(number).complete(value, error)

    def note(self, to, verb, value):
        """A message without an answer, in its order. Nothing happens when the member has ended."""
        member = self.member(to)
        try:
            self._check_can_send(member)
            self.node.note(member.info.id, (verb, value))
        except (RuntimeError, onecopy.Error):
            pass

    def _check_can_send(self, member):
        if not self.is_running:
            raise RuntimeError(self.why_stopped)
        if member.has_ended:
            raise PeerDied(member.why_ended)

    def _why_not_sent(self, member, error):
        if isinstance(error, PeerDied) and not member.has_ended:
            return PeerDied(self._why_ended(member.info.id))
        return error if self.is_running else RuntimeError(self.why_stopped)

    def _why_ended(self, rank):
        info = self._known(rank).info
        return f"{info} has left the group" if self.node.has_left(rank) else f"{info} has ended"

    def _message(self, member, verb, context, value, devices, what="Request"):
        """The message, and the references that it gives, (their PyRRef, fork): it is decoded in its order if there are any."""
        given = []
        try:
            return self._written(member, verb, context, value, devices, what, given), given
        except BaseException:
            self.references.take_back(given, member.info.id)
            raise

    def _written(self, member, verb, context, value, devices, what, given):
        tensors = []
        tree = _values.encode(value, tensors, lambda v: self._give(v, member, given))
        targets = _devices.targets(tensors, devices, self.info.name, member.info.name, what)
        recorded = self.record(context, tensors, member)
        count = functools.partial(self.node.count_route, member.info.id)
        if member.is_far:
            _modes.check_far(tensors, member.info)
        packed = [_devices.pack(t, count, member.is_far) for t in tensors]
        return verb, context.id if context is not None else None, recorded, tree, packed, targets

    def _give(self, value, member, given):
        if not isinstance(value, PyRRef):
            return None
        parts = self.references.give(value, member.info.id)
        given.append((value, parts[2]))
        return parts

    def _map_to(self, member):
        return self._completed(member, _devices.parse_map(self.device_maps.get(member.info.name, {})))

    def _completed(self, member, devices):
        return _devices.Automatic(devices) if self.maps_itself and member.has_our_cards else devices

    def _map_back(self, member):
        """Of results and gradients: the inverse of the other's map, and this process's own map."""
        theirs = _devices.inverse(_devices.parse_map(member.device_maps.get(self.info.name, {})))
        return self._completed(member, {**theirs, **self._map_to(member)})

    # --- receiving

    def _take_call(self, number, sender, deadline, message):
        """In the order of the lane. Returns the function that does the rest, or None."""
        verb, context_id, *_ = message
        if deadline is not None and time.monotonic() > deadline:  # the caller has given up
            self._let_go(message, sender)
            return None
        context = None if context_id is None else registry.autograd().context(context_id, sender, make=True)
        try:
            value = self._with_cells(verb, self._decode(message, sender, context), sender)
        except Exception as error:
            self._fail_made(message, sender, error)
            self._refuse(number, sender, error)
            return None
        return functools.partial(self._serve, number, sender, verb, context, value)

    def _let_go(self, message, sender):
        """Drops the references that a message gives, which count from its arrival on."""
        with contextlib.suppress(Exception):  # of a value that cannot be read here
            self._decode(message, sender, None)

    def _with_cells(self, verb, value, sender):
        """The value of a request, with cells of this process for references to them."""
        if verb in MAKING:
            value = (self._enter(tuple(value[0]), sender), *value[1:])
        at = _CELL_AT.get(verb)
        if at is None:
            return value
        return (*value[:at], self.references.owned.cell(tuple(value[at])), *value[at + 1 :])

    def _fail_made(self, message, sender, error):
        """Those that ask for the value of such a request do not wait for it."""
        if message[0] in MAKING:
            with contextlib.suppress(Exception):  # of a message that no member writes
                self._enter(tuple(message[3][0]), sender).set(self.refusal(error))

    def _enter(self, reference, holder):
        """The cell of a reference that its maker counts on. It outlives the entry, which a quick drop may end."""
        if holder != self.info.id:
            self.references.owned.count(reference, holder)
        return self.references.owned.cell(reference)

    def _outcome_of(self, message, sender, future):
        """(value, error, points) of an answer: points in streams behind which the value's tensors are there. `future` is
        None for a call that a thread waits for without one."""
        context = (
            None
            if message[1] is None
            else future.context
            if future is not None
            else registry.autograd().context(message[1], sender, make=False)
        )
        return self._outcome_in(message, sender, context)

    def _outcome_in(self, message, sender, context, is_on_cards=True):
        try:
            value = self._decode(message, sender, context)
            if len(message) == 4:
                return value, None, _devices.points_of_plain(value) if is_on_cards else ()
            error = RemoteFailure(*value).exception() if message[0] == "failure" else None
            return value, error, _devices.points(message[5])
        except Exception as failure:
            return None, failure, ()

    def outcome(self, call, seconds, context=None):
        """(value, error, points) of a call that has ended, made in that context."""
        if call.end_kind == _ANSWERED:
            try:
                is_plain, answer, is_on_cards = call.take_answer()
            except Exception as failure:  # of a program in C++, or one that cannot be read here
                return None, failure, ()
            if is_plain:
                return answer, None, _devices.points_of_plain(answer) if is_on_cards else ()
            return answer if is_plain is None else self._outcome_in(answer, call.member, context, is_on_cards)
        if call.end_kind == _LATE:
            return None, late(seconds), ()
        if call.end_kind == _ENDED:
            return None, PeerDied(self._why_ended(call.member)), ()
        return None, RuntimeError(self.why_stopped), ()

    def _result_of(self, call, seconds):
        """The result of a plain call that was not answered plainly."""
        return self._result(self.outcome(call, seconds))

    @staticmethod
    def _result(outcome):
        value, error, points = outcome
        if error is not None:
            raise error
        if points:
            _devices.wait_for(points)
        return value

    def _take_note(self, sender, message):
        verb, value = message
        note_handlers[verb](self, sender, value)

    def _take_end(self, rank, has_left):
        """Behind all that the member had put into its lane."""
        member = self._known(rank)
        if member is None:
            return
        if not member.has_ended:
            member.why_ended, member.has_ended = self._why_ended(rank), True
        self.references.owned.forget_member(rank)
        for hook in end_hooks:
            hook(rank)

    def _decode(self, message, sender, context):
        if len(message) == 4:
            _, _, recorded, value = message
            return value if recorded is None or context is None else self._attach(value, recorded, context, sender)
        _, _, recorded, tree, packed, targets = message
        tensors = [_devices.unpack(t, target) for t, target in zip(packed, targets)]
        if recorded is not None and context is not None:
            registry.autograd().arrived(context, recorded, tensors, sender)

        def take(owner, reference, fork, giver):
            return self.references.take(self.rref_class, owner, tuple(reference), tuple(fork), giver)

        return _values.decode(tree, tensors, take)

    rref_class = PyRRef

    # --- serving

    def _serve(self, number, sender, verb, context, value):
        member = self._members.get(sender)
        if member is None or member.has_ended:  # None: it ended while it joined
            return
        self.node.begin_serving()
        before = registry.swap_context(context)
        try:
            try:
                result = handlers[verb](self, sender, value)
            finally:
                registry.swap_context(before)
            if isinstance(result, Deferred):
                self._answer_once_done(number, sender, context, result)
            else:
                self._answer(number, sender, context, result, verb in _PLAIN_VERBS)
        except Exception as error:
            self._answer_failure(number, sender, self._failure(error))
        finally:
            self.node.end_serving()

    def _serve_quick(self, sender, number, deadline, trace, name, args, kwargs):
        """A tuple of the answer of a native call; None if it goes its own way."""
        trace = trace or _quick.trace_of(self.get_worker_info(sender), number)
        result = handlers["native"](self, sender, (-number, deadline, trace, name, args, kwargs or {}))
        return self._answer_of(number, sender, result)

    def _answer_of(self, number, sender, result):
        """A tuple of the result of a call without a context, if that is the answer; None if it goes its own way."""
        if isinstance(result, RemoteFailure):
            self._answer_failure(number, sender, result)
        elif isinstance(result, Deferred):
            self._answer_once_done(number, sender, None, result)
        else:
            return (result,)

    def _answer_once_done(self, number, sender, context, later):
        later.future.add_done_callback(
            lambda f: self.workers.run(self._answer_later, number, sender, context, later.then, f)
        )

    def _answer_later(self, number, sender, context, then, future):
        try:
            with registry.within(context):
                self._answer(number, sender, context, then(future.value()))
        except Exception as error:
            self._answer_failure(number, sender, self._failure(error))

    @staticmethod
    def _failure(error):
        return RemoteFailure(type(error), str(error))

    def _answer(self, number, sender, context, result, may_be_plain=False):
        if isinstance(result, RemoteFailure):
            self._answer_failure(number, sender, result)
            return
        member = self._known(sender)
        if may_be_plain and self._answer_in_plain(member, number, context, result):
            return
        message, given = self._message(member, "result", context, result, self._map_back(member), "Response")
        self._put_answer(member, number, message, bool(given))

    def _answer_failure(self, number, sender, failure):
        if sender not in self._members:  # a program in C++
            self.node.answer_program(sender, number, getattr(failure.kind, "code", ""), failure.text)
            return
        member = self.member(sender)
        for kind in (failure.kind, RuntimeError):
            try:
                message, _ = self._message(member, "failure", None, (kind, failure.text), {}, "Response")
            except _values.RefusedValue:
                continue
            self._put_answer(member, number, message, False)
            return

    def _put_answer(self, member, number, message, is_in_order, form=GENERAL):
        """False for a message that has no such form."""
        try:
            self._check_can_send(member)
            return self.node.answer(member.info.id, number, message, is_in_order, form)
        except (RuntimeError, onecopy.Error):
            return True  # the caller has ended, or this process leaves

    # --- reports

    def pending_count(self):
        return self.node.calls_under_way

    def get_debug_info(self):
        info = {
            "agent.num_pending_requests": str(self.pending_count()),
            "agent.thread_pool_size": str(self.num_worker_threads),
            "agent.num_idle_threads": str(self.node.idle_workers),
            "agent.client_active_calls": str(self.pending_count()),
            "agent.server_active_calls": str(self.answering()),
            "agent.server_active_async_calls": "0",
        }
        if self.has_gil_profiling:
            info["agent.gil_average_wait_time_us"] = "0"
        return info
