# SPDX-License-Identifier: Apache-2.0
"""KV pools whose memory is files on a tmpfs: keys and blocks stay when all users and the keeper are killed."""

import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import onecopy
from support.processes import interpret, kill_all

PAGE = 4096
SIZES = {"block_bytes": PAGE, "budget": 8 * PAGE, "outlives_keeper": True}
LARGE = {"block_bytes": PAGE, "budget": 256 * PAGE, "outlives_keeper": True}
KEYS = [hashlib.sha256(bytes([number])).digest() for number in range(200)]
#: Stores a block for each key again and again. A block has the first byte of its key everywhere.
ENGINE = f"""
import hashlib, onecopy, random, sys
kv_pool = onecopy.store.connect(framework="numpy").kv_pool("kv", **{LARGE})
keys = [hashlib.sha256(bytes([number])).digest() for number in range({len(KEYS)})]
rng = random.Random(int(sys.argv[1]))
for turn in range(1 << 30):
    for key in rng.sample(keys, len(keys)) if turn else keys:
        for number in filter(lambda number: number is not None, kv_pool.write([key], int(sys.argv[1]))):
            kv_pool.block(number)[:] = key[0]
            kv_pool.complete([number])
            kv_pool.release([number])
    if turn == 0:
        print("stored", flush=True)
    else:
        kv_pool.remove(rng.choice(keys[100:]))
"""


@pytest.fixture
def directory(monkeypatch):
    """The directory of a store in /dev/shm."""
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("wants to write to /dev/shm")
    directory = Path(tempfile.mkdtemp(dir="/dev/shm"))
    monkeypatch.setenv("ONECOPY_STORE_DIR", str(directory / "store"))
    yield directory / "store"
    with contextlib.suppress(onecopy.Error):
        onecopy.store.connect(autostart=False).stop()
    shutil.rmtree(directory)


def connect():
    return onecopy.store.connect(framework="numpy")


def files(directory):
    return sorted(path.name.rpartition(".")[2] for path in directory.glob("kv_pool-*"))


def wrong_bytes(kv_pool):
    """Returns how many of the keys are found, and how many bytes of their blocks differ from what was stored."""
    numbers = kv_pool.find_all(KEYS)
    found = [(key, number) for key, number in zip(KEYS, numbers) if number is not None]
    wrong = sum(int((kv_pool.block(number) != key[0]).sum()) for key, number in found)
    kv_pool.release([number for _, number in found])
    return len(found), wrong


@pytest.mark.parametrize("seed", range(4))
def test_a_third_engine_finds_all_keys_when_both_engines_and_the_keeper_are_killed_at_once(directory, seed):
    store = connect()
    engines = [
        subprocess.Popen([sys.executable, "-c", ENGINE, str(number)], stdout=subprocess.PIPE, text=True)
        for number in (1, 2)
    ]
    for engine in engines:
        assert engine.stdout.readline() == "stored\n"
    time.sleep(random.Random(seed).uniform(0, 0.2))
    kill_all(*store.keeper().values(), *(engine.pid for engine in engines))
    for engine in engines:
        engine.communicate()
    third = connect().kv_pool("kv", **LARGE)
    found, wrong = wrong_bytes(third)
    assert wrong == 0 and found >= len(KEYS) - 4, "each engine has removed at most two keys that were not stored again"
    assert third.contains(KEYS[:100]) == [True] * 100
    stats = third.stats()
    assert (stats["leased"], stats["writing"], stats["users"]) == (0, 0, 1)
    assert len(third.allocate(256)) == 256


def test_a_user_that_outlives_the_keeper_and_one_that_comes_later_have_one_kv_pool(directory):
    first = connect().kv_pool("kv", **SIZES)
    kill_all(*connect().keeper().values())
    second = connect().kv_pool("kv", **SIZES)
    [number] = second.write([b"key"], 7)
    second.block(number)[:] = 9
    second.complete([number])
    assert first.find([b"key"]) == [number] and set(first.block(number).tolist()) == {9}
    with pytest.raises(onecopy.OutOfMemory):
        second.allocate(8)


def test_a_user_that_is_stopped_while_the_keeper_is_killed_keeps_its_leases(directory):
    program = f"""
import onecopy
kv_pool = onecopy.store.connect(framework="numpy").kv_pool("kv", **{SIZES})
[number] = kv_pool.allocate(1)
kv_pool.block(number)[:] = 5
print("ready", flush=True)
input()
print(set(kv_pool.block(number).tolist()), kv_pool.put(b"key", number), flush=True)
"""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", program], **pipes) as user:
        assert user.stdout.readline() == "ready\n"
        user.send_signal(signal.SIGSTOP)
        kill_all(*connect().keeper().values())
        kv_pool = connect().kv_pool("kv", **SIZES)
        for number in kv_pool.allocate(7):
            kv_pool.block(number)[:] = 1
        user.send_signal(signal.SIGCONT)
        assert user.communicate("\n", 60)[0] == "{5} True\n"
    assert len(kv_pool.find([b"key"])) == 1


def test_the_files_are_of_this_user_only_and_delete_removes_them(directory):
    store = connect()
    kv_pool = store.kv_pool("kv", **SIZES)
    [number] = kv_pool.allocate(1)
    kv_pool.put(b"key", number)
    assert files(directory) == ["control", "memory"]
    assert {path.stat().st_mode & 0o777 for path in directory.glob("kv_pool-*")} == {0o600}
    store.delete("kv")
    assert files(directory) == []
    kv_pool.block(number)[:] = 1  # the memory stays with its users
    assert store.kv_pool("kv", **SIZES).find([b"key"]) == []


def test_delete_removes_a_kv_pool_that_nobody_has_opened_since_all_were_killed(directory):
    kv_pool = connect().kv_pool("kv", **SIZES)
    kv_pool.put(b"key", kv_pool.allocate(1)[0])
    kill_all(*connect().keeper().values())
    del kv_pool
    connect().delete("kv")
    assert files(directory) == []
    with pytest.raises(onecopy.InvalidArgument, match='no KV pool "kv": give budget='):
        connect().kv_pool("kv", block_bytes=PAGE)


def test_files_of_another_version_of_onecopy_are_refused_until_they_are_deleted(directory):
    interpret(f"import onecopy; onecopy.store.connect().kv_pool('kv', **{SIZES})", check=True)
    connect().stop()
    [control] = directory.glob("kv_pool-*.control")
    with control.open("r+b") as file:
        file.write(b"okvpool2")
    with pytest.raises(onecopy.BadFile, match=r'"kv" cannot be used: .* another version of onecopy.*store rm kv'):
        connect().kv_pool("kv", **SIZES)
    connect().delete("kv")
    assert connect().kv_pool("kv", **SIZES).find([b"key"]) == []


def test_files_that_are_damaged_are_refused(directory):
    interpret(f"import onecopy; onecopy.store.connect().kv_pool('kv', **{SIZES})", check=True)
    connect().stop()
    [memory] = directory.glob("kv_pool-*.memory")
    os.truncate(memory, PAGE)
    with pytest.raises(onecopy.BadFile, match="the memory is too small"):
        connect().kv_pool("kv", **SIZES)
    memory.unlink()
    with pytest.raises(onecopy.BadFile, match="cannot open .*memory"):
        connect().kv_pool("kv", **SIZES)


def test_a_process_that_is_killed_while_it_makes_the_files_leaves_nothing_that_is_found(directory):
    directory.mkdir(mode=0o700)
    interpret(f"import onecopy; onecopy.store.connect().kv_pool('kv', **{SIZES})", check=True)
    connect().stop()
    for path in directory.glob("kv_pool-*.control"):
        path.rename(path.with_suffix(".new"))
    assert len(connect().kv_pool("kv", **SIZES).allocate(8)) == 8


def test_other_sizes_and_a_kv_pool_without_files_are_refused(directory):
    store = connect()
    store.kv_pool("kv", **SIZES)
    kill_all(*store.keeper().values())
    with pytest.raises(onecopy.InvalidArgument, match="has 32768 bytes"):
        connect().kv_pool("kv", **SIZES | {"budget": 16 * PAGE})
    connect().kv_pool("other", block_bytes=PAGE, budget=8 * PAGE)
    with pytest.raises(onecopy.InvalidArgument, match='"other" was made without outlives_keeper: delete it first'):
        connect().kv_pool("other", **SIZES)


def command(*arguments):
    done = subprocess.run([sys.executable, "-m", "onecopy", *arguments], capture_output=True, text=True, check=False)
    return done.stdout


def told():
    """Returns what `onecopy ls` says of the files of each KV pool, and whether `onecopy doctor` names "kv"."""
    objects = json.loads(command("ls", "--format", "json"))["store"]["objects"]
    removed = {one["name"]: [space["files_removed"] for space in one["namespaces"]] for one in objects}
    return removed, 'The files of the KV pool "kv" were removed' in " ".join(command("doctor").split())


def test_a_kv_pool_whose_files_were_removed_is_named_by_ls_and_doctor(directory):
    store = connect()
    kv_pool = store.kv_pool("kv", **SIZES)
    other = store.kv_pool("other", block_bytes=PAGE, budget=8 * PAGE)
    assert told() == ({"kv": [0], "other": [0]}, False)
    for path in directory.glob("kv_pool-*"):
        path.unlink()
    assert told() == ({"kv": [1], "other": [0]}, True)
    assert len(kv_pool.allocate(1)) == len(other.allocate(1)) == 1


def kept():
    """Returns the KV pools without a keeper that `onecopy gc` and `onecopy ls` name."""
    gc, ls = json.loads(command("gc", "--format", "json")), json.loads(command("ls", "--format", "json"))["store"]
    assert gc["kept_kv_pools"] == ls["kept_kv_pools"]
    return [Path(one["path"]).name for one in gc["kept_kv_pools"] if one["bytes"] > PAGE]


def test_a_kv_pool_that_has_outlived_its_keeper_is_named_with_the_command_that_deletes_it(directory):
    store = connect()
    kv_pool = store.kv_pool("kv", **SIZES)
    kv_pool.put(b"key", kv_pool.allocate(1)[0])
    store.kv_pool("other", block_bytes=PAGE, budget=8 * PAGE)
    assert kept() == [] and "outlived" not in command("gc") + command("ls")
    del kv_pool
    store.stop()
    assert len(files(directory)) == 2
    assert kept() == [path.stem for path in directory.glob("kv_pool-*.control")]
    lines = {line for text in (command("gc"), command("ls")) for line in text.splitlines() if "outlived" in line}
    [line] = lines
    subprocess.run(line.split("To delete it: ")[1], shell=True, check=True)
    assert kept() == files(directory) == []


def test_rm_deletes_a_kv_pool_that_the_keeper_does_not_know(directory):
    interpret(f"import onecopy; onecopy.store.connect().kv_pool('kv', **{SIZES})", check=True)
    connect().stop()
    (directory / "index").unlink()
    store = connect()
    store.put_bytes("a", b"x")
    assert len(kept()) == 1
    assert command("store", "rm", "kv") == "kv: the files of the KV pool were removed\n"
    assert kept() == files(directory) == [] and store.get_bytes("a") == b"x"


def test_stopping_the_store_says_that_the_files_are_kept(directory):
    interpret(f"import onecopy; onecopy.store.connect().kv_pool('kv', **{SIZES})", check=True)
    assert command("store", "stop").splitlines() == ["The keeper has ended.", "Kept in files: 1 version, 32.0 KiB"]
    assert files(directory) == ["control", "memory"]
    assert connect().list() == []


def test_a_directory_on_a_disk_or_without_room_is_refused(directory, tmp_path, monkeypatch):
    with pytest.raises(onecopy.Unsupported, match="is not on a tmpfs of that size: set ONECOPY_STORE_DIR"):
        connect().kv_pool("kv", **SIZES | {"budget": 1 << 44, "extent_bytes": 1 << 40, "block_bytes": 1 << 40})
    if os.statvfs(tmp_path).f_fsid == os.statvfs("/dev/shm").f_fsid:
        pytest.skip("all directories lie on one file system")
    with monkeypatch.context() as patch:
        patch.setenv("ONECOPY_STORE_DIR", str(tmp_path / "store"))
        with pytest.raises(onecopy.Unsupported, match="is not on a tmpfs of that size: set ONECOPY_STORE_DIR"):
            connect().kv_pool("kv", **SIZES)
        connect().stop()


def test_a_tmpfs_that_is_full_gives_fewer_blocks_and_ends_no_process(directory):
    done = interpret("""
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
if (libc.unshare(0x20000) or libc.mount(b"none", b"/", None, 0x44000, None)
        or libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=24m")):
    print("skip", os.strerror(ctypes.get_errno()))
    sys.exit()
os.environ["ONECOPY_STORE_DIR"] = "/dev/shm/store"
import onecopy
store = onecopy.store.connect(framework="numpy")
sizes = {"block_bytes": 1 << 20, "budget": 16 << 20, "extent_bytes": 4 << 20, "outlives_keeper": True}
kv_pool = store.kv_pool("kv", **sizes)
with open("/dev/shm/other", "wb") as file:
    file.write(bytes(8 << 20))
numbers = []
try:
    while True:
        numbers += kv_pool.allocate(1)
        kv_pool.block(numbers[-1])[:] = 1
except onecopy.OutOfMemory:
    os.remove("/dev/shm/other")
    print(4 <= len(numbers) < 16, len(numbers + kv_pool.allocate(16 - len(numbers))))
try:
    for number in range(100):
        store.kv_pool(f"kv{number}", **sizes)
except onecopy.OutOfMemory as error:
    print("cannot allocate" in str(error))
store.stop()
""")
    if done.stdout.startswith("skip"):
        pytest.skip(done.stdout)
    assert done.stdout == "True 16\nTrue\n", done.stdout + done.stderr
