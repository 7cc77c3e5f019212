# SPDX-License-Identifier: Apache-2.0
"""Versions that go from the store of one host to the store of another one, over real sockets, while processes are killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest

import onecopy
from support.store_hosts import CHUNK, number_in, wait_until, weights

torch = pytest.importorskip("torch")


def test_a_pulled_version_is_the_one_that_was_published(pair):
    there, cable, here = pair
    store = there.connect()
    tied = torch.arange(1000, dtype=torch.int64)
    content = {
        "a": torch.randn(3, 5),
        "b": tied,
        "c": tied,
        "empty": torch.empty(0),
        "half": torch.ones(7, dtype=torch.bfloat16),
    }
    for _ in range(3):
        store.publish("llama", content, key={"rank": "0"}, attributes={"step": "7"}, checksums=True)
    assert "llama version 3" in here.run("pull", cable.address, "llama")
    version = here.connect().open("llama", key={"rank": "0"})
    assert version.version == 3 and version.attributes == {"step": "7"}
    assert list(version) == list(content)
    assert all(torch.equal(version[name], content[name]) for name in content)
    assert version["b"].data_ptr() == version["c"].data_ptr()
    version.verify()
    assert "is here already" in here.run("pull", cable.address, "llama")


def test_a_named_version_is_pulled_and_a_missing_one_is_an_error(pair):
    there, cable, here = pair
    for number in (1, 2):
        there.connect().publish("llama", weights(number, 1))
    assert "version 1" in here.run("pull", cable.address, "llama", "--version", 1)
    assert number_in(here.connect().open("llama")) == 1
    assert "9" in here.run("pull", cable.address, "llama", "--version", 9, status=1)
    assert "nobody" in here.run("pull", cable.address, "nobody", status=1)


@pytest.mark.parametrize("victim", ["puller", "ferry", "worker", "guard", "cable"])
def test_a_pull_that_is_interrupted_takes_only_what_is_missing(pair, victim):
    there, cable, here = pair
    chunks, before = 12, 5
    there.connect().publish("llama", weights(1, chunks))
    here.run("serve", "--background")

    def strike():
        if victim == "cable":
            cable.cut()
        else:
            find = {"puller": lambda: puller.pid, "ferry": there.ferry}
            os.kill(find.get(victim, lambda: here.connect().keeper()[victim])(), signal.SIGKILL)

    cable.when((before + 1) * CHUNK, strike)
    puller = here.start("pull", cable.address, "llama")
    puller.communicate(timeout=120)
    if victim == "puller":
        assert puller.returncode == -signal.SIGKILL
        assert here.connect().list() == []
        here.run("pull", cable.address, "llama")
    else:
        assert puller.returncode == 0
    assert number_in(here.connect().open("llama")) == 1
    again = 5 if victim in ("puller", "ferry", "cable") else 0  # those that were under way
    assert cable.came < (chunks + again) * CHUNK * 1.01


def test_what_has_arrived_is_pulled_again_after_both_halves_of_the_keeper_were_killed(pair):
    there, cable, here = pair
    there.connect().publish("llama", weights(1, 6))
    killed = []

    def kill():
        killed.extend(here.connect().keeper().values())
        for pid in killed:
            os.kill(pid, signal.SIGKILL)

    cable.when(3 * CHUNK, kill)
    puller = here.start("pull", cable.address, "llama")
    puller.communicate(timeout=120)
    if puller.returncode != 0:
        here.run("pull", cable.address, "llama")
    assert len(killed) == 2
    assert number_in(here.connect().open("llama")) == 1


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this kernel has no IPv6")
def test_hosts_that_have_only_ipv6_reach_each_other(hosts):
    there, here = hosts(), hosts()
    address = there.serve("[::1]:0")
    assert address.startswith("[::1]:")
    there.connect().publish("llama", weights(1, 1))
    here.run("pull", address, "llama")
    assert number_in(here.connect().open("llama")) == 1


def test_no_part_is_visible_before_all_has_arrived(pair):
    there, cable, here = pair
    there.connect().publish("llama", weights(1, 8))
    seen = []

    def look():
        seen.append(here.connect().list())
        with pytest.raises(onecopy.StaleHandle):
            here.connect().open("llama")

    for chunk in range(1, 8):
        cable.when(chunk * CHUNK, look)
    here.run("pull", cable.address, "llama")
    assert seen == [[]] * 7
    assert number_in(here.connect().open("llama")) == 1


def test_the_memory_of_a_pulled_version_is_sealed_against_writes(pair):
    there, cable, here = pair
    there.connect().publish("llama", weights(1, 1))
    here.run("pull", cable.address, "llama")
    worker = here.connect().keeper()["worker"]
    chunks = []
    for entry in os.scandir(f"/proc/{worker}/fd"):
        if "memfd:" in os.readlink(entry.path) and os.stat(entry.path).st_size == CHUNK:
            with open(entry.path, "rb") as file:
                chunks.append(fcntl.fcntl(file, fcntl.F_GET_SEALS))
    assert chunks and all(seals & fcntl.F_SEAL_WRITE for seals in chunks)


def test_hosts_with_other_keys_say_so(pair, tmp_path):
    there, cable, here = pair
    there.connect().publish("llama", weights(1, 1))
    other = tmp_path / "other"
    other.write_text("another secret, which has 40 characters, too")
    assert "another key" in here.run("pull", cable.address, "llama", status=1, ONECOPY_STORE_KEY_FILE=str(other))
    assert "ONECOPY_STORE_KEY_FILE" in here.run("pull", cable.address, "llama", status=1, ONECOPY_STORE_KEY_FILE="")
    other.write_text("short")
    assert "needs at least 32" in here.run("pull", cable.address, "llama", status=1, ONECOPY_STORE_KEY_FILE=str(other))
    assert here.connect().list() == []


def test_a_version_beyond_the_limit_is_refused_before_its_bytes_come(pair):
    there, cable, here = pair
    there.connect().publish("llama", weights(1, 4))
    here.run("serve", "--background", "--max-bytes", 2 * CHUNK)
    assert str(4 * CHUNK) in here.run("pull", cable.address, "llama", status=1).replace(",", "")
    assert cable.came < CHUNK // 4
    assert here.connect().list() == []


def test_a_version_that_is_removed_while_it_is_pulled_arrives_whole(pair):
    there, cable, here = pair
    there.connect().publish("llama", weights(1, 6))
    cable.when(2 * CHUNK, lambda: there.connect().delete("llama"))
    here.run("pull", cable.address, "llama")
    assert number_in(here.connect().open("llama")) == 1


def test_versions_of_this_host_are_not_replaced_by_those_of_another_one(pair):
    there, cable, here = pair
    there.connect().publish("llama", weights(1, 1))
    here.connect().publish("llama", weights(2, 1))
    assert "published on this host" in here.run("pull", cable.address, "llama", status=1)
    here.connect().delete("llama")
    here.run("pull", cable.address, "llama")
    assert number_in(here.connect().open("llama")) == 1


def test_a_version_that_was_removed_here_is_pulled_again(pair):
    there, cable, here = pair
    there.connect().publish("llama", weights(1, 1))
    here.run("pull", cable.address, "llama")
    here.connect().delete("llama")
    here.run("pull", cable.address, "llama")
    assert number_in(here.connect().open("llama")) == 1


def test_one_process_at_a_time_pulls_an_object(pair):
    there, cable, here = pair
    there.connect().publish("llama", weights(1, 1))
    follower = here.start("pull", cable.address, "llama", "--follow")
    assert "version 1" in follower.stdout.readline()
    assert "another process of this host pulls" in here.run("pull", cable.address, "llama", status=1)


def test_a_follower_shows_what_the_other_host_shows_also_after_a_rollback(pair):
    there, cable, here = pair
    store, mirror = there.connect(), here.connect()
    follower = here.start("pull", cable.address, "llama", "--follow")

    def shows(number):
        with contextlib.suppress(onecopy.StaleHandle):
            return number_in(mirror.open("llama")) == number

    for number in (1, 2, 3):
        store.publish("llama", weights(number, 2), keep=2)
        wait_until(lambda number=number: shows(number))
    came = cable.came
    store.rollback("llama", to=2)
    wait_until(lambda: shows(2))
    assert cable.came - came < CHUNK  # the version was here
    store.publish("llama", weights(4, 2), keep=2)
    wait_until(lambda: shows(4))
    assert follower.poll() is None


def test_versions_come_whole_and_in_order_whoever_is_killed(pair, kills):
    there, cable, here = pair
    store, mirror = there.connect(), here.connect()
    store.publish("llama", weights(1, 3), keep=2)
    here.run("pull", cable.address, "llama")
    chance = random.Random(7)
    follower = [here.start("pull", cable.address, "llama", "--follow")]
    ended = threading.Event()
    seen = []

    def read():
        live = mirror.follow("llama")
        while not ended.is_set():
            with contextlib.suppress(onecopy.Timeout, onecopy.PeerDied):
                live.update()
                seen.append(number_in(live))

    reader = threading.Thread(target=read)
    reader.start()
    last = 1
    for _ in range(max(kills // 4, 10)):
        last += 1
        store.publish("llama", weights(last, 3), keep=2)
        time.sleep(chance.random() * 0.3)
        what = chance.choice(["puller", "ferry", "here", "there", "cable"])
        if what == "cable":
            cable.cut()
        elif what == "puller":
            follower[0].kill()
            follower[0].wait()
            follower[0] = here.start("pull", cable.address, "llama", "--follow")
        elif what == "ferry":
            os.kill(there.ferry(), signal.SIGKILL)
        else:
            halves = (mirror if what == "here" else store).keeper()
            os.kill(halves[chance.choice(["worker", "guard"])], signal.SIGKILL)
    wait_until(lambda: seen and seen[-1] == last)
    ended.set()
    reader.join()
    assert seen == sorted(seen)
    assert mirror.open("llama").version == last


def test_the_keeper_has_no_socket_of_the_network(pair):
    there, cable, here = pair
    there.connect().publish("llama", weights(1, 1))
    here.run("pull", cable.address, "llama")
    names = [f"/proc/{os.getpid()}/net/{name}" for name in ("tcp", "tcp6")]
    inodes = {line.split()[9] for name in names for line in Path(name).read_text().splitlines()[1:]}
    for host in (there, here):
        for pid in host.connect().keeper().values():
            links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
            assert not {link[8:-1] for link in links if link.startswith("socket:")} & inodes


def test_a_host_pulls_from_a_host_that_pulls(hosts, cable):
    """The bytes leave the first host once, and the third host has chunks before the second one has them all."""
    first, second, third = hosts(), hosts(), hosts()
    chunks = 12
    first.connect().publish("llama", weights(1, chunks))
    to_first = cable(first.serve())
    to_first.pause = 0.02
    to_second = cable(second.serve())
    went = []
    to_first.when((chunks - 2) * CHUNK, lambda: went.append(to_second.came))
    follower = third.start("pull", to_second.address, "llama", "--follow")
    second.run("pull", to_first.address, "llama")
    assert "version 1" in follower.stdout.readline()
    assert number_in(third.connect().open("llama")) == 1
    assert to_first.came < chunks * CHUNK * 1.05
    assert went[0] > CHUNK


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_host_whose_source_is_away_goes_on_with_another_one(hosts, cable, how):
    first, second, third = hosts(), hosts(), hosts()
    chunks = 8
    first.connect().publish("llama", weights(1, chunks))
    to_first = cable(first.serve())
    to_second = cable(second.serve())
    second.run("pull", to_first.address, "llama")
    before = to_first.came
    ferry = second.ferry()

    def strike():
        os.kill(ferry, signal.SIGSTOP if how == "stopped" else signal.SIGKILL)
        if how == "killed":
            second.server.kill()

    to_second.when(3 * CHUNK, strike)
    try:
        third.run("pull", to_second.address, "llama", "--also", to_first.address)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(ferry, signal.SIGCONT)
    assert number_in(third.connect().open("llama")) == 1
    assert to_first.came - before < (chunks - 1) * CHUNK  # chunks of the second host were not taken again


def test_a_host_that_lags_behind_shows_nobody_an_older_version(hosts, cable):
    first, second, third = hosts(), hosts(), hosts()
    first.connect().publish("llama", weights(1, 1))
    to_first = cable(first.serve())
    to_second = cable(second.serve())
    second.run("pull", to_first.address, "llama")
    first.connect().publish("llama", weights(2, 1))
    third.run("pull", to_first.address, "llama")
    assert "version 2" in third.run("pull", to_second.address, "llama", status=1)
    assert number_in(third.connect().open("llama")) == 2
