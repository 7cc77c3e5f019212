# SPDX-License-Identifier: Apache-2.0
"""Groups without a size: members that come late, leave, die and come back under their name."""

from __future__ import annotations

import os
import signal

import pytest

torch = pytest.importorskip("torch")

import native_rpc_functions as theirs
from onecopy import rpc
from support.rpc_group import PATIENCE, native_init, native_shutdown, until

kept = []


def add_at(to, number):
    return rpc.call(to, theirs.add, (number,))


def pid_of(to):
    return rpc.call(to, theirs.pid)


def names():
    return [info.name for info in rpc.members()]


def own_id(name):
    return next(info.id for info in rpc.members() if info.name == name)


def keep_counter(to):
    kept.append(rpc.remote(to, theirs.Counter, (5,)))
    return kept[0].rpc_sync().add(1)


def use_counter():
    return kept[0].rpc_sync().add(1)


def test_members_that_come_late_call_and_are_called(meeting):
    first = meeting.join()
    assert first(names) == ["worker0"]
    second = meeting.join()
    third = meeting.join()
    assert first(names) == second(names) == third(names) == ["worker0", "worker1", "worker2"]
    assert first(add_at, "worker2", 1) == third(add_at, "worker0", 1) == second(add_at, "worker2", 1) == 2


def test_members_join_at_once(meeting):
    members = [meeting.add() for _ in range(4)]
    for rank, member in enumerate(members):
        member.begin(native_init, meeting.file, rank, None, f"worker{rank}", {})
    for member in members:
        member.result()
    for member in members:
        assert member(names) == [f"worker{rank}" for rank in range(4)]


def test_a_member_that_joins_serves_no_call_before_all_know_it(meeting, tmp_path):
    """Its function might call one that does not know it, which then drops that call."""
    first, second, third = meeting.join(), meeting.join(), meeting.add()
    third.begin(join_halfway, meeting.file, 2, str(tmp_path / "go on"))
    until(lambda: first(names) == ["worker0", "worker1", "worker2"], "the first member was not told")
    with pytest.raises(RuntimeError, match="more than set timeout"):
        first(pid_within, "worker2", 0.3)
    assert second(names) == ["worker0", "worker1"]
    (tmp_path / "go on").touch()
    third.result()
    assert first(pid_within, "worker2", 60) == third.process.pid


def pid_within(to, seconds):
    return rpc.call(to, theirs.pid, timeout=seconds)


def join_halfway(file, rank, sign):
    """Joins as the member of that rank, and tells the one of rank 1 only once the file `sign` is there."""
    from onecopy.rpc import group

    note = group.Agent.note

    def note_late(agent, to, verb, value):
        if verb == "join" and to == 1:
            until(lambda: os.path.exists(sign), "no sign to go on")
        note(agent, to, verb, value)

    group.Agent.note = note_late
    native_init(file, rank, None, f"worker{rank}", {})


def test_a_member_leaves_and_the_others_go_on(meeting):
    first, second, third = (meeting.join() for rank in range(3))
    second(native_shutdown)
    until(lambda: first(names) == ["worker0", "worker2"], "the others have not seen that it left")
    assert first(add_at, "worker2", 1) == 2
    with pytest.raises(RuntimeError, match="name=worker1.* has left the group"):
        first(add_at, "worker1", 1)
    third(native_shutdown)
    first(native_shutdown)


def test_a_killed_member_comes_back_under_its_name_as_another(meeting):
    first, second = meeting.join(), meeting.join()
    assert first(keep_counter, "worker1") == 6
    second.kill()
    until(lambda: first(names) == ["worker0"], "its end was not seen")
    with pytest.raises(RuntimeError, match="name=worker1.* has ended"):
        first(add_at, "worker1", 1)
    again = meeting.join(rank=1)
    assert first(pid_of, "worker1") == again.process.pid
    assert again(add_at, "worker0", 1) == 2
    assert first(own_id, "worker1") == again(own_id, "worker1") != 1


def test_a_reference_to_a_value_of_the_process_before_is_an_error_at_once(meeting):
    first, second = meeting.join(), meeting.join()
    first(keep_counter, "worker1")
    second.kill()
    until(lambda: first(names) == ["worker0"], "its end was not seen")
    meeting.join(rank=1)
    with pytest.raises(RuntimeError, match="id=1, name=worker1.* ended"):
        first(use_counter)


def test_the_name_of_a_living_member_is_taken(meeting):
    meeting.join("same")
    with pytest.raises(RuntimeError, match="name same is not unique"):
        meeting.join("same")
    meeting.join("other")


@pytest.mark.parametrize("host", ["this", "another"])
def test_a_killed_process_that_was_joining_keeps_no_other_out(meeting, host):
    first, dying = meeting.join(), meeting.add()
    dying.begin(die_while_joining, meeting.file, host == "another")
    dying.process.join(PATIENCE)
    assert "worker2" in meeting.join(rank=2, join_timeout=2)(names)
    assert first(names) == ["worker0", "worker2"]


def die_while_joining(file, is_elsewhere):
    import onecopy
    from onecopy.rpc import elastic

    if is_elsewhere:
        onecopy._core._rpc_host = lambda: 1
    elastic._tell = lambda agent, own: os.kill(os.getpid(), signal.SIGKILL)
    native_init(file, 1, None, "worker1", {})


def test_a_stopped_process_that_was_joining_keeps_no_other_out_and_joins_no_more(meeting):
    first, stopped = meeting.join(), meeting.add()
    stopped.begin(stop_while_joining, meeting.file)
    until(lambda: first(names) == ["worker0", "worker1"], "the first member was not told")
    assert "worker2" in meeting.join(rank=2, join_timeout=2)(names)
    os.kill(stopped.process.pid, signal.SIGCONT)
    with pytest.raises(RuntimeError, match="another process has taken over"):
        stopped.result()
    until(lambda: first(names) == ["worker0", "worker2"], "the first member was not told that it left")


def stop_while_joining(file):
    from onecopy.rpc import elastic

    tell = elastic._tell
    elastic._tell = lambda *args: (tell(*args), os.kill(os.getpid(), signal.SIGSTOP))
    native_init(file, 1, None, "worker1", {})


def test_groups_of_both_kinds_do_not_mix(meeting):
    meeting.join()
    member = meeting.add()
    with pytest.raises(RuntimeError, match="mixes statically and dynamically"):
        member(native_init, meeting.file, 1, 2, "worker1", {"timeout": 2})


def tensors_sent_to(to):
    for _ in range(2):
        rpc.call(to, theirs.ignore, (torch.ones(4),))
    return tensors_sent()


def tensors_sent():
    return sum(rpc.stats()["routes"]["sent"].values())


def test_tensors_that_went_to_a_member_count_after_its_end(meeting):
    first, second = meeting.join(), meeting.join()
    assert first(tensors_sent_to, "worker1") == 2
    second(native_shutdown)
    until(lambda: first(names) == ["worker0"], "worker1 has not left")
    assert first(tensors_sent) == 2
