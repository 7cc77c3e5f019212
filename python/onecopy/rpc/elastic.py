# SPDX-License-Identifier: Apache-2.0
"""Groups that members join and leave at any time.

The store has the list of members, and a lock on it. A member that joins tells all that live, takes messages when each
knows it, and returns.
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
    process holds the lock for longer than the agent's timeout."""
    me, store = json.dumps(peers.process_of(os.getpid())), agent.store
    end = time.monotonic() + agent.options.join_timeout
    while not _take(store, me):
        if time.monotonic() > end:
            raise RuntimeError(
                f"process {json.loads(store.get('lock'))[0]} has been joining or leaving the group for more than "
                f"{agent.options.join_timeout:g} s: is it stopped?"
            )
        time.sleep(0.01)
    try:
        known = json.loads(store.get("members")) if store.check(["members"]) else {"ids": [], "members": []}
        yield known
        store.set("members", json.dumps(known))
    finally:
        store.compare_set("lock", me, _NOBODY)


def _take(store: Any, me: str) -> bool:
    has = store.compare_set("lock", "", me).decode()
    if has == me:
        return True
    if has == _NOBODY or not _is_alive(json.loads(has)):
        return bool(store.compare_set("lock", has, me).decode() == me)
    return False


def _is_alive(process: list[Any]) -> bool:
    if process[2] != onecopy._core._rpc_host():
        return True  # as far as is known here: a call to an ended process fails
    try:
        return peers.process_of(process[0]) == process
    except OSError:
        return False
