# SPDX-License-Identifier: Apache-2.0
"""What the store's guide guarantees, sentence by sentence, with halves of the keeper that are killed or stopped."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading
import time

import pytest

torch = pytest.importorskip("torch")

import onecopy
from support.devices import eventually
from support.processes import interpret as run
from test_store import values


def kill_one(store, half="worker"):
    """Kills a half of the keeper, and waits for the next one."""
    pid = store.keeper()[half]
    os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: pid not in store.keeper().values())


def kill_both(store):
    """Kills both halves of the keeper at once."""
    halves = store.keeper()
    os.kill(halves["guard"], signal.SIGSTOP)  # so that it starts no other worker
    for pid in halves.values():
        os.kill(pid, signal.SIGKILL)


def numbers(store, name="a"):
    """Returns the numbers of the versions whose memory the store has."""
    found = [entry for entry in store.list() if entry["name"] == name]
    return [v["version"] for entry in found for v in entry["versions"] if not v["awaited"]]


@contextlib.contextmanager
def idle_reader(number=None):
    """A process that has a version open and makes no call until it reads a line, and then says what it sees."""
    program = f"""
import sys, onecopy
version = onecopy.store.connect().open("a", {number})
print("open", flush=True)
for line in sys.stdin:
    if line.startswith("call"):
        onecopy.store.connect().list()
        version._core
    print(float(version["layer.0"][0, 0]), flush=True)
"""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", program], **pipes) as reader:
        assert reader.stdout.readline() == "open\n"
        yield reader
        reader.communicate("end\n")


# --- one half is killed -----------------------------------------------------------------------------


@pytest.mark.parametrize("half", ["worker", "guard"])
def test_the_version_of_an_idle_reader_stays_when_a_half_is_killed(store, half):
    store.publish("a", values(1), keep=1)
    with idle_reader():
        store.publish("a", values(2), keep=1)
        kill_one(store, half)
        time.sleep(3)  # a grace of two seconds ended its reading
        assert float(store.open("a", 1)["layer.0"][0, 0]) == 1
        store.rollback("a", to=1)
        store.publish("a", values(3), keep=1)
    assert eventually(lambda: numbers(store) == [3])


def test_the_version_of_a_stopped_reader_stays_when_both_halves_are_killed_one_after_the_other(store):
    store.publish("a", values(1), keep=1)
    with idle_reader() as reader:
        reader.send_signal(signal.SIGSTOP)
        for half in ("worker", "guard", "worker"):
            store.publish("a", values(2), keep=1)
            kill_one(store, half)
        assert 1 in numbers(store)
        reader.send_signal(signal.SIGCONT)


def test_a_deleted_object_stays_deleted_when_the_worker_is_killed(store):
    store.publish("a", values(1))
    reader = onecopy.store.connect()
    held = reader.open("a")
    store.delete("a")
    kill_one(store)
    reader.list()  # the reader's next call
    with pytest.raises(onecopy.StaleHandle):
        store.open("a")
    assert float(held["layer.0"][0, 0]) == 1


def test_a_rollback_holds_when_the_worker_is_killed(store):
    reader = onecopy.store.connect()
    for number in (1, 2, 3):
        store.publish("a", values(number), keep=3)
    held = reader.open("a", 1)
    store.rollback("a", to=2)
    kill_one(store)
    reader.list()
    assert store.open("a").version == 2
    assert held.version == 1


def test_a_forked_child_counts_as_a_reader_of_what_it_inherited(store):
    store.publish("a", values(1), keep=1)
    program = """
import os, signal, onecopy
version = onecopy.store.connect().open("a")
pid = os.fork()
if pid == 0:
    signal.pause()
print(pid, flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        child = int(parent.stdout.readline())
        parent.stdout.close()
    store.publish("a", values(2), keep=1)
    kill_one(store)
    time.sleep(1.5)
    assert numbers(store) == [1, 2]
    os.kill(child, signal.SIGKILL)
    assert eventually(lambda: numbers(store) == [2])


# --- both halves are killed -------------------------------------------------------------------------


def test_a_rollback_holds_when_both_halves_are_killed(store):
    held = []
    for number in (1, 2, 3):
        store.publish("a", values(number), keep=3)
        held.append(store.open("a"))
    store.rollback("a", to=2)
    kill_both(store)
    assert store.open("a").version == 2
    assert numbers(store) == [1, 2, 3]


def test_a_deleted_object_stays_deleted_when_both_halves_are_killed(store):
    store.publish("a", values(1))
    held = store.open("a")
    store.delete("a")
    kill_both(store)
    with pytest.raises(onecopy.StaleHandle):
        store.open("a")
    assert held.version == 1


@pytest.mark.parametrize("end", [kill_both, lambda store: store.delete("a"), lambda store: store.stop()])
def test_numbers_go_on_whatever_became_of_the_versions(store, end):
    store.publish("a", values(1))
    store.publish("a", values(2))
    end(store)
    assert store.publish("a", values(3)) == 3


def test_a_version_comes_back_though_its_reader_makes_no_call(store):
    store.publish("a", values(1))
    with idle_reader():
        kill_both(store)
        assert eventually(lambda: numbers(store) == [1])
        assert run("import onecopy; print(onecopy.store.connect().open('a').version)").stdout == "1\n"


def test_a_publisher_that_is_quicker_takes_no_version_of_a_reader_away(store):
    store.publish("a", values(1))
    store.publish("a", values(2))
    with idle_reader(1) as reader:
        kill_both(store)
        assert store.publish("a", values(3)) == 3
        reader.stdin.write("call\n")
        reader.stdin.flush()
        assert reader.stdout.readline() == "1.0\n"
        assert store.open("a").version == 3


def test_a_version_that_nobody_had_open_is_gone_and_nobody_waits_twice_for_it(store):
    store.publish("a", values(1))
    kill_both(store)
    for _ in range(2):
        with pytest.raises(onecopy.StaleHandle, match='"a" was lost with the last keeper; publish it again'):
            store.open("a")
    assert [v["awaited"] for v in store.list()[0]["versions"]] == [True]


def test_an_inherited_follower_shows_the_version_of_another_keeper(store):
    store.publish("a", values(1))
    live = store.follow("a")
    readable, writable = os.pipe()
    go, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(go, 1)
        live.update()
        os.write(writable, bytes([live.version, int(live["layer.0"][0, 0])]))
        os._exit(0)
    del live
    kill_both(store)
    store.publish("a", values(2))
    os.write(tell, b"x")
    assert os.read(readable, 2) == bytes([2, 2])
    os.waitpid(pid, 0)


def test_a_kv_pool_stays_one_when_both_halves_are_killed_and_its_users_make_no_call(store):
    kv_pool = store.kv_pool("kv", block_bytes=4096, budget=8 * 4096)
    (block,) = kv_pool.allocate(1)
    assert kv_pool.put(b"key", block)
    kill_both(store)
    program = """
import onecopy
kv_pool = onecopy.store.connect().kv_pool("kv", block_bytes=4096, budget=8 * 4096)
print(len(kv_pool.find([b"key"])))
"""
    assert run(program).stdout == "1\n"


def test_versions_outlive_a_damaged_index_and_no_number_is_used_twice(store, store_place):
    for number in (1, 2):
        store.publish("a", values(number))
    held = store.open("a")
    kill_both(store)
    with open(store_place / "index", "r+b") as index:
        index.seek(60)
        index.write(b"\xff" * 16)
    assert store.open("a").version == held.version == 2
    assert store.publish("a", values(3)) > 2
    assert (store_place / "index.unreadable").exists()
    assert "the store cannot read its index" in (store_place / "keeper.log").read_text()


# --- nobody waits for the keeper --------------------------------------------------------------------


def test_dropping_a_version_waits_for_no_keeper_and_no_other_thread(store):
    store.publish("a", values(1))
    version = store.open("a")
    worker = store.keeper()["worker"]
    os.kill(worker, signal.SIGSTOP)
    asking = threading.Thread(target=store.list)
    asking.start()
    time.sleep(0.2)
    del version
    assert asking.is_alive()  # it still waits for the keeper
    os.kill(worker, signal.SIGCONT)
    asking.join()


def test_a_version_is_read_and_dropped_without_any_keeper(store):
    store.publish("a", values(1))
    version = store.open("a")
    kill_both(store)
    assert float(version["layer.0"][0, 0]) == 1
    del version


# --- limits -----------------------------------------------------------------------------------------


def test_a_draft_that_exceeds_the_limit_takes_no_memory(store_place):
    command = os.environ.get("ONECOPY_COMMAND", "")
    serve = [command] if command else [sys.executable, "-m", "onecopy"]
    assert (
        subprocess.run([*serve, "store", "serve", "--background", "--max-bytes", "16MiB"], timeout=60).returncode == 0
    )
    store = onecopy.store.connect()
    store.publish("a", {"x": torch.ones(1 << 20)})
    program = """
import torch, onecopy
def shared():
    return int(next(line for line in open("/proc/self/status") if line.startswith("RssShmem")).split()[1])
store = onecopy.store.connect()
tensors = {"x": torch.ones(64 << 20)}
before = shared()
try:
    store.publish("b", tensors)
except onecopy.OutOfMemory as error:
    print(shared() - before < 1024, "268435456" in str(error))
"""
    assert run(program).stdout == "True True\n"
    assert numbers(store) == [1]


def test_drafts_count_in_the_limit_until_they_are_dropped(store_place):
    serve = [sys.executable, "-m", "onecopy", "store", "serve", "--background", "--max-bytes", "12MiB"]
    assert subprocess.run(serve, timeout=60).returncode == 0
    store = onecopy.store.connect()
    store.publish("a", {"x": torch.ones(1 << 20)})
    draft = store.draft("a")
    kill_one(store)
    with pytest.raises(onecopy.OutOfMemory, match="versions and drafts"):
        store.publish("b", {"x": torch.ones(2 << 20)})
    del draft
    assert store.publish("b", {"x": torch.ones(2 << 20)}) == 1


def test_keep_is_what_the_last_publisher_wanted_also_after_a_rollback(store):
    store.publish("a", values(1), keep=1)
    store.publish("a", values(2), keep=3)
    store.rollback("a", to=1)
    store.open("a")
    assert numbers(store) == [1, 2]


def test_a_keeper_without_descriptors_says_so(store_place):
    program = "import resource, os, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)); os.execv(sys.argv[1], sys.argv[1:])"
    serve = [sys.executable, "-m", "onecopy", "store", "serve", "--background"]
    assert subprocess.run([sys.executable, "-c", program, *serve], timeout=60).returncode == 0
    store = onecopy.store.connect()
    with pytest.raises(onecopy.OutOfDescriptors, match="keeper of the store may have 64 open files"):
        for number in range(64):
            store.publish(f"object {number}", {"x": torch.ones(4)})
    store.delete("object 0")
    assert store.publish("object 1", {"x": torch.ones(4)}) == 2


def test_a_disk_without_room_refuses_changes_and_readers_go_on(store_place):
    program = "import resource, os, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192)); os.execv(sys.argv[1], sys.argv[1:])"
    serve = [sys.executable, "-m", "onecopy", "store", "serve", "--background"]
    assert subprocess.run([sys.executable, "-c", program, *serve], timeout=60).returncode == 0
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    store = onecopy.store.connect()
    published = 0
    with pytest.raises(onecopy.OutOfMemory, match="index"):
        for number in range(1000):
            store.publish("a", values(number), keep=2)
            published = number
    assert float(store.open("a")["layer.0"][0, 0]) == published
    with pytest.raises(onecopy.OutOfMemory, match="index"):
        for _ in range(1000):
            store.rollback("a", to=published)
            store.rollback("a", to=published + 1)


def test_a_process_opens_many_versions_with_few_descriptors(store):
    for number in range(300):
        store.publish(f"adapter {number}", {"x": torch.full((4,), float(number))})
    program = """
import resource, subprocess, sys, onecopy
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
store = onecopy.store.connect()
opened = [store.open(f"adapter {number}") for number in range(300)]
print(all(float(version["x"][0]) == number for number, version in enumerate(opened)))
print(sum(entry["versions"][0]["unkept"] for entry in store.list()))
print(subprocess.run([sys.executable, "-m", "onecopy", "store", "ls"], capture_output=True, text=True).stdout.count("1, 1 unkept"))
"""
    done = run(program)
    assert done.stdout == "True\n284\n284\n", done.stderr  # 16 versions need a quarter of the descriptors
