# SPDX-License-Identifier: Apache-2.0
"""A member of a group: sends calls, runs those of others, and answers.

Each member has one inbox, a queue into which all others put. Receivers take messages out of it, one at a time and in order:
they decode them, and count references there. A request is run by the thread that took it, a reply is handed to the thread
that waits for it, and workers run what is left. A message is
(kind, call, sender, verb, context, recorded, deadline, tree, tensors, targets): plain values and tensors, and no pickle.

Invariants: a call's Future completes once, by its reply, its deadline, the end of its member, or shutdown. A member's end
is looked at behind all that it had put into the inbox before.
"""
import functools
import itertools
import logging
import os
import threading
import time

import onecopy

from ..distributed.autograd import _engine_of_this_process as autograd
from ..errors import PeerDied, Timeout
from . import _devices, _group, _values
from ._deadlines import Deadlines
from ._errors import RemoteFailure
from ._futures import CallFuture
from ._receivers import STOP, Receivers
from ._references import PyRRef, References
from ._workers import Workers

_CALL, _REPLY, _NOTE, _ENDED, _LEFT, _STOP = range(6)
_DEFAULT = -1.0
_PATIENCE = 5.0  # seconds that stop() waits for requests that still run
_log = logging.getLogger("onecopy.rpc")

_current = None
_is_forked = False


def current():
    """This process's agent. Throws RuntimeError before init_rpc(), after shutdown(), and in a child forked since."""
    if _current is None:
        if _is_forked:
            raise RuntimeError(FORKED)
        raise RuntimeError("Current RPC agent is not set! Did you initialize the RPC framework (e.g. by calling "
                           "`rpc.init_rpc`)?")
    return _current


def set_current(agent):
    global _current, _is_forked
    _current, _is_forked = agent, False


def is_forked():
    """Whether this process was forked from a member, and has joined no group since."""
    return _is_forked


FORKED = ("RPC does not survive fork(): this process was forked from a member of the group, whose threads stayed there. Start "
          "it with spawn or forkserver, or call init_rpc() in it under a name of its own")


def _leave_in_child():
    global _current, _is_forked
    if _current is not None:
        _current.is_running, _current.why_stopped = False, FORKED
        _current, _is_forked = None, True


os.register_at_fork(after_in_child=_leave_in_child)


class Later:
    """A handler's result that is not there yet: `then(value of the future)` makes it."""

    def __init__(self, future, then):
        self.future, self.then = future, then


class _Pending:
    __slots__ = ("future", "member", "context", "deadline", "seconds")

    def __init__(self, future, member, context, seconds):
        self.future, self.member, self.context, self.seconds = future, member, context, seconds
        self.deadline = time.monotonic() + seconds if seconds else None


MAKING = ("remote", "remote_method")  # requests that begin with the reference to their result
handlers = {}  # of requests: verb -> function(agent, caller's id, value)
note_handlers = {}  # of notes, called in the order of the inbox
end_hooks = []  # function(rank) of a member that has ended, called behind all that it had sent; they must not wait


def handler(table, verb):
    def enter(function):
        table[verb] = function
        return function

    return enter


class Agent:
    """Thread safety: all members may be called concurrently, but for start() and stop()."""

    def __init__(self, store, name, rank, world_size, timeout, device_maps, workers):
        self.info, self.timeout, self.device_maps = _group.WorkerInfo(name, rank), timeout, device_maps
        self.num_worker_threads = workers
        self.is_running, self.why_stopped = True, "RPC agent is shut down"
        self.inbox = onecopy.Queue()
        self._lock, self._calls, self._pending = threading.Lock(), itertools.count(1), {}
        self._serving, self.has_gil_profiling = 0, False
        self.workers, self.deadlines = Workers(name), Deadlines(self._expire)
        self.references = References(self)
        self._store, self._world_size = store, world_size
        self._members = {}
        self.receivers = Receivers(name, self._take)
        self._deaths = _group.Deaths(lambda rank: self.inbox.put((_ENDED, 0, rank)))

    def start(self):
        """Joins the group, and returns when all members have. Throws RuntimeError with the name of one that has not."""
        if not self.is_static_group:
            _dynamic.join(self)
            return
        _group.check_size(self._store, self.info, self._world_size)
        _group.announce(self._store, self.info.name, self.info.id, self.inbox, self.device_maps)
        members = {}
        for rank in range(self._world_size):
            name, pid, handle, maps = _group.find(self._store, rank, self.timeout or 60)
            inbox = self.inbox if rank == self.info.id else self._connect(name, handle)
            members[rank] = _group.Member(_group.WorkerInfo(name, rank), pid, inbox, maps)
        self.begin(members)

    @property
    def is_static_group(self):
        """Whether the members are those that it began with."""
        return self._world_size is not None

    def begin(self, members):
        """Starts to take messages. `members` has this process, too."""
        self._members = dict(members)  # before the first message is taken: it may be of any of them
        autograd.start(self.info.id, Transport(self))
        self.receivers.start()
        for member in members.values():
            self._watch(member)
        self._deaths.start()

    def enter(self, member):
        """Another member that there is from now on."""
        self._members = {**self._members, member.info.id: member}  # others iterate over the one before
        self._watch(member)

    def _watch(self, member):
        rank = member.info.id
        if rank != self.info.id and not self._deaths.watch(member.pid, rank):
            self.inbox.put((_ENDED, 0, rank))

    def _connect(self, name, handle):
        try:
            return _group.connect(handle)
        except onecopy.Error as error:
            _group.check_given_up(self._store)
            raise RuntimeError(f"worker {name} has ended while the group was made: {error}") from error

    def stop(self):
        """Ends all threads, and tells the others. What is still pending fails. A request that runs for long is left alone."""
        self.is_running = False
        self._leave()
        self.references.stop()
        self._deaths.stop()
        self.inbox.put((_STOP, 0, self.info.id))
        self._fail(lambda call: True, RuntimeError, self.why_stopped)
        self.receivers.stop(_PATIENCE)
        self.deadlines.stop()
        self.workers.stop(_PATIENCE)

    def _leave(self):
        for rank, member in list(self._members.items()):
            if rank != self.info.id:
                try:
                    self._put_into(member, (_LEFT, 0, self.info.id))
                except onecopy.Error:
                    pass  # it has ended meanwhile

    # --- members

    def get_worker_info(self, to=None):
        if to is None:
            return self.info
        return self.member(to).info

    def get_worker_infos(self):
        return [m.info for _, m in sorted(self._members.items()) if self.is_static_group or not m.has_ended]

    def member(self, to):
        """The member of that name, rank or WorkerInfo. Throws RuntimeError for an unknown one, ValueError for what names
        none."""
        if isinstance(to, _group.WorkerInfo):
            to = to.id
        if isinstance(to, str):
            named = [m for m in self._members.values() if m.info.name == to]
            if not named:
                raise RuntimeError(f"could not find destination {to}; the members are "
                                   f"{', '.join(i.name for i in self.get_worker_infos())}")
            return next((m for m in named if not m.has_ended), named[-1])
        if not isinstance(to, int):
            raise ValueError(f"Cannot get WorkerInfo from name {to}")
        if to not in self._members:
            raise RuntimeError(f"Unknown destination worker id {to}")
        return self._members[to]

    # --- sending

    def call(self, to, verb, value, *, timeout=_DEFAULT, context=None, is_result=False):
        """A Future of the result. Throws TypeError for a value that cannot cross; all later failures are the Future's.
        `is_result`: its tensors answer what the other has sent, and go to the devices that those came from."""
        member = self.member(to)
        seconds = self.timeout if timeout is None or timeout < 0 else timeout
        pending = _Pending(CallFuture(self.workers), member.info.id, context, seconds)
        number = next(self._calls)
        devices = self._map_back(member) if is_result else self._map_to(member)
        message = self._message(member, _CALL, number, verb, context, pending.deadline, value, devices)
        with self._lock:
            self._pending[number] = pending
        try:
            self._put(member, message)
        except (RuntimeError, onecopy.Error) as error:
            self._complete(number, None, error)
            return pending.future
        if pending.deadline is not None:
            self.deadlines.at(pending.deadline)
        return pending.future

    def begin_here(self, seconds):
        """(number, Future) of a call that crosses to no other process; end_here() completes it, or its deadline."""
        pending, number = _Pending(CallFuture(self.workers), self.info.id, None, seconds), next(self._calls)
        with self._lock:
            self._pending[number] = pending
        if pending.deadline is not None:
            self.deadlines.at(pending.deadline)
        return number, pending.future

    def end_here(self, number, value, error=None):
        self._complete(number, value, error)

    def note(self, to, verb, value):
        """A message that nobody answers, seen in its order. Nothing happens when the member has ended."""
        member = self.member(to)
        try:
            self._put(member, (_NOTE, 0, self.info.id, verb, None, None, None, value, [], []))
        except (RuntimeError, onecopy.Error):
            pass

    def _put(self, member, message):
        if not self.is_running:
            raise RuntimeError(self.why_stopped)
        self._put_into(member, message)

    @staticmethod
    def _put_into(member, message):
        inbox = member.inbox
        if member.has_ended:  # and its inbox may be gone
            raise PeerDied(member.why_ended)
        inbox.put(message)

    def _message(self, member, kind, number, verb, context, deadline, value, devices):
        tensors = []
        tree = _values.encode(value, tensors, lambda v: self._give(v, member))
        what = "Response" if kind == _REPLY else "Request"
        targets = _devices.targets(tensors, devices, self.info.name, member.info.name, what)
        recorded = context.record_sent(tensors, member.info.id) if context is not None else None
        packed = [_devices.pack(t) for t in tensors]
        return (kind, number, self.info.id, verb, context.id if context is not None else None, recorded, deadline, tree,
                packed, targets)

    def _give(self, value, member):
        return self.references.give(value, member.info.id) if isinstance(value, PyRRef) else None

    def _map_to(self, member):
        return _devices.parse_map(self.device_maps.get(member.info.name, {}))

    def _map_back(self, member):
        """Of results and gradients: the inverse of the other's map, and what this process says for others."""
        return {**_devices.inverse(_devices.parse_map(member.device_maps.get(self.info.name, {}))), **self._map_to(member)}

    # --- receiving

    def _take(self):
        """Handles the next message. What is left to do for a request is returned."""
        try:
            message = self.inbox.get()
        except onecopy.Error as error:  # an item whose memory ended with its sender
            _log.warning("a message was lost: %s", error)
            return None
        return _TAKE[message[0]](self, message)

    def _take_call(self, message):
        _, number, sender, verb, context_id, recorded, deadline, *_ = message
        if deadline is not None and time.monotonic() > deadline:
            return None  # the caller has given up
        context = None if context_id is None else autograd.get_or_create(context_id)
        if context is not None:
            context.know(sender)
        try:
            value = self._decode(message, context)
            if verb in MAKING:
                value = (self._enter(tuple(value[0]), sender), *value[1:])
        except Exception as error:
            kind = RuntimeError if isinstance(error, AttributeError) else type(error)  # a name that is not here
            self._answer_failure(number, sender, RemoteFailure(kind, f"On {self.info}:\n{error}"))
            return None
        return functools.partial(self._serve, number, sender, verb, context, value)

    def _enter(self, reference, holder):
        """The cell of a reference that its maker counts on. It outlives the entry, which a quick drop may end."""
        if holder != self.info.id:
            self.references.owned.count(reference, holder)
        return self.references.owned.cell(reference)

    def _take_reply(self, message):
        number, verb = message[1], message[3]
        with self._lock:
            pending = self._pending.pop(number, None)
        if pending is None:
            return  # late: it has timed out
        try:
            value = self._decode(message, pending.context)
            pending.future.points = _devices.points(message[9])
            error = RemoteFailure(*value).exception() if verb == "failure" else None
        except Exception as failure:
            value, error = None, failure
        pending.future.complete(value, error)

    def _take_note(self, message):
        note_handlers[message[3]](self, message[2], message[7])

    def _take_end(self, message):
        self._end(message[2], "has ended")

    def _take_left(self, message):
        self._end(message[2], "has left the group")

    def _end(self, rank, why):
        """Behind all that the member had put here."""
        member = self._members.get(rank)
        if member is None:  # it ended while it joined
            return
        if not member.has_ended:
            member.why_ended, member.has_ended = f"{member.info} {why}", True
            member.inbox = None
        self.references.owned.forget_member(rank)
        self._fail(lambda p: p.member == rank, PeerDied, member.why_ended)
        for hook in end_hooks:
            hook(rank)

    def _take_stop(self, message):
        return STOP

    def _decode(self, message, context):
        _, _, sender, _, _, recorded, _, tree, packed, targets = message
        tensors = [_devices.unpack(t, target) for t, target in zip(packed, targets)]
        if recorded is not None and context is not None:
            context.attach_received(recorded, tensors, sender)

        def take(owner, reference, fork, giver):
            return self.references.take(self.rref_class, owner, tuple(reference), tuple(fork), giver)

        return _values.decode(tree, tensors, take)

    rref_class = PyRRef

    # --- serving

    def _serve(self, number, sender, verb, context, value):
        member = self._members.get(sender)
        if member is None or member.has_ended:  # None: it ended while it joined
            return
        with self._lock:
            self._serving += 1
        try:
            with autograd.within(context):
                result = handlers[verb](self, sender, value)
            if isinstance(result, Later):
                result.future.add_done_callback(
                    lambda f: self.workers.run(self._answer_later, number, sender, context, result.then, f))
                return
            self._answer(number, sender, context, result)
        except Exception as error:
            self._answer_failure(number, sender, self._failure(error))
        finally:
            with self._lock:
                self._serving -= 1

    def _answer_later(self, number, sender, context, then, future):
        try:
            with autograd.within(context):
                self._answer(number, sender, context, then(future.value()))
        except Exception as error:
            self._answer_failure(number, sender, self._failure(error))

    @staticmethod
    def _failure(error):
        return RemoteFailure(type(error), str(error))

    def _answer(self, number, sender, context, result):
        if isinstance(result, RemoteFailure):
            self._answer_failure(number, sender, result)
            return
        member = self.member(sender)
        message = self._message(member, _REPLY, number, "result", context, None, result, self._map_back(member))
        self._put_answer(member, message)

    def _answer_failure(self, number, sender, failure):
        member = self.member(sender)
        for kind in (failure.kind, RuntimeError):
            try:
                message = self._message(member, _REPLY, number, "failure", None, None, (kind, failure.text), {})
            except _values.Refused:
                continue
            self._put_answer(member, message)
            return

    def _put_answer(self, member, message):
        try:
            self._put(member, message)
        except (RuntimeError, onecopy.Error):
            pass  # the caller has ended, or this process leaves

    # --- completing

    def _complete(self, number, value, error=None):
        with self._lock:
            pending = self._pending.pop(number, None)
        if pending is not None:
            pending.future.complete(value, error)

    def _expire(self, now):
        """Fails the calls that are late; the next deadline."""
        with self._lock:
            timed = [(p.deadline, n, p) for n, p in self._pending.items() if p.deadline is not None]
        for deadline, number, pending in timed:
            if deadline <= now:
                self._complete(number, None, Timeout(
                    f"RPC ran for more than set timeout ({int(pending.seconds * 1000)} ms) and will now be marked with an "
                    "error"))
        return min((deadline for deadline, _, _ in timed if deadline > now), default=None)

    def _fail(self, is_chosen, kind, why):
        with self._lock:
            numbers = [n for n, p in self._pending.items() if is_chosen(p)]
        for number in numbers:
            self._complete(number, None, kind(why))

    # --- reports

    def pending_count(self):
        with self._lock:
            return len(self._pending)

    def get_debug_info(self):
        info = {"agent.num_pending_requests": str(self.pending_count()),
                "agent.thread_pool_size": str(self.num_worker_threads),
                "agent.num_idle_threads": str(self.receivers.free),
                "agent.client_active_calls": str(self.pending_count()),
                "agent.server_active_calls": str(self._serving),
                "agent.server_active_async_calls": "0"}
        if self.has_gil_profiling:
            info["agent.gil_average_wait_time_us"] = "0"
        return info


from . import _dynamic  # noqa: E402: it enters its handlers here

_TAKE = {_CALL: Agent._take_call, _REPLY: Agent._take_reply, _NOTE: Agent._take_note, _ENDED: Agent._take_end,
         _LEFT: Agent._take_left, _STOP: Agent._take_stop}


class Transport:
    """Gradients and marks of distributed autograd between workers. Each call gives a Future."""

    def __init__(self, agent):
        self._agent = agent

    def send_gradients(self, to, *arguments):
        return self._agent.call(to, "gradients", arguments, timeout=0, is_result=True)

    def mark(self, to, *arguments):
        return self._agent.call(to, "mark", arguments, timeout=0)

    def mark_blocked(self, to, *arguments):
        return self._agent.call(to, "mark_blocked", arguments, timeout=0)

    def resolve(self, to, *arguments):
        return self._agent.call(to, "resolve", arguments, timeout=0)

    def release_context(self, to, context_id):
        self._agent.note(to, "release_context", context_id)


@handler(handlers, "gradients")
def _gradients(agent, caller, arguments):
    return Later(autograd.on_gradients(*arguments), lambda blocked: blocked)


@handler(handlers, "mark")
def _mark(agent, caller, arguments):
    return Later(autograd.on_mark(*arguments), lambda nothing: None)


@handler(handlers, "mark_blocked")
def _mark_blocked(agent, caller, arguments):
    return Later(autograd.on_mark_blocked(*arguments), lambda nothing: None)


@handler(handlers, "resolve")
def _resolve(agent, caller, arguments):
    return Later(autograd.on_resolve(*arguments), lambda blocked: blocked)


@handler(note_handlers, "release_context")
def _release_context(agent, caller, context_id):
    agent.workers.run(autograd.release, context_id, False)


@handler(note_handlers, "drop")
def _drop(agent, caller, value):
    reference, number = value
    agent.references.owned.count(tuple(reference), caller, -number)


@handler(note_handlers, "announce")
def _announce(agent, caller, value):
    reference, fork, receiver = value
    if not agent.member(receiver).has_ended:
        agent.references.owned.announce(tuple(reference), tuple(fork), receiver)


@handler(note_handlers, "accept")
def _accept(agent, caller, value):
    reference, fork = value
    agent.references.owned.accept(tuple(reference), tuple(fork), caller)
