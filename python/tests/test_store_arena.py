# SPDX-License-Identifier: Apache-2.0
"""Arenas: leases of processes that are killed, keys that outlive all users and halves of the keeper, bad input."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import onecopy
from devices import eventually
from processes import interpret

SIZES = {"blocks": 8, "block_bytes": 4096}
PROGRAM = """
import os, signal, onecopy
arena = onecopy.store.connect(framework="numpy").arena("kv", blocks=8, block_bytes=4096)
"""


def run(program: str) -> str:
    return interpret(PROGRAM + program).stdout


@pytest.fixture
def arena(store):
    return store.arena("kv", **SIZES)


def test_blocks_of_a_killed_process_are_free_and_its_entries_stay(store, arena):
    said = run("""
numbers = arena.allocate(8)
arena.tensor[numbers[0]] = 7
arena.put(b"first", numbers[:2])
print(numbers[0], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
""")
    assert len(arena.allocate(6)) == 6
    [[found, _]] = arena.find([b"first", b"second"])
    assert found == int(said)
    assert set(arena.tensor[found].tolist()) == {7}
    with pytest.raises(onecopy.OutOfMemory, match="1 blocks are wanted"):
        arena.allocate(1)


@pytest.mark.parametrize("half", ["worker", "guard"])
def test_an_arena_outlives_its_users_and_half_of_the_keeper(store, half):
    run("arena.tensor[arena.allocate(1)[0]] = 3; arena.put(b'a', [arena.allocate(1)[0]])")
    run("[[n]] = arena.find([b'a']); arena.tensor[n] = 5")
    os.kill(store.keeper()[half], signal.SIGKILL)
    assert run("[[n]] = arena.find([b'a']); print(arena.tensor[n].sum())").strip() == str(5 * 4096)


def test_a_removed_key_is_gone_for_all_users(arena):
    run("for key in (b'a', b'b', b'c'): arena.put(key, arena.allocate(1))")
    assert arena.remove(b"a") and not arena.remove(b"a")
    assert run("print(arena.find([b'a']), arena.clear())") == "[] 2\n" and arena.stats()["free"] == 8


def test_a_process_that_stops_while_it_makes_an_arena_delays_no_other_name_and_its_own_for_ten_seconds(store):
    program = """
import onecopy
store = onecopy.store.connect(framework="numpy")
print("ready", flush=True)
input()
store.arena("first", blocks=8, block_bytes=4096)
"""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", program], **pipes) as maker:
        assert maker.stdout.readline() == "ready\n"
        try:
            worker = store.keeper()["worker"]
            os.kill(worker, signal.SIGSTOP)
            maker.stdin.write("\n")
            maker.stdin.flush()
            place = Path(os.environ["ONECOPY_STORE_DIR"])
            assert eventually(lambda: list(place.glob("arena-*.lock")))
            maker.send_signal(signal.SIGSTOP)
            os.kill(worker, signal.SIGCONT)
            assert store.arena("other", **SIZES).stats()["free"] == 8
            with pytest.raises(onecopy.Timeout, match=rf"process {maker.pid} \(.*\) is making .* \"first\""):
                store.arena("first", **SIZES)
            maker.send_signal(signal.SIGCONT)
            assert maker.wait(30) == 0
        finally:
            maker.kill()
    assert store.arena("first", **SIZES).stats()["free"] == 8
    assert not list(place.glob("arena-*.lock"))


def test_pin_refuses_memory_of_the_store(store):
    torch = pytest.importorskip("torch")
    arena = onecopy.store.connect(framework="torch").arena("pinned", **SIZES)
    assert isinstance(arena.tensor, torch.Tensor)
    with pytest.raises(onecopy.InvalidArgument, match="open an arena with pin=True"):
        onecopy.pin(arena.tensor)


def test_an_object_cannot_take_the_name_of_an_arena(store, arena):
    with pytest.raises(onecopy.InvalidArgument, match='"kv" is an arena: choose another name'):
        store.put_bytes("kv", b"x")
    assert [(one["name"], one["is_arena"]) for one in store.list()] == [("kv", True)]
    store.delete("kv")
    store.put_bytes("kv", b"x")
    assert [(one["name"], one["is_arena"]) for one in store.list()] == [("kv", False)]


def test_other_sizes_and_objects_are_refused(store, arena):
    with pytest.raises(onecopy.InvalidArgument, match="8 blocks of 4096 bytes, and 9 of 4096"):
        store.arena("kv", blocks=9, block_bytes=4096)
    with pytest.raises(onecopy.InvalidArgument, match="1 to"):
        store.arena("none", blocks=0, block_bytes=1)
    store.put_bytes("object", b"x")
    with pytest.raises(onecopy.InvalidArgument, match="not an arena"):
        store.arena("object", **SIZES)
    with pytest.raises(onecopy.InvalidArgument, match=r"\"kv\" is an arena: open it with arena\(\)"):
        store.open("kv")
    with pytest.raises(onecopy.InvalidArgument, match="more often"):
        arena.release([0])
    with pytest.raises(TypeError):
        arena.put("text", [0])
