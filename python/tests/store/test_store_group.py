# SPDX-License-Identifier: Apache-2.0
"""Groups of hosts with real processes and a real etcd: what happens when something fails, as the guide says."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from pathlib import Path

import pytest

import onecopy
from support.store_group import join, present, problems, publish, save, shown, version_at, wait_for, weights
from support.store_hosts import wait_until


def test_a_published_version_is_whole_on_every_host_when_publish_returns(group):
    for number in (1, 2, 3):
        assert publish(group[number % 3], 10 * number) == number
        for host in group:
            assert host.connect().open("llama", number).version == number
        wait_for(group, number, 10 * number)
    there = group[0].connect().hosts("llama")
    assert [(one["host"], one["version"], one["problem"]) for one in there] == [(f"h{i}", 3, "") for i in range(3)]


def test_rollback_and_delete_are_for_all_hosts_and_numbers_go_on(group):
    publish(group[0], 1), publish(group[1], 2)
    group[2].connect().rollback("llama", to=1)
    wait_for(group, 1, 1)
    assert publish(group[0], 3) == 3
    wait_for(group, 3, 3)
    group[1].connect().delete("llama")
    wait_until(lambda: [shown(one) for one in group] == [None] * 3)
    assert publish(group[0], 4) == 4
    wait_for(group, 4, 4)


def test_an_object_of_the_group_is_not_changed_on_one_host(group):
    publish(group[0], 1)
    with pytest.raises(onecopy.InvalidArgument, match="belongs to the group.*everywhere="):
        group[1].connect().publish("llama", weights(9))
    wait_for(group, 1, 1)


def test_an_object_that_one_host_has_published_alone_is_refused_by_the_group(group):
    group[1].connect().publish("llama", weights(9))
    with pytest.raises(onecopy.InvalidArgument, match="h1: .*published on this host"):
        publish(group[0], 1)
    with pytest.raises(onecopy.StaleHandle):
        group[0].connect().open("llama")
    assert shown(group[1]) == (1, 9)


def test_publishers_process_dies_before_the_commit(group):
    publish(group[0], 1)
    os.kill(group[2].ferry(), signal.SIGSTOP)  # so that the publisher waits
    child = group[1].start("put", "llama", str(save(group[1], 2)), "--everywhere")
    wait_until(lambda: version_at(group[0], "h0") == 2)
    child.kill()
    child.wait()
    os.kill(group[2].ferry(), signal.SIGCONT)
    wait_until(lambda: version_at(group[0], "h0") == 1)  # the stage has ended, and its draft is dropped
    assert [shown(one) for one in group] == [(1, 1)] * 3
    assert publish(group[1], 3) == 2
    wait_for(group, 2, 3)


def test_publisher_dies_after_the_commit_and_nothing_of_it_is_needed(group):
    publish(group[0], 1)
    os.kill(group[0].server.pid, signal.SIGKILL)
    wait_for(group[1:], 1, 1)
    os.kill(group[1].ferry(), signal.SIGKILL)  # and a process of another host is started again
    group[0].connect().leave("h0")
    wait_until(lambda: "h1" in present(group[2]))
    assert publish(group[2], 2) == 2
    wait_for(group[1:], 2, 2)


def test_a_host_that_stops_while_it_passes_on_is_left_by_those_behind_it(group):
    publish(group[0], 1)
    os.kill(group[1].ferry(), signal.SIGSTOP)
    assert publish(group[0], 2, everywhere=2) == 2  # h2 is behind h1 in the chain
    wait_for([group[0], group[2]], 2, 2)
    assert shown(group[1]) == (1, 1)
    os.kill(group[1].ferry(), signal.SIGCONT)
    wait_for(group, 2, 2)


def test_a_member_that_is_away_is_missing_until_it_leaves(group):
    publish(group[0], 1)
    group[2].server.kill()
    with pytest.raises(onecopy.Timeout, match="h2 .*"):
        publish(group[0], 2, timeout=3)
    assert shown(group[0]) == (1, 1)
    group[0].run("leave", "h2")
    assert publish(group[0], 3) == 2
    wait_for(group[:2], 2, 3)


def test_a_late_host_gets_what_is_current(group, hosts, etcd):
    publish(group[0], 1), publish(group[0], 2)
    late = join(hosts(), "h3", etcd.url)
    wait_for([late], 2, 2)


def test_a_host_without_room_fails_the_publish_at_once_and_is_named(group, hosts, etcd):
    join(hosts(), "small", etcd.url, "--max-bytes", "1MiB")
    wait_until(lambda: "small" in present(group[0]))
    begin = time.monotonic()
    with pytest.raises(onecopy.OutOfMemory, match="small: "):
        publish(group[0], 1)
    assert time.monotonic() - begin < 30
    assert publish(group[0], 2, everywhere=3) == 1


def test_both_halves_of_a_keeper_are_killed_and_the_host_gets_the_version_again(group, etcd):
    publish(group[0], 1)
    halves = group[1].connect().keeper().values()
    for kill in (signal.SIGSTOP, signal.SIGKILL):
        for pid in halves:
            os.kill(pid, kill)
    group[1].server.wait()
    join(group[1], "h1", etcd.url)
    wait_for(group, 1, 1)


def test_a_host_that_was_paused_longer_than_its_lease_begins_anew(group):
    publish(group[0], 1)
    os.kill(group[2].ferry(), signal.SIGSTOP)
    wait_until(lambda: present(group[0]) == {"h0", "h1"})
    os.kill(group[2].ferry(), signal.SIGCONT)
    wait_until(lambda: present(group[0]) == {"h0", "h1", "h2"})
    assert publish(group[0], 2) == 2
    wait_for(group, 2, 2)


def test_etcd_is_away(group, etcd):
    publish(group[0], 1)
    strict = group[1].connect(max_age=3)
    follower = strict.follow("llama")
    etcd.stop()
    with pytest.raises((onecopy.PeerDied, onecopy.Closed), match="etcd does not answer"):
        publish(group[0], 2)
    wait_until(lambda: group[1].connect().age() > 3)
    with pytest.raises(onecopy.errors.Stale, match="max_age"):
        follower.update()
    assert [shown(one) for one in group] == [(1, 1)] * 3
    etcd.start()
    wait_until(lambda: group[1].connect().age() < 3)
    assert follower.update() == 1
    wait_until(lambda: present(group[0]) == {"h0", "h1", "h2"})
    assert publish(group[0], 3) == 2
    wait_for(group, 2, 3)


def test_etcd_lost_its_data_and_the_group_is_restored_by_hand(group, etcd):
    publish(group[0], 1), publish(group[0], 2)
    group[0].connect().rollback("llama", to=1)
    wait_for(group, 1, 1)
    etcd.lose_data()
    wait_until(lambda: all("lost its data" in line for line in problems(group)))
    with pytest.raises(onecopy.Closed, match="lost its data"):
        publish(group[0], 3)
    assert [shown(one) for one in group] == [(1, 1)] * 3
    assert "h0" in group[0].run("group", "restore")
    wait_until(lambda: not any("lost its data" in line for line in problems(group)))
    assert [shown(one) for one in group] == [(1, 1)] * 3  # the rollback was not undone
    assert publish(group[1], 3) == 3
    wait_for(group, 3, 3)


def test_a_host_with_another_key_changes_nothing(group, hosts, etcd):
    publish(group[0], 1)
    stranger = hosts()
    with open(stranger.environment["ONECOPY_STORE_KEY_FILE"], "w") as key:
        key.write("another secret of these tests, as long\n")
    join(stranger, "stranger", etcd.url)
    wait_until(lambda: "stranger" in present(group[0]))
    with pytest.raises(onecopy.Timeout, match="stranger has not got all of it"):
        publish(group[0], 2, timeout=3)
    assert shown(stranger) is None
    assert [shown(one) for one in group] == [(1, 1)] * 3


def test_two_hosts_of_one_name_are_refused(group, hosts, etcd):
    other = join(hosts(), "h1", etcd.url)
    wait_until(lambda: "another host h1" in other.connect()._core.group_problem())


def test_a_rebooted_host_gets_the_version_again_with_its_number(group, etcd):
    publish(group[0], 1), publish(group[0], 2)
    host = group[1]
    state = host.environment["ONECOPY_STORE_DIR"] + "-state"
    host.server.terminate()
    host.server.communicate()
    assert os.path.exists(state)
    join(host, "h1", etcd.url)
    wait_for(group, 2, 2)


def test_a_publisher_keeps_its_turn_while_its_host_pulls_the_object(group, etcd):
    publish(group[0], 1)
    (lock,) = Path(group[0].environment["ONECOPY_STORE_DIR"]).rglob("pulled-*")
    with lock.open("rb") as file:
        wait_until(lambda: is_locked(file))
        child = group[0].start("put", "llama", save(group[0], 2), "--everywhere")
        wait_until(lambda: etcd.ctl("get", "--keys-only", "/onecopy/prod/stage/llama"))
        time.sleep(6)  # a turn that nobody keeps is lost by then
    out, err = child.communicate(timeout=120)
    assert child.returncode == 0, err
    assert "version 2:" in out
    wait_for(group, 2, 2)


def test_a_publisher_whose_host_pulls_the_object_for_too_long_says_so(group):
    publish(group[0], 1)
    (lock,) = Path(group[0].environment["ONECOPY_STORE_DIR"]).rglob("pulled-*")
    with lock.open("rb") as file:
        wait_until(lambda: is_locked(file))
        with pytest.raises(onecopy.Timeout, match="does not become current.*another process of this host pulls"):
            publish(group[0], 2, timeout=2)
    assert publish(group[0], 3) == 2
    wait_for(group, 2, 3)


def test_a_publisher_that_waits_for_a_host_is_told_of_a_rollback_meanwhile(group, etcd):
    publish(group[0], 1), publish(group[0], 2)
    os.kill(group[2].ferry(), signal.SIGSTOP)
    child = group[0].start("put", "llama", save(group[0], 3), "--everywhere", "--timeout", 20)
    wait_until(lambda: etcd.ctl("get", "--keys-only", "/onecopy/prod/stage/llama"))
    group[1].connect().rollback("llama", to=1)
    err = child.communicate(timeout=120)[1]
    os.kill(group[2].ferry(), signal.SIGCONT)
    assert "is not current: it was made after generation 2, and the group is at generation 3" in err
    wait_for(group, 1, 1)


def test_a_version_that_is_staged_before_its_host_shows_a_rollback_goes_to_the_others(group):
    publish(group[0], 1), publish(group[0], 2)
    wait_for(group, 2, 2)
    (notes,) = Path(group[1].environment["ONECOPY_STORE_DIR"]).rglob("pulled-*")
    with notes.open("rb") as file:
        wait_until(lambda: is_stopped_without_lock(group[1].ferry(), file))
    group[0].connect().rollback("llama", to=1)
    before = notes.stat().st_size
    child = group[1].start("put", "llama", save(group[1], 3), "--everywhere", "--timeout", 20)
    wait_until(lambda: notes.stat().st_size > before)
    os.kill(group[1].ferry(), signal.SIGCONT)
    err = child.communicate(timeout=120)[1]
    assert child.returncode == 0, err
    wait_for(group, 3, 3)


def is_stopped_without_lock(ferry, file):
    os.kill(ferry, signal.SIGSTOP)
    if is_locked(file):  # by this test
        fcntl.flock(file, fcntl.LOCK_UN)
        return True
    os.kill(ferry, signal.SIGCONT)
    return False


def is_locked(file):
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def test_publishers_at_once_get_a_number_each_and_all_hosts_end_with_one_version(group):
    children = [host.start("put", "llama", save(host, value), "--everywhere") for value, host in enumerate(group, 1)]
    said = [child.communicate(timeout=120) for child in children]
    assert [child.returncode for child in children] == [0, 0, 0], said
    assert sorted(out.split()[2] for out, _ in said) == ["1:", "2:", "3:"]
    last = next(value for value, (out, _) in enumerate(said, 1) if "version 3:" in out)
    wait_for(group, 3, last)
