# SPDX-License-Identifier: Apache-2.0
"""Faults around the store: abandoned drafts, no memory, bad directories, other versions, strangers, many readers."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import onecopy
from support.devices import eventually
from support.processes import beside, in_threads, interpret as run
from test_store import values

VERSION = 6  # of the store's protocol


def held_bytes(store):
    """Returns the bytes of all memory that the keeper's worker has a descriptor of."""
    pid = store.keeper()["worker"]
    held = 0
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            if os.readlink(f"/proc/{pid}/fd/{fd}").startswith("/memfd:"):
                held += os.stat(f"/proc/{pid}/fd/{fd}").st_size
    return held


# --- drafts -----------------------------------------------------------------------------------------


def test_a_draft_whose_process_is_killed_leaves_nothing(store):
    store.publish("a", values(1))
    before = held_bytes(store)
    program = """
import os, onecopy
with onecopy.store.connect().draft("a") as draft:
    assert len(list(draft.values())) == 3
    os.kill(os.getpid(), 9)
"""
    assert run(program).returncode == -signal.SIGKILL
    assert store.open("a").version == 1
    assert held_bytes(store) == before
    assert store.publish("a", values(2)) == 2


def test_a_publisher_that_is_stopped_delays_nobody_and_publishes_when_it_goes_on(store):
    program = """
import os, signal, torch, onecopy
with onecopy.store.connect().draft("a") as draft:
    for tensor in draft.values():
        tensor.fill_(7)
    print("drafted", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
"""
    store.publish("a", values(1))
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as publisher:
        assert publisher.stdout.readline() == "drafted\n"
        os.waitid(os.P_PID, publisher.pid, os.WSTOPPED)
        assert store.publish("a", values(2)) == 2
        assert {float(tensor[0, 0]) for tensor in store.open("a").values()} == {2.0}
        publisher.send_signal(signal.SIGCONT)
        assert publisher.wait(60) == 0
    assert {float(tensor[0, 0]) for tensor in store.open("a", 3).values()} == {7.0}


def test_two_publishers_of_one_name_get_numbers_of_their_own(store):
    found = []

    def publish():
        mine = onecopy.store.connect()
        found.extend(mine.publish("a", values(1), keep=40) for _ in range(20))

    in_threads(publish, [(), ()])
    assert sorted(found) == list(range(1, 41))
    assert store.open("a").version == 40


# --- no memory, no descriptors ----------------------------------------------------------------------

PUBLISH_WITH_A_LIMIT = """
import resource, sys, onecopy
store = onecopy.store.connect()
tensors = {"x": onecopy.full((64 << 20,), 1.0)}
small = {"x": onecopy.full((10,), 1.0)}
store.publish("small", small)
limit, value = getattr(resource, sys.argv[1]), int(sys.argv[2])
if sys.argv[1] == "RLIMIT_AS":
    value += int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
before = resource.getrlimit(limit)
resource.setrlimit(limit, (value, before[1]))
try:
    store.publish("a", tensors)
except onecopy.Error as error:
    print(type(error).__name__, error)
resource.setrlimit(limit, before)
print(store.publish("a", tensors), store.publish("small", small))
"""


@pytest.mark.parametrize(
    "limit, value, error",
    [("RLIMIT_AS", 128 << 20, r"OutOf(Memory|Mappings) .*268435456"), ("RLIMIT_NOFILE", 0, "OutOfDescriptors ")],
)
def test_memory_or_descriptors_that_end_in_the_middle_are_an_error_and_leave_nothing(store, limit, value, error):
    done = run(PUBLISH_WITH_A_LIMIT, limit, str(value))
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert re.match(error, first)
    assert second == "1 2"


# --- the directory ----------------------------------------------------------------------------------


@pytest.mark.parametrize("directory", ["/proc/onecopy", "/dev/null/store", "/dev/null"])
def test_a_directory_that_cannot_be_made_is_an_error_that_names_it(store_place, monkeypatch, directory):
    monkeypatch.setenv("ONECOPY_STORE_DIR", directory)
    with pytest.raises(onecopy.Error, match=re.escape(directory)):
        onecopy.store.connect()


def test_a_directory_that_others_may_enter_is_refused(store_place):
    store_place.mkdir(mode=0o755)
    with pytest.raises(onecopy.Error, match="chmod 700|0700|others"):
        onecopy.store.connect()


def test_a_directory_with_a_name_too_long_for_a_socket_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("ONECOPY_STORE_DIR", str(tmp_path / ("x" * 120)))
    with pytest.raises(onecopy.Error, match="bytes, at most 107 are possible; choose"):
        onecopy.store.connect()


def test_a_directory_that_is_full_is_an_error(store_place):
    program = """
import resource, signal, onecopy
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
try:
    onecopy.store.connect()
except onecopy.Unsupported as error:
    print(error)
"""
    done = run(program)
    assert "the store's keeper cannot be started" in done.stdout, done.stdout + done.stderr
    assert not (store_place / "keeper").exists()


# --- other versions and strangers -------------------------------------------------------------------


def packet(version, kind, body=b""):
    return struct.pack("=III", version, kind, 0) + body


def connection(store_place):
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client.settimeout(20)
    client.connect(str(store_place / "keeper"))
    return client


def test_a_client_of_another_version_is_told_so(store, store_place):
    with connection(store_place) as client:
        client.send(packet(VERSION + 1, 1, bytes(16)))
        assert f"version {VERSION + 1} of the store's protocol and this one version {VERSION}".encode() in client.recv(
            4096
        )
    assert store.list() == []


def test_a_keeper_of_another_version_is_an_error_that_says_what_to_do(store_place):
    store_place.mkdir(mode=0o700)
    (store_place / "secret").write_bytes(bytes(32))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(store_place / "keeper"))
        listener.listen()

        def answer():
            client = listener.accept()[0]
            client.recv(4096)
            client.send(packet(VERSION + 1, 2, bytes(48)))
            client.close()

        with beside(answer, ()), pytest.raises(onecopy.VersionMismatch, match="onecopy store stop"):
            onecopy.store.connect(autostart=False)
    (store_place / "keeper").unlink()


def test_a_process_without_the_secret_is_refused(store, store_place):
    store.publish("a", values(1))
    with connection(store_place) as client:
        client.send(packet(VERSION, 1, bytes(16)))
        client.recv(4096)
        client.send(packet(VERSION, 3, bytes(32)))
        assert b"does not know the secret" in client.recv(4096)
        assert client.recv(4096) == b""
    with connection(store_place) as client:  # a question before the proof
        client.send(packet(VERSION, 13))
        assert client.recv(4096) == b""
    assert store.open("a").version == 1


@pytest.mark.parametrize("data", [b"", b"x", bytes(8), os.urandom(64), bytes(60_000)])
def test_bytes_that_are_no_message_end_the_connection_alone(store, store_place, data):
    with connection(store_place) as client:
        client.send(data or b"\0")
        while client.recv(4096):
            pass
    assert store.publish("a", values(1)) == 1


def test_strangers_that_say_nothing_take_no_descriptors_of_the_keeper(store, store_place):
    strangers = [connection(store_place) for _ in range(300)]
    assert store.publish("a", values(1)) == 1
    assert strangers[0].recv(4096) == b""  # more than 256 may not wait
    held = len(os.listdir(f"/proc/{store.keeper()['worker']}/fd"))
    assert held < 300
    assert strangers[299].recv(4096) == b""  # nor may the last one wait for ever
    for stranger in strangers:
        stranger.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_another_user_is_refused(monkeypatch):
    place = Path(tempfile.mkdtemp())
    monkeypatch.setenv("ONECOPY_STORE_DIR", str(place))
    store = onecopy.store.connect()
    store.publish("a", values(1))
    program = """
import os, socket, sys
os.setuid(65534)
client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
try:
    client.connect(sys.argv[1])
    client.send(bytes(8))
    print(client.recv(99))
except OSError as error:
    print(type(error).__name__)
"""
    assert run(program, str(place / "keeper")).stdout == "PermissionError\n"
    place.chmod(0o711)  # even where the permissions let the user in
    (place / "keeper").chmod(0o777)
    assert run(program, str(place / "keeper")).stdout in ("b''\n", "BrokenPipeError\n", "ConnectionResetError\n")
    assert store.open("a").version == 1
    store.stop()
    shutil.rmtree(place)


# --- many -------------------------------------------------------------------------------------------


def test_512_readers_of_a_version_keep_it_and_leave_nothing(store):
    store.publish("a", values(1), keep=1)
    program = """
import array, sys, onecopy
kept = [onecopy.store.connect().open("a") for _ in range(128)]
print("open", flush=True)
sys.stdin.readline()
ones = array.array("f", [1] * 20).tobytes()
assert all(bytes(version["layer.1"]) == ones for version in kept)
"""
    command = [sys.executable, "-c", program]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    readers = [subprocess.Popen(command, **pipes) for _ in range(4)]
    for reader in readers:
        assert reader.stdout.readline() == "open\n"
    assert store.list()[0]["versions"][0]["readers"] == 512
    store.publish("a", values(2), keep=1)
    assert [version["version"] for version in store.list()[0]["versions"]] == [1, 2]
    os.kill(store.keeper()["worker"], signal.SIGKILL)
    assert store.open("a", 1)["layer.0"][0, 0] == 1
    for reader in readers:
        reader.communicate("end\n")
        assert reader.returncode == 0
    assert eventually(lambda: [version["version"] for version in store.list()[0]["versions"]] == [2])


def test_a_name_is_told_apart_from_one_that_it_begins(store):
    for name in ("a", "a/b", "a/b/c", "ab"):
        store.publish(name, values(1))
    store.delete("a")
    assert [entry["name"] for entry in store.list()] == ["a/b", "a/b/c", "ab"]


def test_a_forked_child_that_ends_takes_no_reading_from_its_parent(store):
    store.publish("a", values(1), keep=1)
    reader = store.open("a")
    pid = os.fork()
    if pid == 0:
        del reader
        os._exit(0)
    os.waitpid(pid, 0)
    store.publish("a", values(2), keep=1)
    assert [version["version"] for version in store.list()[0]["versions"]] == [1, 2]
    assert float(reader["layer.0"][0, 0]) == 1
