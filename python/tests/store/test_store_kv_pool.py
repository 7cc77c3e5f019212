# SPDX-License-Identifier: Apache-2.0
"""KV pools: leases of processes that are killed, keys that outlive all users and halves of the keeper, bad input."""

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
kv_pool = onecopy.store.connect(framework="numpy").kv_pool("kv", blocks=8, block_bytes=4096)
"""


def run(program: str) -> str:
    return interpret(PROGRAM + program).stdout


@pytest.fixture
def kv_pool(store):
    return store.kv_pool("kv", **SIZES)


def test_blocks_of_a_killed_process_are_free_and_its_entries_stay(store, kv_pool):
    said = run("""
numbers = kv_pool.allocate(8)
kv_pool.tensor[numbers[0]] = 7
kv_pool.put(b"first", numbers[:2])
print(numbers[0], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
""")
    assert len(kv_pool.allocate(6)) == 6
    [[found, _]] = kv_pool.find([b"first", b"second"])
    assert found == int(said)
    assert set(kv_pool.tensor[found].tolist()) == {7}
    with pytest.raises(onecopy.OutOfMemory, match="1 blocks are wanted"):
        kv_pool.allocate(1)


@pytest.mark.parametrize("half", ["worker", "guard"])
def test_a_kv_pool_outlives_its_users_and_half_of_the_keeper(store, half):
    run("kv_pool.tensor[kv_pool.allocate(1)[0]] = 3; kv_pool.put(b'a', [kv_pool.allocate(1)[0]])")
    run("[[n]] = kv_pool.find([b'a']); kv_pool.tensor[n] = 5")
    os.kill(store.keeper()[half], signal.SIGKILL)
    assert run("[[n]] = kv_pool.find([b'a']); print(kv_pool.tensor[n].sum())").strip() == str(5 * 4096)


def test_a_removed_key_is_gone_for_all_users(kv_pool):
    run("for key in (b'a', b'b', b'c'): kv_pool.put(key, kv_pool.allocate(1))")
    assert kv_pool.remove(b"a") and not kv_pool.remove(b"a")
    assert run("print(kv_pool.find([b'a']), kv_pool.clear())") == "[] 2\n" and kv_pool.stats()["free"] == 8


def test_a_process_that_stops_while_it_makes_a_kv_pool_delays_no_other_name_and_its_own_for_ten_seconds(store):
    program = """
import onecopy
store = onecopy.store.connect(framework="numpy")
print("ready", flush=True)
input()
store.kv_pool("first", blocks=8, block_bytes=4096)
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
            assert eventually(lambda: list(place.glob("kv_pool-*.lock")))
            maker.send_signal(signal.SIGSTOP)
            os.kill(worker, signal.SIGCONT)
            assert store.kv_pool("other", **SIZES).stats()["free"] == 8
            with pytest.raises(onecopy.Timeout, match=rf"process {maker.pid} \(.*\) is making .* \"first\""):
                store.kv_pool("first", **SIZES)
            maker.send_signal(signal.SIGCONT)
            assert maker.wait(30) == 0
        finally:
            maker.kill()
    assert store.kv_pool("first", **SIZES).stats()["free"] == 8
    assert not list(place.glob("kv_pool-*.lock"))


def test_pin_refuses_memory_of_the_store(store):
    torch = pytest.importorskip("torch")
    kv_pool = onecopy.store.connect(framework="torch").kv_pool("pinned", **SIZES)
    assert isinstance(kv_pool.tensor, torch.Tensor)
    with pytest.raises(onecopy.InvalidArgument, match="open a KV pool with pin=True"):
        onecopy.pin(kv_pool.tensor)


def test_an_object_cannot_take_the_name_of_a_kv_pool(store, kv_pool):
    with pytest.raises(onecopy.InvalidArgument, match='"kv" is a KV pool: choose another name'):
        store.put_bytes("kv", b"x")
    assert [(one["name"], one["is_kv_pool"]) for one in store.list()] == [("kv", True)]
    store.delete("kv")
    store.put_bytes("kv", b"x")
    assert [(one["name"], one["is_kv_pool"]) for one in store.list()] == [("kv", False)]


def test_other_sizes_and_objects_are_refused(store, kv_pool):
    with pytest.raises(onecopy.InvalidArgument, match="8 blocks of 4096 bytes, and 9 of 4096"):
        store.kv_pool("kv", blocks=9, block_bytes=4096)
    with pytest.raises(onecopy.InvalidArgument, match="1 to"):
        store.kv_pool("none", blocks=0, block_bytes=1)
    store.put_bytes("object", b"x")
    with pytest.raises(onecopy.InvalidArgument, match="not a KV pool"):
        store.kv_pool("object", **SIZES)
    with pytest.raises(onecopy.InvalidArgument, match=r"\"kv\" is a KV pool: open it with kv_pool\(\)"):
        store.open("kv")
    with pytest.raises(onecopy.InvalidArgument, match="more often"):
        kv_pool.release([0])
    with pytest.raises(TypeError):
        kv_pool.put("text", [0])
