# SPDX-License-Identifier: Apache-2.0
"""Joins groups, gathers values of all members, and leaves groups.

Thread safety: all functions may be called concurrently, but a process joins and leaves one group at a time.
"""

from __future__ import annotations

import atexit
import datetime
import itertools
import os
import threading
import time
import urllib.parse
from collections.abc import Callable, Collection
from typing import Any

import torch
import torch.distributed
from torch.distributed.rendezvous import _rendezvous_helper

from . import device_maps, elastic, registry
from .peers import Options
from .registry import verb

UNSET_TIMEOUT = -1.0
_NO_LIMIT = 10.0**9  # seconds

_groups = itertools.count()


# --- joining


def open_store(options: Options, name: str, rank: int, world_size: int | None) -> tuple[Any, str, int, int]:
    """Returns (store, name, rank, world size) of a group. Rank and size come from the arguments, the query of the init
    method or the environment. A group of size 0 is dynamic.

    Raises RuntimeError if other members made a group of the other kind, ValueError in a group of fixed size without a
    rank."""
    url = urllib.parse.urlparse(options.init_method)
    query, of_env = dict(urllib.parse.parse_qsl(url.query)), os.environ if url.scheme == "env" else {}
    rank = rank if rank >= 0 else int(query.get("rank", of_env.get("RANK", -1)))
    size = world_size or int(query.get("world_size", of_env.get("WORLD_SIZE", 0)))
    if size and rank < 0:
        raise ValueError("init_rpc() needs this member's rank: give rank, or set RANK")
    store = _rendezvous(options, rank, size)
    numbered = torch.distributed.PrefixStore(f"onecopy/rpc/{next(_groups)}", store)
    elastic.check_kind(numbered, "static" if size else "dynamic")
    # All dynamic groups share one name, since the number of a restarted process would not match.
    return numbered if size else torch.distributed.PrefixStore("onecopy/rpc/dynamic", store), name, rank, size


def _rendezvous(options: Options, rank: int, size: int) -> Any:
    """Returns the store of the init method. Raises RuntimeError if members do not meet within join_timeout seconds."""
    limit = datetime.timedelta(seconds=options.join_timeout or _NO_LIMIT)
    try:
        return next(_rendezvous_helper(options.init_method, rank, size or None, timeout=limit))[0]
    except torch.distributed.DistError as error:
        raise RuntimeError(
            f"rank {rank} did not meet the other members at {options.init_method} within {limit.total_seconds():g} s "
            f"(join_timeout): {error}"
        ) from error


def start(agent: Any) -> None:
    """Makes `agent` the agent of this process and joins its group. Raises RuntimeError if joining fails. All members
    raise ValueError if device maps do not fit."""
    registry.set_current(agent)
    try:
        agent.start()
        if agent.is_static_group:
            maps = all_gather(device_maps.own_facts(agent.options), timeout=agent.options.join_timeout or None)
            _check_maps(agent, maps)
    except BaseException:
        registry.set_current(None)
        agent.stop()
        raise


def _check_maps(agent: Any, maps: dict[str, Any]) -> None:
    try:
        device_maps.check_maps(maps)
    except BaseException:
        agent.finish_answers()
        raise


# --- gathering


class AllGatherStates:
    """The state of a gathering in its leader or in a follower."""

    def __init__(self) -> None:
        self.gathered_objects: dict[str, Any] = {}
        self.proceed_signal = threading.Event()
        self.error: str | None = None


_gather_lock = threading.RLock()
_gather_numbers: dict[str, int] = {}
_gatherings: dict[str, AllGatherStates] = {}


def _gathering(key: str) -> AllGatherStates:
    with _gather_lock:
        return _gatherings.setdefault(key, AllGatherStates())


def gather_to_leader(key: str, name: str, obj: Any, names: Collection[str]) -> None:
    """Adds a member's object. Called in the leader."""
    state = _gathering(key)
    with _gather_lock:
        if name in state.gathered_objects:
            raise AssertionError(f"{name} reported intent sequence id {key} twice. ")
        state.gathered_objects[name] = obj
        if set(names) == set(state.gathered_objects):
            state.proceed_signal.set()


def broadcast_to_followers(key: str, objects: dict[str, Any], error: str | None = None) -> None:
    """Sets the objects of all members, or the reason why there are none. Called in each follower."""
    state = _gathering(key)
    if state.proceed_signal.is_set():
        raise AssertionError(f"Termination signal sequence id {key} got set twice.")
    state.gathered_objects, state.error = objects, error
    state.proceed_signal.set()


take_broadcast: Callable[..., None] = broadcast_to_followers  # torch's interface may replace it


@verb(".gather")
def _gather(agent: Any, caller: int, *args: Any) -> None:
    gather_to_leader(*args)


@verb(".broadcast")
def _broadcast(agent: Any, caller: int, *args: Any) -> None:
    take_broadcast(*args)


def all_gather(
    obj: Any, worker_names: Collection[str] | None = None, timeout: float | None = UNSET_TIMEOUT
) -> dict[str, Any]:
    """Returns {name: object} of all members, or of the given members, once each of them has called all_gather(). Raises
    RuntimeError that names a member which has ended or did not call within `timeout` seconds."""
    agent = registry.current()
    names = set(worker_names or (i.name for i in agent.get_worker_infos()))
    leader = min(names)
    with _gather_lock:
        key = "".join(sorted(names))
        number = _gather_numbers[key] = _gather_numbers.get(key, -1) + 1
        key += str(number)
    seconds = None if not timeout or timeout < 0 else timeout
    of_calls = agent.endpoint.timeout if timeout == UNSET_TIMEOUT else seconds or 0
    try:
        gather = _lead if agent.info.name == leader else _follow
        return gather(agent, key, obj, names, seconds, of_calls)
    finally:
        with _gather_lock:
            _gatherings.pop(key, None)


def _lead(agent: Any, key: str, obj: Any, names: set[str], seconds: float | None, of_calls: float) -> dict[str, Any]:
    """Waits for all members, and sends the gathered objects, or the reason why there are none, to all of them."""
    gather_to_leader(key, agent.info.name, obj, names)
    failure = _wait_for(agent, key, names, seconds)
    gathered = _gathering(key).gathered_objects
    told = (key, gathered) if failure is None else (key, gathered, failure)
    others = names - {agent.info.name}
    futures = {n: agent.begin_verb(agent.member(n).info.id, ".broadcast", told, of_calls) for n in others}
    errors = []
    for name, future in futures.items():
        try:
            future.wait()
        except RuntimeError as error:
            errors.append((name, error))
    if failure is not None:
        raise RuntimeError(failure)
    if errors:
        raise RuntimeError(
            f"Followers {[n for n, _ in errors]} timed out in _all_gather after "
            f"{of_calls:.2f} seconds. The first exception is {errors[0][1]}"
        )
    return gathered


def _follow(agent: Any, key: str, obj: Any, names: set[str], seconds: float | None, of_calls: float) -> dict[str, Any]:
    state, leader = _gathering(key), min(names)
    if not state.proceed_signal.is_set():  # otherwise the leader has given up and may have left
        try:
            args = (key, agent.info.name, obj, sorted(names))
            agent.call_verb(agent.member(leader).info.id, ".gather", args, of_calls)
        except RuntimeError:
            if not state.proceed_signal.is_set():
                raise
        failure = _wait_for(agent, key, {leader}, seconds)
        if failure is not None:
            raise RuntimeError(failure)
    if state.error is not None:
        raise RuntimeError(state.error)
    return state.gathered_objects


def _wait_for(agent: Any, key: str, names: set[str], seconds: float | None) -> str | None:
    """Waits until the gathering is complete, and returns None or the reason why the gathering cannot complete."""
    state, step = _gathering(key), 0.1
    end = None if seconds is None else time.monotonic() + seconds
    while not state.proceed_signal.wait(step):
        missing = sorted(names - set(state.gathered_objects)) or sorted(names)
        ended = [agent.member(n).why_ended() for n in missing if agent.member(n).has_ended_for_good()]
        if state.proceed_signal.is_set():
            break
        if ended:
            return f"not all members have met: {', '.join(ended)}"
        if end is not None and time.monotonic() >= end:
            return f"not all members have met: {', '.join(missing)} did not come within {seconds:g} s"
    return None


# --- leaving


def shutdown(
    graceful: bool = True,
    timeout: float = 0.0,
    wait_for_all: Callable[[float], Any] = lambda seconds: all_gather(None, timeout=seconds),
    delete_references: Callable[[], None] | None = None,
) -> dict[Any, Any]:
    """Leaves the group and ends all threads of rpc. Returns the references that others still hold to values of this
    process, as {reference: {holder: number}}.

    A graceful shutdown waits until no call is pending and, in a group of fixed size, until all members have called it.
    Raises RuntimeError if a member has ended or `timeout` seconds have passed (0 for no limit)."""
    leaks: dict[Any, Any] = {}
    agent = registry.current()
    try:
        if graceful and not agent.is_static_group:  # others stay, and their references to values here raise
            _wait_for_answers(agent)
            agent.references.delete_all(0.0)
            elastic.leave(agent)
        elif graceful:
            _wait_for_answers(agent, timeout)  # so that no call of another member is under way when all have arrived
            wait_for_all(timeout)
            agent.references.delete_all(60.0) if delete_references is None else delete_references()
            _wait_for_answers(agent)
            leaks = agent.references.owned.held()  # before others leave and release what they hold
            all_gather(None, timeout=timeout)
            agent.finish_answers()
    finally:
        registry.set_current(None)
        agent.stop()
    return leaks


def _wait_for_answers(agent: Any, seconds: float = 0.0) -> None:
    """Waits until all calls of this process have ended, or for `seconds` (0 for no limit)."""
    settled, end = threading.Event(), time.monotonic() + seconds
    while agent.endpoint.calls_under_way and not settled.wait(0.001) and (not seconds or time.monotonic() < end):
        agent.endpoint.look()  # answers that no thread waits for stay in the lanes


@atexit.register
def _end_without_shutdown() -> None:
    if (agent := registry.this_agent) is not None:
        registry.set_current(None)
        agent.stop()
