# SPDX-License-Identifier: Apache-2.0
"""What pulls meet between hosts: cut cables, full memory, full disks, several addresses, and keepers that end."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time

import pytest

import onecopy
from support.store_hosts import CHUNK, number_in, wait_until, weights

pytest.importorskip("torch")


def can_mount():
    return os.geteuid() == 0 and subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0


wants_mounts = pytest.mark.skipif(not can_mount(), reason="needs root, who may make namespaces")


def bytes_of_chunks(host):
    """Returns how many chunks of the version that arrives are whole, which the keeper's list says."""
    worker = host.connect().keeper()["worker"]
    whole = 0
    for entry in os.scandir(f"/proc/{worker}/fd"):
        with contextlib.suppress(OSError):
            if "onecopy-store-arrived" in os.readlink(entry.path):
                with open(entry.path, "rb") as file:
                    whole += sum(file.read())
    return whole


def received(said):
    """Returns the bytes that a pull has said to have received."""
    number, unit = re.search(r", ([\d.]+) (\w+) of them received", said).groups()
    return float(number) * {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[unit]


def test_a_pull_goes_on_when_a_cut_cable_is_mended(connected, hosts):
    net = connected(2)
    there, here = (hosts(net.enter(host)) for host in range(2))
    there.connect().publish("llama", weights(1, 12))
    puller = here.start("pull", there.serve(f"{net.address(0, 1)}:0", "--rate", "100MiB"), "llama")
    wait_until(lambda: bytes_of_chunks(here) >= 4)
    net.cut(0, 1)
    assert any("trying again" in line for line in puller.stderr)
    assert here.connect().list() == []
    net.mend(0, 1)
    out, err = puller.communicate(timeout=120)
    assert puller.returncode == 0, err
    assert received(out) <= 8 * CHUNK
    assert number_in(here.connect().open("llama")) == 1


def test_a_pull_gives_up_when_a_cable_stays_cut_and_the_next_one_takes_what_is_missing(connected, hosts):
    net = connected(2)
    there, here = (hosts(net.enter(host)) for host in range(2))
    there.connect().publish("llama", weights(1, 12))
    address = there.serve(f"{net.address(0, 1)}:0", "--rate", "100MiB")
    puller = here.start("pull", address, "llama", "--timeout", 0)
    wait_until(lambda: bytes_of_chunks(here) >= 4)
    net.cut(0, 1)
    assert "the other host sent nothing for" in puller.communicate(timeout=120)[1]
    assert puller.returncode == 1
    net.mend(0, 1)
    assert received(here.run("pull", address, "llama")) <= 8 * CHUNK
    assert number_in(here.connect().open("llama")) == 1


def test_a_host_that_is_cut_off_from_its_source_goes_on_with_another_one(connected, hosts):
    net = connected(3)
    first, second, third = (hosts(net.enter(host)) for host in range(3))
    first.connect().publish("llama", weights(1, 12))
    first.serve("0.0.0.0:7100")
    second.run("pull", f"{net.address(0, 1)}:7100", "llama")
    second.serve("0.0.0.0:7100", "--rate", "100MiB")
    addresses = [f"{net.address(host, 2)}:7100" for host in (1, 0)]
    puller = third.start("pull", addresses[0], "llama", "--also", addresses[1])
    wait_until(lambda: bytes_of_chunks(third) >= 4)
    net.cut(1, 2)
    err = puller.communicate(timeout=120)[1]
    assert puller.returncode == 0, err
    assert addresses[0] in err and "gives no more" in err
    assert number_in(third.connect().open("llama")) == 1


@wants_mounts
@pytest.mark.parametrize("at", ["127.0.0.1", "[::1]"])
def test_each_address_of_a_name_is_tried(hosts, tmp_path, at):
    names = tmp_path / "names"
    names.write_text("::1 trainer\n127.0.0.1 trainer\n")
    enter = ["unshare", "--mount", "sh", "-c", f'mount --bind {names} /etc/hosts && exec "$@"', "sh"]
    there, here = hosts(), hosts(enter)
    there.connect().publish("llama", weights(1, 1))
    here.connect()  # its keeper is not of the mount namespace
    port = there.serve(f"{at}:0").rsplit(":", 1)[1]
    assert "version 1" in here.run("pull", f"trainer:{port}", "llama")


def test_a_name_without_an_address_is_looked_up_again(pair):
    there, cable, here = pair
    there.connect().publish("llama", weights(1, 1))
    said = here.run("pull", "nobody.invalid:7000", "llama", "--timeout", 0, status=1)
    assert 'the host "nobody.invalid" has no address' in said
    assert "version 1" in here.run("pull", "nobody.invalid:7000", "llama", "--also", cable.address)
    assert "is not an address" in here.run("pull", cable.address, "llama", "--also", "nobody", status=1)


def test_a_version_beyond_the_limits_of_the_process_is_refused_before_its_bytes_come(pair):
    there, cable, here = pair
    there.connect().publish("llama", weights(1, 4))
    here.connect()
    here.enter = ["prlimit", f"--fsize={2 * CHUNK}"]
    assert f"{4 * CHUNK} bytes" in here.run("pull", cable.address, "llama", status=1)
    assert cable.came < CHUNK // 4
    here.enter = []
    assert "version 1" in here.run("pull", cable.address, "llama")


def test_room_that_a_pull_has_reserved_is_given_to_no_publisher(pair):
    there, cable, here = pair
    there.connect().publish("llama", weights(1, 4))
    here.run("serve", "--background", "--max-bytes", 6 * CHUNK)
    refused = []

    def publish():
        with pytest.raises(onecopy.OutOfMemory) as raised:
            here.connect().publish("other", weights(2, 3))
        refused.append(raised.value)

    cable.when(2 * CHUNK, publish)
    here.run("pull", cable.address, "llama")
    assert len(refused) == 1
    assert number_in(here.connect().open("llama")) == 1
    here.connect().publish("other", weights(2, 1))


@pytest.fixture
def small_disk(tmp_path):
    """A function that mounts a file system of 1 MiB at a directory."""
    with contextlib.ExitStack() as stack:

        def mount(directory):
            os.mkdir(directory, 0o700)
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "none", directory], check=True)
            stack.callback(subprocess.run, ["umount", "--lazy", directory], check=True)

        yield mount


@wants_mounts
def test_a_full_disk_is_an_error_before_the_bytes_come(small_disk, hosts, cable):
    there, here = hosts(), hosts()
    there.connect().publish("llama", weights(1, 2))
    disk = here.environment["ONECOPY_STORE_DIR"]
    small_disk(disk)
    here.connect()
    line = cable(there.serve())
    filler = os.path.join(disk, "filler")
    with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
        while file.write(bytes(1024)):
            pass
    assert "No space left" in here.run("pull", line.address, "llama", "--timeout", 0, status=1)
    assert line.came < CHUNK // 4
    assert here.connect().list() == []
    os.remove(filler)
    here.run("pull", line.address, "llama")
    assert number_in(here.connect().open("llama")) == 1


def test_serve_goes_on_with_a_keeper_that_another_process_starts_meanwhile(hosts):
    """serve finds no keeper and says its address; an autostart may then be the first to have the lock."""
    for _ in range(12):
        host = hosts()
        host.serve()
        host.connect().put_bytes("a", b"x")
        assert host.connect().get_bytes("a") == b"x"
        host.ferry()
        assert host.server.poll() is None


def test_a_keeper_that_serve_has_started_ends_with_it(hosts):
    host = hosts()
    host.serve()
    keeper = host.connect_without_starting().keeper()
    host.server.send_signal(signal.SIGTERM)
    assert host.server.wait(timeout=60) == 0
    wait_until(lambda: not any(map(is_alive, keeper.values())))


def test_a_keeper_that_ran_before_serve_stays(hosts):
    host = hosts()
    keeper = host.connect().keeper()
    host.serve()
    host.server.send_signal(signal.SIGTERM)
    host.server.wait(timeout=60)
    assert host.connect().keeper() == keeper
    assert all(map(is_alive, keeper.values()))


def is_alive(pid):
    with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def test_a_host_sends_no_more_than_its_rate(hosts):
    there, here = hosts(), hosts()
    there.connect().publish("llama", weights(1, 2))
    address = there.serve("127.0.0.1:0", "--rate", "16MiB")
    begin = time.monotonic()
    here.run("pull", address, "llama")
    assert time.monotonic() - begin > 1.9  # a pause in front of each piece but the first
    assert "--listen" in here.run("serve", "--rate", "16MiB", status=2)
