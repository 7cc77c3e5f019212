# SPDX-License-Identifier: Apache-2.0
"""Groups that members join and leave at any time.

The store holds the list of members, and a lock on the list. A joining member tells all living members, and starts
serving when each of them knows it. The holder of the lock sets a beat in the store each second, since nobody else knows
whether a process on another host lives. A process takes the lock over from a process of its host that has ended, from
one without a beat for _SILENCE seconds, and from one that has held the lock for longer than join_timeout. An id is
assigned once: a process that rejoins under the same name gets another id, so references to values of the previous
process raise and never reach its successor.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import onecopy

from . import peers
from .peers import Entry
from .registry import verb

_NOBODY = "free"
_BEAT, _SILENCE = 1.0, 10.0  # seconds


def check_kind(store: Any, kind: str) -> None:
    """Raises RuntimeError if other members of the group have declared another kind."""
    if store.compare_set("kind", "", kind).decode() != kind:
        raise RuntimeError(
            "RPC group mixes statically and dynamically initialized members which is not supported. Give all of them a "
            "world_size, or none"
        )


def join(agent: Any) -> None:
    """Makes this process a member. Raises RuntimeError if its name is taken or a member does not answer."""
    with _locked_list(agent) as known:
        if agent.info.id in known["ids"]:
            agent.info = peers.WorkerInfo(agent.info.name, max(known["ids"]) + 1)
        agent.make_endpoint()
        living = [entry for entry in known["members"] if _is_alive(entry["process"])]
        for entry in [entry for entry in living if entry["name"] == agent.info.name]:
            if not _is_unreached(agent, entry):
                raise RuntimeError(
                    f"RPC worker name {entry['name']} is not unique: process {entry['process'][0]} has it. Give each "
                    "its own"
                )
            living.remove(entry)
        own = peers.own_entry(agent)
        agent.open([peers.member_of(own)])
        for entry in living:
            _enter_if_alive(agent, entry)
        _tell(agent, own)
        agent.start_serving()  # a function that is called here may call any member
        known["ids"].append(agent.info.id)
        known["members"] = [*living, own]


def leave(agent: Any) -> None:
    """Removes this process from the list. The agent tells the living members when it stops."""
    with _locked_list(agent) as known:
        known["members"] = [entry for entry in known["members"] if entry["id"] != agent.info.id]


def _is_unreached(agent: Any, entry: Entry) -> bool:
    """Returns whether a member is on another host, and its process does not listen there, since it has ended."""
    if entry["process"][2] == onecopy._core._rpc_host():
        return False
    agent.endpoint.join(bytes.fromhex(entry["address"]))
    try:
        agent.endpoint.connect(entry["id"], agent.options.join_timeout)
    except onecopy.errors.PeerDied:
        return True
    except onecopy.Error:  # the network to that host may be cut
        return False
    return False


def _enter_if_alive(agent: Any, entry: Entry) -> None:
    """Adds a member, unless its process has ended. Raises BadSecret or Unsupported for a member with another key or
    fabric."""
    try:
        agent.add_member(peers.member_of(entry))
    except (onecopy.errors.BadSecret, onecopy.errors.Unsupported):
        raise
    except onecopy.Error:
        pass


def _tell(agent: Any, own: Entry) -> None:
    """Lets each living member add this process. Raises RuntimeError that names a member which does not answer."""
    others = [rank for rank in agent.member_ids() if rank != agent.info.id]
    for rank in others:
        agent.note(rank, "join", own)
    answers = {rank: agent.begin_verb(rank, ".joined", (), agent.options.join_timeout) for rank in others}
    for rank, answer in answers.items():
        try:
            answer.wait()
        except onecopy.errors.PeerDied:
            pass  # the member has left
        except RuntimeError as error:
            raise RuntimeError(
                f"{agent.member(rank).info} did not take this process into its group: {error}"
            ) from error


@verb("join")
def _enter(agent: Any, caller: int, entry: Entry) -> None:
    _enter_if_alive(agent, entry)


@verb(".joined")
def _joined(agent: Any, caller: int) -> None:
    """Answers after the caller's note "join" was handled."""


# --- the lock


@contextlib.contextmanager
def _locked_list(agent: Any) -> Iterator[dict[str, Any]]:
    """Yields {"ids": all ids ever assigned, "members": entries} under the lock, and stores it afterwards. Raises
    RuntimeError if another process has taken the lock over and changed the list."""
    store, seconds = agent.store, agent.options.join_timeout
    me = json.dumps([*peers.process_of(os.getpid()), time.time_ns()])
    _take(store, me, seconds)
    is_over = threading.Event()
    beating = threading.Thread(target=_beat, args=(store, is_over), name="onecopy-rpc-lock", daemon=True)
    beating.start()
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
        is_over.set()
        beating.join()
        store.compare_set("lock", me, _NOBODY)


def _beat(store: Any, is_over: threading.Event) -> None:
    """Tells processes that wait for the lock that its holder lives, until `is_over` is set."""
    while not is_over.wait(_BEAT):
        with contextlib.suppress(RuntimeError):  # the thread that holds the lock gets the error of the store
            store.set("beat", str(time.time_ns()))


def _take(store: Any, me: str, seconds: float) -> None:
    """Takes the lock, from a living holder after `seconds`."""
    holder, beat, end, silence = "", "", 0.0, 0.0
    while (has := store.compare_set("lock", "", me).decode()) != me:
        now, last = time.monotonic(), store.compare_set("beat", "", "none").decode()
        if (has, last) != (holder, beat):
            silence = now + _SILENCE
        if has != holder:
            end = now + seconds
        holder, beat = has, last
        is_held = has != _NOBODY and _is_alive(json.loads(has)[:3]) and now < min(end, silence)
        if is_held:
            time.sleep(0.01)
        elif store.compare_set("lock", has, me).decode() == me:
            return


def _is_alive(process: list[Any]) -> bool:
    if process[2] != onecopy._core._rpc_host():
        return True  # unknown from this host; a call to an ended process fails
    try:
        return peers.process_of(process[0]) == process
    except OSError:
        return False
