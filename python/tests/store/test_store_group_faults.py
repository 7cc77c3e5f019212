# SPDX-License-Identifier: Apache-2.0
"""Groups of hosts whose network, etcd or key changes."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import re
import signal
import socket
import subprocess

import pytest

import onecopy
from support.store_group import Etcd, join, present, problems, publish, save, shown, starve, wait_for
from support.store_hosts import COMMAND, KEY, Cable, wait_until


@pytest.fixture
def three_members(tmp_path):
    cluster = Etcd.cluster_of(tmp_path, 3)
    yield cluster
    for one in cluster:
        one.stop()


class Election(Cable):
    """A way to etcd that answers one request as a member without a leader does, or loses the answer to it."""

    NO_LEADER = b'{"error":"etcdserver: leader changed","code":14}'

    def __init__(self, etcd):
        super().__init__(etcd.url.removeprefix("http://"))
        self.pattern, self.carries_out, self.lost = None, False, set()

    def meets(self, pattern, carries_out):
        self.pattern, self.carries_out = re.compile(pattern, re.DOTALL), carries_out

    def _carry(self, source, sink, counts):
        with contextlib.suppress(OSError):
            while (data := source.recv(1 << 18)) and source not in self.lost:
                if not counts and self.pattern and self.pattern.search(data):
                    self.pattern = None
                    if not self.carries_out:
                        head = f"HTTP/1.1 503 no\r\nConnection: close\r\nContent-Length: {len(self.NO_LEADER)}\r\n\r\n"
                        source.sendall(head.encode() + self.NO_LEADER)
                        break
                    self.lost.add(sink)
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def put_of(kind):
    key = base64.b64encode(f"/onecopy/prod/{kind}/llama".encode())
    return b"/v3/kv/txn.*" + re.escape(key) + b'","lease"'


@pytest.fixture
def election(etcd):
    made = Election(etcd)
    yield made
    made.close()


def test_a_publish_that_meets_an_election_of_etcd_is_carried_out_once(hosts, etcd, election):
    group = [join(hosts(), "h0", f"http://{election.address}"), join(hosts(), "h1", etcd.url)]
    wait_until(lambda: present(group[1]) == {"h0", "h1"})
    steps = itertools.product([b"/v3/lease/grant", put_of("stage"), put_of("current")], [False, True])
    for number, (step, carries_out) in enumerate(steps, 1):
        election.meets(step, carries_out)
        assert publish(group[0], number) == number
        assert election.pattern is None
        wait_for(group, number, number)
    current = json.loads(etcd.ctl("get", "--print-value-only", "/onecopy/prod/current/llama"))
    assert (current["number"], current["generation"]) == (6, 6)
    election.meets(put_of("current"), True)
    group[0].connect().rollback("llama", to=5)
    wait_for(group, 5, 5)


def test_a_publish_ends_at_its_timeout_while_etcd_is_reached_and_does_not_answer(group, etcd):
    publish(group[0], 1)
    os.kill(etcd.process.pid, signal.SIGSTOP)
    with pytest.raises(onecopy.Timeout, match="etcd does not answer"):
        publish(group[0], 2, timeout=2)
    os.kill(etcd.process.pid, signal.SIGCONT)
    wait_until(lambda: present(group[0]) == {"h0", "h1", "h2"})
    number = publish(group[0], 3)
    wait_for(group, number, 3)


def test_one_of_three_members_of_etcd_is_killed_and_each_publish_is_carried_out(hosts, three_members):
    urls = ",".join(one.url for one in three_members)
    group = [join(hosts(), f"h{i}", urls) for i in range(2)]
    wait_until(lambda: present(group[0]) == {"h0", "h1"})
    for value, member in enumerate(three_members, 1):  # one of which leads
        member.stop()
        number = publish(group[value % 2], value)
        wait_for(group, number, value)
        member.start()
    three_members[0].stop(), three_members[1].stop()
    with pytest.raises(onecopy.Error, match="etcd"):
        publish(group[0], 9, timeout=5)
    assert [shown(host) for host in group] == [(number, 3)] * 2
    three_members[0].launch(), three_members[1].start()
    wait_until(lambda: present(group[0]) == {"h0", "h1"} and problems(group) == [""] * 2)
    number = publish(group[0], 10)
    wait_for(group, number, 10)


def changes_of_key(group, etcd):
    """Changes the key as the guide says, in three rounds, and yields after each host that has come back."""
    fresh = "another secret of these tests, as long"
    for content in (f"{KEY}\n{fresh}\n", f"{fresh}\n{KEY}\n", f"{fresh}\n"):
        for host in group:
            host.server.terminate()
            host.server.communicate()
            with open(host.environment["ONECOPY_STORE_KEY_FILE"], "w") as key:
                key.write(content)
            join(host, host.name, etcd.url)
            wait_until(lambda: present(group[0]) == {"h0", "h1", "h2"})
            yield


def test_the_key_is_changed_host_by_host_while_versions_are_published(group, etcd):
    value = 1
    publish(group[0], value)
    for _ in changes_of_key(group, etcd):
        value += 1
        assert publish(group[value % 3], value) == value
        wait_for(group, value, value)


def test_a_key_that_no_publish_has_used_takes_over_what_is_current(group, etcd):
    publish(group[0], 1)
    for _ in changes_of_key(group, etcd):
        wait_for(group, 1, 1)
    assert [one.connect()._core.group_problem() for one in group] == [""] * 3


def test_store_stop_leaves_the_group(group):
    publish(group[0], 1)
    group[2].run("stop")
    assert present(group[0]) == {"h0", "h1"}
    assert publish(group[0], 2) == 2


def test_a_version_stays_until_all_members_that_are_present_have_gone_on(group):
    publish(group[0], 1, keep=1)
    feed = starve(group[2].ferry())  # so that it cannot go on
    assert publish(group[0], 2, everywhere=2, keep=1) == 2
    wait_for(group[:2], 2, 2)
    assert group[1].connect().open("llama", 1).version == 1
    feed()
    wait_for(group, 2, 2)
    wait_until(lambda: not has(group[1], 1))


def has(host, version):
    with contextlib.suppress(onecopy.StaleHandle):
        return host.connect().open("llama", version) is not None
    return False


def test_prometheus_has_the_numbers_of_the_group(group, repository):
    publish(group[0], 1)
    text = ls(group[1])
    helped = dict(re.findall(r"^# HELP (onecopy_group_\w+) (.+)$", text, re.MULTILINE))
    page = (repository / "docs/reference/counters.md").read_text()
    assert helped == dict(re.findall(r"^\| `(onecopy_group_\w+)` \| ([^|]+) \|$", page, re.MULTILINE))
    assert 'onecopy_group_members{group="prod"} 3\n' in text
    assert 'onecopy_group_missing_members{group="prod"} 0\n' in text
    assert 'onecopy_group_generation{group="prod",object="llama"} 1\n' in text
    assert 'onecopy_group_pulled_bytes_total{group="prod"} 20000000\n' in text
    os.kill(group[2].server.pid, signal.SIGKILL)
    wait_until(lambda: 'onecopy_group_missing_members{group="prod"} 1\n' in ls(group[1]))


def ls(host):
    done = subprocess.run(
        [*COMMAND, "ls", "--format", "prometheus"],
        env={**os.environ, **host.environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_cut_links_between_hosts_and_to_etcd(connected, hosts, tmp_path):
    net = connected(4)
    net.give_own_addresses()
    etcd = Etcd.started(tmp_path / "etcd", at=net.own_address(3), enter=net.enter(3))
    try:
        group = [join(hosts(net.enter(i)), f"h{i}", etcd.url, at=net.own_address(i)) for i in range(3)]
        wait_until(lambda: len(members(etcd)) == 3)
        path = save(group[0], 1)
        assert "version 1" in group[0].run("put", "llama", path, "--everywhere")
        net.cut(0, 1)  # the way of the chain from h0 to h1
        assert "version 2" in group[0].run("put", "llama", path, "--everywhere")
        wait_for(group, 2, 1)
        net.cut(1, 3)
        assert "h1 " in group[0].run("put", "llama", path, "--everywhere", "--timeout", "3", status=1)
        assert [shown(host) for host in group] == [(2, 1)] * 3
        net.mend(1, 3), net.mend(0, 1)
        wait_until(lambda: len(members(etcd)) == 3)
        assert "version 3" in group[0].run("put", "llama", path, "--everywhere")
        wait_for(group, 3, 1)
    finally:
        etcd.stop()


def members(etcd):
    return etcd.ctl("get", "--prefix", "--keys-only", "/onecopy/prod/hosts/").split()
