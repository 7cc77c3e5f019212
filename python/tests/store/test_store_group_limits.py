# SPDX-License-Identifier: Apache-2.0
"""Hosts of a group that lack something: room on a disk, descriptors, a fast network."""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess

import pytest

import onecopy
from support.store_group import Etcd, join, present, publish, save, shown, starve, version_at, wait_for
from support.store_hosts import COMMAND, wait_until


@pytest.fixture
def small_disk(tmp_path):
    """A function that puts a small file system in place of a directory; returns one that fills it."""
    if os.geteuid() != 0:
        pytest.skip("wants root, to mount a file system")
    mounted = []

    def fill(directory):
        (directory / "filler").write_bytes(b"")
        with contextlib.suppress(OSError), open(directory / "filler", "ab", buffering=0) as filler:
            while filler.write(bytes(4096)) == 4096:
                continue
        with contextlib.suppress(OSError):
            for i in range(10_000):
                (directory / f"filler{i}").touch()
        return [directory / "filler", *directory.glob("filler[0-9]*")]

    def mount(directory):
        directory.mkdir(mode=0o700, exist_ok=True)
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,nr_inodes=200,mode=700", "tmpfs", directory])
        if done.returncode != 0:
            pytest.skip("this user may not mount a file system")
        mounted.append(directory)
        return lambda: fill(directory)

    yield mount
    for directory in mounted:
        subprocess.run(["umount", "-l", directory], check=True)


def test_a_host_whose_directory_is_full_goes_on_and_is_up_to_date_once_it_has_room(hosts, etcd, small_disk):
    made = [hosts() for _ in range(2)]
    directory = pathlib.Path(made[1].environment["ONECOPY_STORE_DIR"])
    fill = small_disk(directory)
    group = [join(host, f"h{i}", etcd.url) for i, host in enumerate(made)]
    wait_until(lambda: present(group[0]) == {"h0", "h1"})
    publish(group[0], 1)
    filled = fill()
    assert publish(group[0], 2, everywhere=1) == 2
    with contextlib.suppress(onecopy.OutOfMemory):  # "No space left on device" of h1, or what was open has room
        publish(group[0], 3, timeout=20)
    number = shown(group[0])
    assert shown(group[1]) in [(1, 1), (2, 2), (3, 3)]
    assert group[1].connect().age() < 10  # the host follows etcd
    for file in filled:
        file.unlink()
    wait_for(group, *number)
    last = publish(group[1], 4)
    wait_for(group, last, 4)


def test_a_host_without_descriptors_catches_up_once_it_has_some(group):
    publish(group[0], 1)
    ferry = group[1].ferry()
    feed = starve(ferry)
    assert publish(group[0], 2, everywhere=2) == 2
    wait_for([group[0], group[2]], 2, 2)
    assert shown(group[1]) == (1, 1)
    feed()
    wait_for(group, 2, 2)
    assert group[1].ferry() == ferry
    assert publish(group[1], 3) == 3
    wait_for(group, 3, 3)


@pytest.fixture
def slow(hosts, etcd):
    """Two hosts, of which the first sends 2 MiB a second."""
    made = [join(hosts(), "h0", etcd.url, "--rate", "2MiB"), join(hosts(), "h1", etcd.url)]
    wait_until(lambda: present(made[0]) == {"h0", "h1"})
    return made


def test_while_a_large_version_arrives_others_are_fetched_too(slow):
    large = slow[0].start("put", "llama", save(slow[0], 1, 20_000_000), "--everywhere")
    wait_until(lambda: version_at(slow[0], "h0") == 1)
    for number in (1, 2):
        assert publish(slow[0], number, name="small", elements=10) == number
        assert shown(slow[1], "small") == (number, number)
    assert large.poll() is None and shown(slow[1]) is None
    large.kill()


def test_what_has_come_of_a_version_is_dropped_when_its_publisher_ends(slow):
    large = slow[0].start("put", "llama", save(slow[0], 1, 20_000_000), "--everywhere")
    wait_until(lambda: held(slow[1]) > 50 << 20)
    large.kill()
    wait_until(lambda: held(slow[1]) < 1 << 20)


def held(host):
    """Returns the bytes in files of memory that the keeper of a host has open."""
    worker = host.connect().keeper()["worker"]
    sizes = 0
    for fd in os.listdir(f"/proc/{worker}/fd"):
        with contextlib.suppress(OSError):
            if "memfd:" in os.readlink(f"/proc/{worker}/fd/{fd}"):
                sizes += os.stat(f"/proc/{worker}/fd/{fd}").st_size
    return sizes


def test_a_host_that_sends_slowly_is_left_by_those_behind_it(hosts, etcd):
    group = [join(hosts(), f"h{i}", etcd.url, *(["--rate", "1MiB"] if i == 1 else [])) for i in range(3)]
    wait_until(lambda: present(group[0]) == {"h0", "h1", "h2"})
    publish(group[0], 1, elements=40_000_000, timeout=60)  # 160 MB take h1 more than two minutes
    wait_for(group, 1, 1)


def test_etcd_without_space_refuses_in_its_own_words_and_hosts_go_on(hosts, tmp_path):
    small = Etcd.started(tmp_path / "small", "--quota-backend-bytes", "4194304")  # 4 MiB
    try:
        group = [join(hosts(), f"h{i}", small.url) for i in range(2)]
        wait_until(lambda: present(group[0]) == {"h0", "h1"})
        publish(group[0], 1)
        with pytest.raises(AssertionError, match="database space exceeded"):
            for i in range(100):
                small.ctl("put", f"filler{i}", "x" * 100_000)
        with pytest.raises(onecopy.System, match="database space exceeded"):
            publish(group[0], 2)
        assert [shown(host) for host in group] == [(1, 1)] * 2
        assert "NOSPACE" in doctor(group[0])
        small.free_space()
        wait_until(lambda: present(group[0]) == {"h0", "h1"})
        assert publish(group[0], 3) == 2
        wait_for(group, 2, 3)
    finally:
        small.stop()


def doctor(host):
    """Returns what doctor says of etcd."""
    done = subprocess.run([*COMMAND, "doctor"], env={**os.environ, **host.environment}, capture_output=True, text=True)
    lines = done.stdout[done.stdout.index(" etcd ") :].splitlines()
    return " ".join(line.strip() for line in lines[:4])
