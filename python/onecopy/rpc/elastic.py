# SPDX-License-Identifier: Apache-2.0
"""Groups that members join and leave at any time.

The store has the list of members, and a lock on it. A member that joins tells all that live, takes messages when each
knows it, and returns. A process takes the lock over from a process that has ended, and from one that has held the lock
for longer than join_timeout: nobody knows whether a process on another host lives.
An id is given once: a member that comes back under its name gets another, so references to values of the process before
it are errors and never reach its successor.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from typing import Any

import onecopy

from . import peers
from .peers import Entry
from .registry import verb

_NOBODY = "free"


def check_kind(store: Any, kind: str) -> None:
    """Raises RuntimeError where other members of the group have said another kind."""
    if store.compare_set("kind", "", kind).decode() != kind:
        raise RuntimeError(
            "RPC group mixes statically and dynamically initialized members which is not supported. Give all of them a "
            "world_size, or none"
        )


def join(agent: Any) -> None:
    """Makes this process a member. Raises RuntimeError when its name is taken, and when a member does not answer."""
    with _locked_list(agent) as known:
        living = [entry for entry in known["members"] if _is_alive(entry["process"])]
        for entry in living:
            if entry["name"] == agent.info.name:
                raise RuntimeError(
                    f"RPC worker name {entry['name']} is not unique: process {entry['process'][0]} has it. Give each "
                    "its own"
                )
        if agent.info.id in known["ids"]:
            agent.info = peers.WorkerInfo(agent.info.name, max(known["ids"]) + 1)
        agent.make_endpoint()
        own = peers.own_entry(agent)
        agent.open([peers.member_of(own)])
        for entry in living:
            _enter_if_alive(agent, entry)
        _tell(agent, own)
        agent.start_serving()  # a function that is called here may call any member
        known["ids"].append(agent.info.id)
        known["members"] = [*living, own]


def leave(agent: Any) -> None:
    """Takes this process out of the list. The agent tells the living members when it stops."""
    with _locked_list(agent) as known:
        known["members"] = [entry for entry in known["members"] if entry["id"] != agent.info.id]


def _enter_if_alive(agent: Any, entry: Entry) -> None:
    """A process may end at any moment."""
    with contextlib.suppress(onecopy.Error):
        agent.add_member(peers.member_of(entry))


def _tell(agent: Any, own: Entry) -> None:
    """Lets each living member enter this process. Raises RuntimeError with the name of one that does not answer."""
    others = [rank for rank in agent.member_ids() if rank != agent.info.id]
    for rank in others:
        agent.note(rank, "join", own)
    answers = {rank: agent.begin_verb(rank, ".joined", (), agent.options.join_timeout) for rank in others}
    for rank, answer in answers.items():
        try:
            answer.wait()
        except onecopy.errors.PeerDied:
            pass  # one member less
        except RuntimeError as error:
            raise RuntimeError(
                f"{agent.member(rank).info} did not take this process into its group: {error}"
            ) from error


@verb("join")
def _enter(agent: Any, caller: int, entry: Entry) -> None:
    _enter_if_alive(agent, entry)


@verb(".joined")
def _joined(agent: Any, caller: int) -> None:
    """Answers behind the note "join" of the same caller."""


# --- the lock


@contextlib.contextmanager
def _locked_list(agent: Any) -> Iterator[dict[str, Any]]:
    """Gives {"ids": all that were ever given, "members": entries}, and writes it back. Raises RuntimeError when another
    process has taken the lock over meanwhile, and changed the list."""
    store, seconds = agent.store, agent.options.join_timeout
    me = json.dumps([*peers.process_of(os.getpid()), time.time_ns()])
    _take(store, me, seconds)
    try:
        before = store.compare_set("members", "", '{"ids": [], "members": []}').decode()
        known = json.loads(before)
        yield known
        after = json.dumps(known)
        if store.compare_set("members", before, after).decode() != after:
            raise RuntimeError(
                f"{agent.info} was joining or leaving its group for so long that another process has taken over"
            )
    finally:
        store.compare_set("lock", me, _NOBODY)


def _take(store: Any, me: str, seconds: float) -> None:
    """Takes the lock. A holder keeps this process out for `seconds` at most."""
    holder, end = "", 0.0
    while (has := store.compare_set("lock", "", me).decode()) != me:
        if has != holder:
            holder, end = has, time.monotonic() + seconds
        is_held = has != _NOBODY and _is_alive(json.loads(has)[:3]) and time.monotonic() < end
        if is_held:
            time.sleep(0.01)
        elif store.compare_set("lock", has, me).decode() == me:
            return


def _is_alive(process: list[Any]) -> bool:
    if process[2] != onecopy._core._rpc_host():
        return True  # as far as is known here: a call to an ended process fails
    try:
        return peers.process_of(process[0]) == process
    except OSError:
        return False
