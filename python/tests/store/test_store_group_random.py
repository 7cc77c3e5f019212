# SPDX-License-Identifier: Apache-2.0
"""Random histories of a group: whatever is killed, stopped or cut, hosts show whole versions in the order of the group."""

from __future__ import annotations

import collections
import contextlib
import json
import operator
import os
import re
import signal
import subprocess
import sys
import time
from random import Random

import pytest

import onecopy
from support import networks
from support.store_group import API, Etcd, join, save
from support.store_hosts import wait_until

# ONECOPY_GROUP_SEED repeats the choices of a run.
STEPS = int(os.environ.get("ONECOPY_GROUP_STEPS", "20"))
BURST = int(os.environ.get("ONECOPY_GROUP_BURST", "1"))  # max versions that a publisher publishes in a row
ELEMENTS = int(os.environ.get("ONECOPY_GROUP_ELEMENTS", "5000000"))  # two chunks

PATIENCE = 200  # seconds; a busy machine is slow, and a command that hangs is a fault

CURRENT = "/onecopy/prod/current/llama"
READER = """
import time, onecopy
store = last = None
while True:
    try:
        store = store or onecopy.store.connect(framework="numpy", autostart=False)
        version = store.open("llama")
        if version.version != last:
            last, values = version.version, next(iter(version.values()))
            print(last, int(values[0]), int((values == values[0]).all()), flush=True)
    except onecopy.StaleHandle:
        last = None
    except onecopy.Error:
        store = last = None
    time.sleep(0.002)
"""

# Publishes versions in a row, of which some are small and some are rolled back, and says how each call has ended.
PUBLISHER = """
import random, sys, time, numpy, onecopy
first, count, elements, seed = map(int, sys.argv[1:])
choose, store = random.Random(seed), None

def call(what, value, function):
    global store
    try:
        store = store or onecopy.store.connect(autostart=False)
        number = function(store)
        print(what, value, "done", number or 0, flush=True)
        return number
    except onecopy.Error as error:
        store = None
        print(what, value, "failed", " ".join(str(error).split()), flush=True)
        time.sleep(0.05)

for value in range(first, first + count):
    tensors = {"w": numpy.full(choose.choice((elements, 1000, 10)), value, numpy.float32)}
    options = {"everywhere": choose.choice((True, 2)), "timeout": 10}
    print("publish", value, "begins", flush=True)
    number = call("publish", value, lambda store: store.publish("llama", tensors, **options))
    if number and choose.random() < 0.2:
        call("rollback", value, lambda store: store.rollback("llama", to=max(1, number - choose.randrange(2))))
"""


class OneNetwork:
    """The network of hosts where this user may not make namespaces: nothing can be cut."""

    def give_own_addresses(self):
        pass

    def own_address(self, host):
        return "127.0.0.1"

    def enter(self, host):
        return []

    def cut(self, *pair):
        pass

    mend = cut


class Fleet:
    """Three hosts with a network, a member of etcd and a reader each, and what publishers were told."""

    def __init__(self, net, hosts, directory, seed):
        self.random = Random(seed)
        self.net = net
        net.give_own_addresses()
        where = [{"at": net.own_address(i), "enter": net.enter(i)} for i in range(3)]
        self.members = Etcd.cluster_of(directory, 3, where)
        self.hosts = [hosts(net.enter(i)) for i in range(3)]
        for i in range(3):
            self.join(i)
        find_hosts = ("get", "--prefix", "--keys-only", "/onecopy/prod/hosts/")
        wait_until(lambda: len(self.members[0].ctl(*find_hosts).split()) == 3)
        self.notes = [(directory / f"seen{i}").open("a") for i in range(3)]
        self.readers = [self.read(i) for i in range(3)]
        self.seen_in = {note.name: open(note.name) for note in self.notes}
        self.seen = {name: [] for name in self.seen_in}  # numbers of versions
        self.last_values = dict.fromkeys(self.seen_in)
        self.outcomes, self.faults = collections.Counter(), collections.Counter()
        self.published = 0
        self.value_of = {}  # of versions by their numbers, as publishers were told
        self.refused = {}  # why, by values

    def join(self, i):
        join(self.hosts[i], f"h{i}", ",".join(one.url for one in self.members), at=self.net.own_address(i))

    def read(self, i):
        environment = {**os.environ, **self.hosts[i].environment}
        return subprocess.Popen([sys.executable, "-c", READER], env=environment, stdout=self.notes[i])

    def step(self):
        """Lets hosts publish or roll back, some at once, while something fails and works again."""
        length = self.random.randint(1, BURST)
        changes = [self.change(length) for _ in range(self.random.choice((1, 1, 2, 3)))]
        for _ in range(1 + length // 10):
            if self.random.random() < 0.7:
                self.fail(changes[0][0], self.random.uniform(0, 0.15 * min(length, 10)))
        for child, ended in changes:
            out, err = child.communicate(timeout=PATIENCE)
            ended(child.returncode, out, err)

    def fail(self, child, delay):
        """Lets something fail after a delay, and work again."""
        time.sleep(delay)
        fault = self.random.choice(FAULTS)
        self.faults[fault.__name__] += 1
        with contextlib.suppress(onecopy.Error, ProcessLookupError, StopIteration):  # it has failed already
            mend = fault(self, self.random.randrange(3), child)
            time.sleep(self.random.uniform(0, 0.3))
            mend()

    def change(self, length):
        host = self.random.choice(self.hosts)
        if length > 1:
            return self.publish_many(host, length)
        return (self.roll_back if self.random.random() < 0.2 else self.publish)(host)

    def publish_many(self, host, length):
        first = self.published + 1
        self.published += length
        program = [*host.enter, sys.executable, "-c", PUBLISHER]
        numbers = map(str, (first, length, ELEMENTS, self.random.randrange(2**32)))
        child = subprocess.Popen(
            [*program, *numbers],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **host.environment},
        )
        host.children.append(child)

        def ended(status, out, err):
            assert status in (0, -signal.SIGKILL), err
            for what, value, how, *text in map(str.split, out.splitlines()):
                if how != "begins":
                    outcome = "done" if how == "done" else outcome_of(1, " ".join(text))
                    self.note(what, int(value), outcome, " ".join(text))
            if status:
                self.outcomes["publish: killed"] += 1

        return child, ended

    def note(self, what, value, outcome, text):
        """Notes how a call that publishes, or rolls back, has ended; `text`: the number of its version, or the error."""
        self.outcomes[f"{what}: {outcome}"] += 1
        if what == "publish" and outcome == "done":
            assert self.value_of.setdefault(int(text), value) == value
        elif what == "publish" and outcome not in ("killed", "unknown"):
            self.refused[value] = text

    def publish(self, host, how=None, timeout=20):
        self.published += 1
        value, path = self.published, save(host, self.published, ELEMENTS)
        how = how or self.random.choice((["--everywhere"], ["--hosts", "2"]))

        def ended(status, out, err):
            os.unlink(path)
            outcome = outcome_of(status, err)
            text = re.search(r"version (\d+)", out).group(1) if outcome == "done" else err
            self.note("publish", value, outcome, text)

        return host.start("put", "llama", path, *how, "--timeout", timeout), ended

    def roll_back(self, host):
        to = max(1, max(self.value_of, default=1) - self.random.randrange(2))

        def ended(status, out, err):
            self.note("rollback", 0, outcome_of(status, err), err)

        return host.start("rollback", "llama", to), ended

    def kill_ferry(self, i, child):
        os.kill(self.hosts[i].ferry(), signal.SIGKILL)
        return lambda: None

    def stop_ferry(self, i, child):
        pid = self.hosts[i].ferry()
        os.kill(pid, signal.SIGSTOP)
        return lambda: os.kill(pid, signal.SIGCONT)

    def kill_half(self, i, child):
        halves = self.hosts[i].connect(autostart=False).keeper()
        os.kill(halves[self.random.choice(("worker", "guard"))], signal.SIGKILL)
        return lambda: None

    def kill_both_halves(self, i, child):
        halves = self.hosts[i].connect(autostart=False).keeper().values()
        for how in (signal.SIGSTOP, signal.SIGKILL):
            for pid in halves:
                os.kill(pid, how)

        def begin_again():
            self.hosts[i].server.terminate()
            self.hosts[i].server.communicate(timeout=60)
            self.join(i)

        return begin_again

    def kill_etcd(self, i, child):
        self.members[i].stop()
        return self.members[i].launch

    def cut(self, i, child):
        self.net.cut(i, (i + 1) % 3)
        return lambda: self.net.mend(i, (i + 1) % 3)

    def kill_reader(self, i, child):
        self.readers[i].kill()
        self.readers[i].wait()
        return lambda: self.readers.__setitem__(i, self.read(i))

    def kill_publisher(self, i, child):
        child.kill()
        return lambda: None

    def check_copies(self, arriving):
        """Checks that a host has each version once: `arriving` copies at most belong to versions that are not listed."""
        for host in self.hosts:
            with contextlib.suppress(onecopy.Error):  # its keeper begins anew
                store = host.connect(autostart=False)
                before = large_versions(store)
                copies = large_memory(store.keeper().values())
                known = before | large_versions(store)
                if len(copies) > len(known) + arriving:
                    return f"{len(copies)} copies of the versions {known}"
        return None

    def history(self):
        """Returns the numbers that were current, in order."""
        now = json.loads(self.members[0].ctl("get", "--print-value-only", CURRENT))
        command = self.members[0].command("watch", "--rev", "1", CURRENT)
        with subprocess.Popen(command, env=API, stdout=subprocess.PIPE, text=True) as watch:
            changes = []
            while not changes or changes[-1]["generation"] < now["generation"]:
                if (line := watch.stdout.readline()).startswith("{"):
                    changes.append(json.loads(line))
            watch.kill()
        assert [one["generation"] for one in changes] == list(range(1, now["generation"] + 1))
        tokens = {}
        for one in changes:
            assert tokens.setdefault(one["number"], one["token"]) == one["token"], "two versions of one number"
        return [one["number"] for one in changes]

    def check(self):
        """Returns the number of changes of the group, and how often the reader of each host has seen another version."""
        self.check_readers()
        history = self.history()
        assert set(self.value_of) <= set(history)
        for name, numbers in self.seen.items():
            at = 0
            for number in numbers:
                at = next((i for i in range(at, len(history)) if history[i] == number), -1)
                assert at >= 0, f"{name} went back to version {number}"
        return len(history), [sum(map(operator.ne, numbers, numbers[1:])) for numbers in self.seen.values()]

    def check_readers(self):
        for name, file in self.seen_in.items():
            for number, value, is_whole in (map(int, line.split()) for line in whole_lines(file)):
                assert is_whole, "a reader has seen a part"
                assert self.value_of.setdefault(number, value) == value, "two versions of one number"
                assert value not in self.refused, f"a version is shown that was refused: {self.refused[value]}"
                self.seen[name].append(number)
                self.last_values[name] = value

    def end(self):
        for one in self.readers:
            one.kill()
            one.wait()
        for one in (*self.notes, *self.seen_in.values()):
            one.close()
        for one in self.members:
            one.stop()


LARGE = 1 << 20  # bytes; tables and versions of a few elements have fewer


def large_versions(store):
    return {one["version"] for each in store.list() for one in each["versions"] if one["bytes"] > LARGE}


def large_memory(pids):
    """Returns the numbers of the files of memory that the processes hold."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            for entry in os.scandir(f"/proc/{pid}/fd"):
                if "memfd:" in os.readlink(entry.path) and os.stat(entry.path).st_size > LARGE:
                    found.add(os.stat(entry.path).st_ino)
    return found


def whole_lines(file):
    """Iterates over the lines that have been written to their end: a line may be seen in parts, a page each."""
    while True:
        at = file.tell()
        line = file.readline()
        if not line.endswith("\n"):
            file.seek(at)
            return
        yield line


FAULTS = [Fleet.kill_ferry, Fleet.stop_ferry, Fleet.kill_half, Fleet.kill_both_halves, Fleet.kill_etcd, Fleet.cut,
          Fleet.kill_reader, Fleet.kill_publisher, Fleet.kill_publisher]  # fmt: skip


def outcome_of(status, err):
    """Returns how a command has ended. Fails for an end that the guide does not name."""
    if status in (0, -signal.SIGKILL):
        return "killed" if status else "done"
    named = {
        "may become current|may be carried out yet": "unknown",
        "has changed meanwhile|is not current|has lost its turn": "superseded",
        "does not become current": "not on all hosts in time",
        "etcd does not answer": "etcd does not answer",
        "another process publishes": "another publisher",
        "has no version|has no object": "no such version",
        "keeper|belongs to no group|has left the group": "the host begins anew",
    }
    found = next((outcome for pattern, outcome in named.items() if re.search(pattern, err)), None)
    assert found, (status, err)
    return found


@pytest.fixture
def fleet(request, hosts, tmp_path):
    net = OneNetwork() if networks.obstacle() else request.getfixturevalue("connected")(3)
    made = Fleet(net, hosts, tmp_path, int(os.environ.get("ONECOPY_GROUP_SEED", "7")))
    yield made
    made.end()


def test_random_faults_show_no_part_no_older_version_and_none_that_was_refused(fleet, watchdog):
    for _ in range(STEPS):
        watchdog()
        fleet.step()
        fleet.check_readers()
        # One that is fetched, one that is about to become current or to be dropped, and one of a publisher on that host.
        assert fleet.check_copies(arriving=3) is None
    watchdog()
    child, ended = fleet.publish(fleet.hosts[0], ["--everywhere"], timeout=100)
    out, err = child.communicate(timeout=PATIENCE)
    ended(child.returncode, out, err)
    assert fleet.published in fleet.value_of.values(), err
    wait_until(lambda: fleet.check_readers() or set(fleet.last_values.values()) == {fleet.published})
    wait_until(lambda: fleet.check_copies(arriving=0) is None)
    assert all(large_memory(host.connect().keeper().values()) for host in fleet.hosts)
    print(*fleet.check(), dict(fleet.outcomes), dict(fleet.faults))
