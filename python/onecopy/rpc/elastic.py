# SPDX-License-Identifier: Apache-2.0
"""Groups that members join and leave at any time.

The store has the list of members, and a lock on it. A member that joins tells all that live, takes messages when each knows
it, and returns.
An id is given once: a member that comes back under its name gets another, so references to values of the process before it
are errors and never reach its successor.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import contextlib
import json
import os
import time

import onecopy

from . import peers
from .registry import note, verb

_MIXED = "RPC group mixes statically and dynamically initialized members which is not supported."
_NOBODY = "free"


def check_kind(store: Any, kind: Any) -> None:
    """Throws RuntimeError where other members of the group have said another kind."""
    if store.compare_set("kind", "", kind).decode() != kind:
        raise RuntimeError(f"{_MIXED} Give all of them a world_size, or none")


def join(agent: Any) -> None:
    """Makes this process a member. Throws RuntimeError when its name is taken, and when a member does not answer."""
    with _locked(agent):
        known = _load(agent.store)
        living = [entry for entry in known["members"] if _is_alive(entry["process"])]
        _check_name(living, agent.info.name)
        agent.info = peers.WorkerInfo(agent.info.name, _new_id(known, agent.info.id))
        agent.make_endpoint()
        agent.open(_members(agent, living))
        _tell(agent, living)
        agent.start_serving()  # now: a function that one member calls here may call any other
        known["ids"].append(agent.info.id)
        known["members"] = [*living, _own_entry(agent)]
        agent.store.set("members", json.dumps(known))


def leave(agent: Any) -> None:
    """Takes this process out of the list. Those that live are told as the agent stops."""
    with _locked(agent):
        known = _load(agent.store)
        known["members"] = [entry for entry in known["members"] if entry["id"] != agent.info.id]
        agent.store.set("members", json.dumps(known))


def _load(store: Any) -> Any:
    return json.loads(store.get("members")) if store.check(["members"]) else {"ids": [], "members": []}


def _check_name(living: Any, name: str) -> None:
    taken = next((entry for entry in living if entry["name"] == name), None)
    if taken is not None:
        raise RuntimeError(
            f"RPC worker name {name} is not unique: process {taken['process'][0]} has it. Give each its own"
        )


def _new_id(known: Any, wanted: Any) -> Any:
    return wanted if wanted not in known["ids"] else max(known["ids"]) + 1


def _own_entry(agent: Any) -> Any:
    return {
        "id": agent.info.id,
        "name": agent.info.name,
        "process": _process(os.getpid()),
        "address": agent.endpoint.address().hex(),
        "maps": peers.plain_maps(agent.device_maps),
        "cards": agent.cards,
    }


def _members(agent: Any, living: Any) -> Any:
    """Those that can be reached: a process may end at any moment."""
    found = {
        agent.info.id: peers.Member(agent.info, os.getpid(), agent.endpoint.address(), agent.device_maps, agent.cards)
    }
    for entry in living:
        with contextlib.suppress(onecopy.Error):
            found[entry["id"]] = _member(entry)
    return found


def _member(entry: Any) -> Any:
    info = peers.WorkerInfo(entry["name"], entry["id"])
    return peers.Member(info, entry["process"][0], bytes.fromhex(entry["address"]), entry["maps"], entry["cards"])


def _tell(agent: Any, living: Any) -> None:
    """Each that lives enters this process, and answers. Throws RuntimeError with the name of one that does not."""
    own = json.dumps(_own_entry(agent))
    others = [rank for rank in agent.member_ids() if rank != agent.info.id]
    for rank in others:
        agent.note(rank, "join", own)
    answers = {rank: agent.begin_verb(rank, ".joined", (), agent.join_timeout) for rank in others}
    for rank, answer in answers.items():
        try:
            answer.wait()
        except onecopy.errors.PeerDied:
            pass  # one member less
        except RuntimeError as error:
            raise RuntimeError(
                f"{agent.member(rank).info} did not take this process into its group: {error}"
            ) from error


@note("join")
def _enter(agent: Any, caller: int, entry: Any) -> None:
    entry = json.loads(entry)
    with contextlib.suppress(onecopy.Error):
        agent.add_member(_member(entry))


@verb(".joined")
def _joined(agent: Any, caller: int) -> None:
    return None


# --- the lock


@contextlib.contextmanager
def _locked(agent: Any) -> Iterator[Any]:
    """Throws RuntimeError when another process has the lock for longer than the agent's timeout."""
    me, store, end = json.dumps(_process(os.getpid())), agent.store, time.monotonic() + agent.join_timeout
    while not _take(store, me):
        if time.monotonic() > end:
            raise RuntimeError(
                f"process {json.loads(store.get('lock'))[0]} has been joining or leaving the group for more than "
                f"{agent.join_timeout:g} s: is it stopped?"
            )
        time.sleep(0.01)
    try:
        yield
    finally:
        store.compare_set("lock", me, _NOBODY)


def _take(store: Any, me: Any) -> bool:
    has = store.compare_set("lock", "", me).decode()
    if has == me:
        return True
    if has == _NOBODY or not _is_alive(json.loads(has)):
        return store.compare_set("lock", has, me).decode() == me
    return False


def _process(pid: Any) -> Any:
    """[pid, when it started, its host]: unique to one process."""
    with open(f"/proc/{pid}/stat") as file:
        return [pid, file.read().rpartition(")")[2].split()[19], onecopy._core._rpc_host()]


def _is_alive(process: Any) -> bool:
    if process[2] != onecopy._core._rpc_host():
        return True  # as far as is known here: a call to it says otherwise
    try:
        return _process(process[0]) == list(process)
    except OSError:
        return False
