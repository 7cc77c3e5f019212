# SPDX-License-Identifier: Apache-2.0
"""KV pools: leases of processes that are killed, keys that outlive all users and halves of the keeper, bad input."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import onecopy
from support.devices import eventually
from support.processes import interpret, kill_all

PAGE = 4096
SIZES = {"block_bytes": PAGE, "budget": 8 * PAGE}
PROGRAM = """
import os, signal, onecopy
PAGE = 4096
store = onecopy.store.connect(framework="numpy")
kv_pool = store.kv_pool("kv", block_bytes=PAGE, budget=8 * PAGE)
"""


def run(program: str) -> str:
    return interpret(PROGRAM + program).stdout


@pytest.fixture
def kv_pool(store):
    return store.kv_pool("kv", **SIZES)


def unused(kv_pool) -> int:
    stats = kv_pool.stats()
    return stats["free"] + stats["free_bytes"] // PAGE


def test_blocks_of_a_killed_process_are_free_and_its_entries_stay(store, kv_pool):
    said = run("""
numbers = kv_pool.allocate(8)
kv_pool.block(numbers[0])[:] = 7
kv_pool.put(b"first", numbers[0])
kv_pool.put(b"third", numbers[1])
print(numbers[0], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
""")
    assert len(kv_pool.allocate(6)) == 6
    [found] = kv_pool.find([b"first", b"second", b"third"])
    assert found == int(said)
    assert set(kv_pool.block(found).tolist()) == {7}
    [_, second, third] = kv_pool.find_all([b"first", b"second", b"third"])
    assert second is None and third is not None
    with pytest.raises(onecopy.OutOfMemory, match="1 blocks are wanted"):
        kv_pool.allocate(1)


def test_a_killed_process_takes_the_keys_that_it_was_writing_and_no_others(kv_pool):
    run("""
whole, half = kv_pool.write([b"whole", b"half"], 7)
kv_pool.complete([whole])
os.kill(os.getpid(), signal.SIGKILL)
""")
    assert kv_pool.contains([b"whole", b"half"]) == [True, None]  # a hint, until somebody looks
    assert kv_pool.stats()["leased"] == 0
    assert kv_pool.contains([b"whole", b"half"]) == [True, False]
    assert kv_pool.write([b"whole", b"half"], 8)[0] is None


def test_a_block_of_two_ranks_is_found_when_both_have_copied_their_part(store):
    ranks = [store.kv_pool("kv", **SIZES, space="model", parts=2) for _ in range(2)]
    (number,) = ranks[0].write([b"key"], 1)
    (joined,) = ranks[1].join(ranks[0].tickets([number]))
    ranks[0].complete([number], 0)
    assert ranks[1].find([b"key"]) == []
    ranks[1].complete([joined], 1)
    assert ranks[0].find([b"key"]) == [number]
    with pytest.raises(onecopy.InvalidArgument, match="2 parts, and 2 is none"):
        ranks[0].complete([number], 2)


def test_a_ticket_of_a_block_that_was_given_away_is_refused(kv_pool):
    (number,) = kv_pool.allocate(1)
    tickets = kv_pool.tickets([number])
    kv_pool.release([number])
    kv_pool.allocate(8)
    with pytest.raises(onecopy.StaleHandle, match="given away"):
        kv_pool.join(tickets)


def test_namespaces_of_several_block_sizes_share_one_budget(store):
    sizes = {"budget": 8 * PAGE, "extent_bytes": 2 * PAGE}
    small = store.kv_pool("kv", block_bytes=PAGE // 2, space="small", **sizes)
    large = store.kv_pool("kv", block_bytes=2 * PAGE, space="large", **sizes)
    for number in (blocks := small.allocate(16)):
        small.put(b"%d" % number, number)
    small.release(blocks)
    assert len(large.allocate(2)) == 2, "entries of the other namespace make room"
    assert sorted(small.contains([b"%d" % number for number in blocks])) == [False] * 8 + [True] * 8


def test_small_blocks_use_the_whole_budget_without_a_size_of_extents(store):
    small = store.kv_pool("small", block_bytes=PAGE, budget=64 << 20)
    assert len(small.allocate(16 << 10)) == 16 << 10


def test_rows_are_copied_into_blocks_and_back(kv_pool):
    numpy = pytest.importorskip("numpy")
    rows = numpy.arange(4 * PAGE // 8, dtype="int64").reshape(4, -1)
    numbers = kv_pool.allocate(2)
    kv_pool.copy_blocks(numbers, [3, 1], rows[:, :64], offset=512, to_pool=True)
    assert bytes(kv_pool.block(numbers[0])[512:1024]) == rows[3, :64].tobytes()
    back = numpy.zeros((4, 64), dtype="int64")
    kv_pool.copy_blocks(numbers, [0, 2], back, offset=512, to_pool=False)
    assert (back[[0, 2]] == rows[[3, 1], :64]).all() and not back[[1, 3]].any()
    for bad in ({"rows": [4, 0]}, {"offset": PAGE - 511}, {"numbers": numbers[:1]}, {"numbers": [7, 7]}):
        arguments = {"numbers": numbers, "rows": [0, 1], "offset": 0, **bad}
        with pytest.raises(onecopy.InvalidArgument):
            kv_pool.copy_blocks(array=rows[:, :64], to_pool=True, **arguments)


def test_a_pinned_key_outlives_its_process_and_events_tell_what_went(kv_pool):
    kv_pool.release(kv_pool.allocate(8))
    run(
        "kv_pool.put(b'a', kv_pool.allocate(1)[0]); kv_pool.put(b'b', kv_pool.allocate(1)[0]); kv_pool.pin([b'a'], 1000)"
    )
    after, missing, events = kv_pool.events()
    assert not missing and [stored for stored, _ in events] == [True, True]
    kv_pool.allocate(7)
    assert kv_pool.contains([b"a", b"b"]) == [True, False]
    assert kv_pool.events(after)[2] == [(False, events[1][1])]
    stats = kv_pool.stats()
    assert (stats["stored"], stats["evictions"], stats["idle"]) == (2, 1, 1)


@pytest.mark.parametrize("half", ["worker", "guard"])
def test_a_kv_pool_outlives_its_users_and_half_of_the_keeper(store, half):
    run("kv_pool.block(kv_pool.allocate(1)[0])[:] = 3; kv_pool.put(b'a', kv_pool.allocate(1)[0])")
    run("[n] = kv_pool.find([b'a']); kv_pool.block(n)[:] = 5")
    os.kill(store.keeper()[half], signal.SIGKILL)
    assert run("[n] = kv_pool.find([b'a']); print(kv_pool.block(n).sum())").strip() == str(5 * PAGE)


@pytest.mark.parametrize("half", ["worker", "guard"])
def test_both_engines_and_half_of_the_keeper_are_killed_at_once_and_a_third_engine_has_hits(store, half):
    program = """
key, [number] = os.urandom(32), kv_pool.allocate(1)
kv_pool.block(number)[:] = key[0]
kv_pool.put(key, number)
kv_pool.write([b"half"], 1)
print(key.hex(), flush=True)
input()
"""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    engines = [subprocess.Popen([sys.executable, "-c", PROGRAM + program], **pipes) for _ in range(2)]
    keys = [bytes.fromhex(engine.stdout.readline()) for engine in engines]
    kill_all(store.keeper()[half], *(engine.pid for engine in engines))
    for engine in engines:
        engine.communicate()
    third = onecopy.store.connect(framework="numpy").kv_pool("kv", **SIZES)
    numbers = third.find(keys)
    assert [set(third.block(number).tolist()) for number in numbers] == [{key[0]} for key in keys]
    assert third.find([b"half"]) == [] and third.stats()["writing"] == 0


def test_both_halves_of_the_keeper_and_one_user_are_killed_and_the_next_user_has_hits(store, kv_pool):
    run("n = kv_pool.allocate(1)[0]; kv_pool.block(n)[:] = 5; kv_pool.put(b'a', n)")
    before = store.keeper()
    for half in ("guard", "worker"):
        os.kill(before[half], signal.SIGKILL)
    assert run("[n] = kv_pool.find([b'a']); print(kv_pool.block(n).sum())").strip() == str(5 * PAGE)
    assert store.keeper() != before


def test_a_removed_key_is_gone_for_all_users(kv_pool):
    run("for key in (b'a', b'b', b'c'): kv_pool.put(key, kv_pool.allocate(1)[0])")
    assert kv_pool.remove(b"a") and not kv_pool.remove(b"a")
    assert run("print(kv_pool.find([b'a']), kv_pool.clear())") == "[] 2\n" and unused(kv_pool) == 8


def test_memory_is_allocated_as_blocks_are_needed(store):
    def allocated():
        memory = [
            path for path in Path(f"/proc/{store.keeper()['worker']}/fd").iterdir() if "memfd" in os.readlink(path)
        ]
        return sum(path.stat().st_blocks * 512 for path in memory)

    pool = store.kv_pool("large", block_bytes=1 << 20, budget=1 << 34)
    assert allocated() < 1 << 26 and pool.stats()["free_bytes"] == 1 << 34
    pool.allocate(1)
    assert eventually(lambda: allocated() >= 1 << 26) and allocated() < 1 << 27
    assert pool.stats()["free_bytes"] == (1 << 34) - (1 << 26)


def test_a_process_that_stops_while_it_makes_a_kv_pool_delays_no_other_name_and_its_own_for_ten_seconds(store):
    program = """
import onecopy
store = onecopy.store.connect(framework="numpy")
print("ready", flush=True)
input()
store.kv_pool("first", block_bytes=4096, budget=8 * 4096)
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
            assert unused(store.kv_pool("other", **SIZES)) == 8
            with pytest.raises(onecopy.Timeout, match=rf"process {maker.pid} \(.*\) is making .* \"first\""):
                store.kv_pool("first", **SIZES)
            maker.send_signal(signal.SIGCONT)
            assert maker.wait(30) == 0
        finally:
            maker.kill()
    assert unused(store.kv_pool("first", **SIZES)) == 8
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
    with pytest.raises(onecopy.InvalidArgument, match="has 32768 bytes in extents of 32768 bytes, and 73728 in"):
        store.kv_pool("kv", block_bytes=PAGE, budget=18 * PAGE)
    with pytest.raises(onecopy.InvalidArgument, match="has blocks of 4096 bytes in 1 parts, and 8192 bytes in 1"):
        store.kv_pool("kv", block_bytes=2 * PAGE)
    with pytest.raises(onecopy.InvalidArgument, match="waste more than an eighth.*extent_bytes="):
        store.kv_pool("kv", block_bytes=5 * PAGE, space="other")
    with pytest.raises(onecopy.InvalidArgument, match='no KV pool "none": give budget='):
        store.kv_pool("none", block_bytes=PAGE)
    with pytest.raises(onecopy.InvalidArgument, match="at least one byte"):
        store.kv_pool("kv", block_bytes=0)
    store.put_bytes("object", b"x")
    with pytest.raises(onecopy.InvalidArgument, match="not a KV pool"):
        store.kv_pool("object", **SIZES)
    with pytest.raises(onecopy.InvalidArgument, match=r"\"kv\" is a KV pool: open it with kv_pool\(\)"):
        store.open("kv")
    with pytest.raises(onecopy.InvalidArgument, match="more often"):
        kv_pool.release([0])
    with pytest.raises(TypeError):
        kv_pool.put("text", 0)
