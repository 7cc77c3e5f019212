# SPDX-License-Identifier: Apache-2.0
"""The agent, by which this process is a member of a group.

_core._RpcEndpoint sends and serves calls (see python/src/rpc/python_endpoint.h). The agent decides the rare cases: how
functions are named and found (serving.py), who the members are, and what an error says.

Invariants: the Future of a call completes once, by the answer, the deadline, the end of the member, or shutdown. The
end of a member is handled after all messages in its lane.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import onecopy

from .. import _core, errors
from ..errors import PeerDied
from . import device_maps, devices, elastic, peers, registry, telemetry, values, verbs  # noqa: F401 - verbs enters its functions
from .errors import Busy, Cancelled, RemoteFailure, late
from .futures import CallFuture
from .peers import Member, Options, WorkerInfo
from .registry import handlers
from .rref_table import References
from .serving import Serving

_PATIENCE = 5.0  # seconds that stop() waits for requests that still run
_SLICE = 0.1  # seconds of one wait: signal handlers of Python run in between
_MAX_WORKERS = 1024

_ERRORS = {**errors._BY_CODE, Busy.code: Busy, Cancelled.code: Cancelled}


class Agent(Serving):
    """A member of a group: this process.

    Attributes:
        info, options: the WorkerInfo and the options of this process.
        endpoint: a _core._RpcEndpoint once the id of this process is known, or else None.
        references: the references to values of members.
    Thread safety: all members except start() and stop() may be called concurrently."""

    marked_type, unmarked = devices.MarkedTensor, staticmethod(devices.unmarked)
    points_behind = staticmethod(devices.points_behind)
    wait_for_points = staticmethod(devices.wait_for)

    def __init__(self, store: Any, name: str, rank: int, world_size: int | None, options: Options) -> None:
        """Makes an agent of a group. Without a world size, members join and leave the group at any time."""
        super().__init__()
        self.info, self.options, self.is_static_group = WorkerInfo(name, rank), options, bool(world_size)
        self.store, self._world_size, self.cards = store, world_size or 0, peers.visible_cards()
        self.is_running, self.why_stopped = True, "RPC agent is shut down"
        self.references = References(self)
        self._lock, self._threads = threading.Lock(), list[threading.Thread]()
        self._members: dict[int, Member] = {}

    def seconds_for(self, timeout: float | None) -> float:
        """Returns the limit in seconds of a call with this timeout; 0 for no limit."""
        return self.endpoint.timeout if timeout is None or timeout < 0 else timeout

    # --- joining and leaving

    def make_endpoint(self) -> None:
        """Makes the endpoint. REQUIRES: this process's id in the group is known."""
        self.endpoint = _core._RpcEndpoint(self, values, self.info.name, self.info.id, self.options.transport)
        self.endpoint.timeout = self.options.rpc_timeout
        self.endpoint.set_limit(self.options.max_calls, self.options.refuses_calls)

    def start(self) -> None:
        """Joins the group, and returns when all members have joined. Raises RuntimeError that names a missing
        member."""
        if self.is_static_group:
            peers.join(self, self._world_size)
        else:
            elastic.join(self)

    def open(self, found: list[Member]) -> None:
        """Adds members, including this process, so that this process can send."""
        for member in found:
            self.add_member(member)
        if registry.hooks is not None:
            registry.hooks.started(self)

    def start_serving(self) -> None:
        """Starts serving calls. REQUIRES: this process knows every member, and every member knows this process."""
        self._add_worker()

    def _add_worker(self) -> None:
        """Starts a worker. Called by a worker that is about to run a request while no other worker waits for
        messages."""
        with self._lock:
            if not self.is_running or len(self._threads) >= _MAX_WORKERS:
                return
            thread = threading.Thread(target=self._work, name=f"onecopy-rpc-{self.info.name}", daemon=True)
            self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        self.endpoint.run()
        with self._lock:
            if self.is_running:  # more workers waited than needed
                self._threads.remove(threading.current_thread())

    def finish_answers(self) -> None:
        """Waits until this process has sent its last answers, for up to _PATIENCE seconds."""
        end = time.monotonic() + _PATIENCE
        own = threading.current_thread() in self._threads
        while self.endpoint.serving > own and time.monotonic() < end:
            self.endpoint.wait_for_served(own, _SLICE)

    def stop(self) -> None:
        """Leaves the group: fails pending calls, tells the other members, and ends all threads. A thread whose request
        runs for longer than _PATIENCE seconds is left running."""
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

    def add_member(self, member: Member) -> None:
        """Adds a member."""
        rank = member.info.id
        self._members = {**self._members, rank: member}  # other threads may iterate over the previous dict
        self.endpoint.join(member.address)
        member.endpoint = self.endpoint
        member.is_far = self.endpoint.is_far(rank)
        member.has_our_cards = not member.is_far and member.cards == self.cards
        self.endpoint.set_devices(
            rank,
            device_maps.numbers(self.map_to(member)),
            device_maps.numbers(self.map_back(member)),
            member.has_our_cards,
            self.options.maps_itself,
        )

    def add_program(self, address: bytes) -> WorkerInfo:
        """Adds a program in C++, so that its functions can be called."""
        name, number, _ = self.endpoint.join(address, True)
        if any(m.info.name == name and not m.is_program for m in self._members.values()):
            raise RuntimeError(f"{name} is a member of this group already: give the program in C++ another name")
        member = Member(WorkerInfo(name, number), address, {})
        member.is_program, member.endpoint = True, self.endpoint
        self._members = {**self._members, number: member}
        return member.info

    def connect_far(self) -> None:
        """Connects to members on other hosts, since only a closed connection reports their end. The member with the
        lower rank connects."""
        for rank, member in self._members.items():
            if member.is_far and rank > self.info.id:
                self.endpoint.connect(rank, self.options.join_timeout)

    def get_worker_info(self, to: Any = None) -> WorkerInfo:
        """Returns the WorkerInfo of a member, or of this process."""
        return self.info if to is None else self.member(to).info

    def get_worker_infos(self) -> list[WorkerInfo]:
        """Returns all members of a static group, or the living members of another."""
        known = sorted(self._members.items())
        return [m.info for _, m in known if not m.is_program and (self.is_static_group or not m.has_ended)]

    def member(self, to: Any) -> Member:
        """Returns the member of that name, rank or WorkerInfo. Raises RuntimeError for an unknown member, ValueError
        for a value of another type."""
        if isinstance(to, WorkerInfo):
            to = to.id
        if isinstance(to, str):
            named = [m for m in self._members.values() if m.info.name == to]
            if not named:
                raise RuntimeError(
                    f"could not find destination {to}; the members are "
                    f"{', '.join(i.name for i in self.get_worker_infos())}"
                )
            return next((m for m in reversed(named) if not m.has_ended), named[-1])
        if not isinstance(to, int):
            raise ValueError(f"Cannot get WorkerInfo from name {to}")
        found = self._members.get(to)
        if found is None:
            raise RuntimeError(f"Unknown destination worker id {to}")
        return found

    def member_ids(self) -> list[int]:
        """Returns the ids of all members and programs, including ended ones."""
        return list(self._members)

    # --- where tensors go

    def target_of(self, tensor: Any, receiver: int, is_result: bool) -> str:
        """Returns the device of the receiver to which a tensor goes. Raises RuntimeError for a device without a
        target."""
        member = self._members[receiver]
        found = self.map_back(member) if is_result else self.map_to(member)
        what = "Response" if is_result else "Request"
        return device_maps.target(tensor, found, self.info.name, member.info.name, what)

    def map_to(self, member: Member) -> device_maps.DeviceMap:
        """Returns the device map of calls."""
        return self._completed(member, device_maps.parse_map(self.options.device_maps.get(member.info.name, {})))

    def map_back(self, member: Member) -> device_maps.DeviceMap:
        """Returns the device map of results and gradients: the inverse of the other member's map, overridden by this
        process's map."""
        theirs = device_maps.inverse(device_maps.parse_map(member.device_maps.get(self.info.name, {})))
        return self._completed(member, {**theirs, **self.map_to(member)})

    def _completed(self, member: Member, known: device_maps.DeviceMap) -> device_maps.DeviceMap:
        return device_maps.Automatic(known) if self.options.maps_itself and member.has_our_cards else known

    # --- how they end

    def take_end(self, rank: int, session: int) -> None:
        """Handles the end of a session with a member, after all its messages."""
        member = self._members.get(rank)
        if member is None:
            return
        member.ended_session = session
        if member.is_far:  # the member may reconnect
            self.references.lose(rank, session)
        self.references.owned.forget_member(rank)

    # --- sending

    def call_verb(self, to: int, verb: str, args: tuple[Any, ...], timeout: float | None = -1.0) -> Any:
        """Calls a verb of a member, and returns the result."""
        return self.endpoint.call_verb(to, verb, args, self.seconds_for(timeout))

    def begin_verb(
        self,
        to: int,
        verb: str,
        args: tuple[Any, ...],
        timeout: float | None = -1.0,
        *,
        is_result: bool = False,
    ) -> CallFuture:
        """Returns a Future of the result of a verb. Raises TypeError for a value that cannot be sent."""
        future = CallFuture(self, self.seconds_for(timeout))
        self.endpoint.begin_verb(to, verb, args, future.seconds, is_result, None, future)
        return future

    def note(self, to: int, verb: str, value: Any) -> None:
        """Sends a message that has no answer, in order. Has no effect if the member has ended."""
        self.endpoint.note(to, verb, value)

    # --- what the endpoint asks for: see python/src/rpc/python_endpoint.h

    @staticmethod
    def context(context_id: int, sender: int, make: bool) -> Any:
        """Returns a context of distributed autograd, or None: see registry.AutogradHooks."""
        return registry.autograd().context(context_id, sender, make)

    def error_named(self, code: str, text: str) -> Exception:
        """Makes the error of C++ that has this code."""
        return _ERRORS.get(code, onecopy.Error)(text)

    def end_error(self, code: str, text: str, to: int, seconds: float) -> Exception:
        """Makes the error of a call that was not sent or ended without an answer."""
        if code == "timeout":  # `text` tells of a failed first contact, or of another host that took a part only
            return late(seconds, text)
        if code == "peer_died":
            return PeerDied(self._members[to].why_ended())
        return self.error_named(code, text) if self.is_running and text else RuntimeError(self.why_stopped)

    @staticmethod
    def exception_of(failure: tuple[type, str]) -> Exception:
        """Makes the exception of an answer."""
        return RemoteFailure(*failure).exception()

    def take_note(self, sender: int, note: tuple[str, Any]) -> None:
        """Handles a note. Called in the order of the lane."""
        name, value = note
        if name.startswith("."):
            raise ValueError(f"{name} is called, and came as a note")
        handlers[name][0](self, sender, value)

    is_logged = staticmethod(telemetry.is_logged)
    log = staticmethod(telemetry.log.debug)
