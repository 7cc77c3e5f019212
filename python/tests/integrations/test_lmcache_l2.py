# SPDX-License-Identifier: Apache-2.0
"""onecopy.integrations.lmcache: servers of LMCache share one KV pool. Stubs of LMCache stand for the server."""

import random
import sys
from pathlib import Path

import pytest

from conftest import KILLS
from support.processes import TESTS, interpret, kill_while_it_stores

torch = pytest.importorskip("torch")

sys.path.insert(0, HERE := str(Path(__file__).resolve().parent))
import lmcache_interface as lmcache
import onecopy
from lmcache_interface import Layout, Object, ObjectKey, Server

sys.path.remove(HERE)

KEYS = [ObjectKey(bytes([number]) * 32) for number in range(24)]
ODD = Layout([torch.Size((2, 4, 16, 511))], [torch.bfloat16])  # not a multiple of 64 bytes
BLOCK = 128 << 10


@pytest.fixture
def start(store):
    before, made = set(sys.modules), []

    def one(**options):
        made.append(lmcache.install_l2()({"onecopy.max_gib": 8 * BLOCK / (1 << 30), **options}))
        return Server(made[-1])

    yield one
    for adapter in made:
        adapter.close()
    lmcache.forget(before)


def objects(numbers, layout=ODD):
    return [Object(layout, number) for number in numbers]


def stored(server, numbers, layout=ODD):
    return server.store([KEYS[number] for number in numbers], objects(numbers, layout))


def loaded(server, numbers, layout=ODD):
    """Locks, loads and unlocks objects. Returns the numbers of those that were loaded, whose bytes are compared."""
    found = [numbers[row] for row in server.lock([KEYS[number] for number in numbers], {0: layout})]
    keys, buffers = [KEYS[number] for number in found], objects([255] * len(found), layout)
    assert server.load(keys, buffers) == list(range(len(found)))
    server.adapter.submit_unlock(keys)
    assert all(bool((buffer.bytes == number).all()) for number, buffer in zip(found, buffers, strict=True))
    return found


def pool_of(server, layout=ODD):
    return server.adapter._pool(Object(layout).bytes.numel())


def test_the_adapter_implements_each_abstract_method_of_lmcache(start):
    adapter = lmcache.install_l2()
    assert adapter.__abstractmethods__ == frozenset()
    abstract = sys.modules[lmcache.L2].L2AdapterInterface.__abstractmethods__
    assert abstract == set(lmcache.L2_ABSTRACT), "a new release of LMCache has other abstract methods"


def test_objects_of_one_server_are_loaded_by_another(start):
    first, second = start(), start()
    assert loaded(second, [1, 2]) == []
    assert stored(first, [1, 2]) == 2 * Object(ODD).bytes.numel()
    assert loaded(second, [0, 1, 2, 3]) == [1, 2]
    assert stored(second, [1, 2, 3]) == Object(ODD).bytes.numel(), "objects that are there are not copied again"
    assert pool_of(second).stats()["leased"] == 0
    assert first.adapter.get_usage().total_bytes_used == 3 * pool_of(first).block_bytes


def test_a_locked_object_is_kept_until_the_last_lock_ends(start):
    first, second = start(), start()
    stored(first, range(8))
    assert second.lock([KEYS[1]], {0: ODD}) == second.lock([KEYS[1]], {0: ODD}) == [0]
    second.adapter.submit_unlock([KEYS[1], KEYS[2]])  # and a lock that it does not have
    stored(first, range(8, 24))
    [buffer] = objects([255])
    assert second.load([KEYS[1]], [buffer]) == [0] and buffer.bytes.eq(1).all()
    with pytest.raises(onecopy.OutOfMemory):
        pool_of(first).allocate(8)
    second.adapter.submit_unlock([KEYS[1]])
    assert len(pool_of(first).allocate(8)) == 8 and second.load([KEYS[1]], [buffer]) == []


def test_a_store_without_room_fails_and_is_not_found(start):
    server = start()
    taken = pool_of(server).allocate(8)
    assert stored(server, [1, 2]) == -1 and loaded(server, [1, 2]) == []
    pool_of(server).release(taken)
    assert stored(server, [1, 2]) > 0 and loaded(server, [1, 2]) == [1, 2]


def test_an_object_is_loaded_into_its_own_layout_only(start):
    other = Layout(ODD.shapes, [torch.float16])  # of the same size
    groups = Layout([torch.Size((2, 4, 16, 500)), torch.Size((3,))], [torch.bfloat16, torch.int32])
    server = start(**{"onecopy.max_gib": 16 * BLOCK / (1 << 30), "onecopy.extent_bytes": 8 * BLOCK})
    stored(server, [1]), stored(server, [2], groups)
    assert loaded(server, [1], other) == [] and loaded(server, [2], groups) == [2]
    assert server.lock([KEYS[1]], {0: ODD}) == [0]
    assert server.load([KEYS[1]], objects([255], other)) == []


def test_servers_with_another_title_share_nothing(start):
    stored(start(), [1])
    assert loaded(start(**{"onecopy.title": "other weights"}), [1]) == []


def test_a_task_that_fails_is_answered(start, caplog):
    start()
    server = start(**{"onecopy.max_gib": 2 * BLOCK / (1 << 30)})  # not what the first has
    stored(start(), [1])
    assert stored(server, [2]) == -1 and server.lock([KEYS[1]], {0: ODD}) == [] == server.lock([KEYS[1]], {})
    assert "extents of" in caplog.text


def test_servers_that_are_killed_while_they_store_and_load_leave_whole_objects_only(start):
    reader, rng, seen = start(), random.Random(1), 0
    pool = pool_of(reader)

    def begin():
        server, chosen = Server(lmcache.install_l2()({"onecopy.max_gib": 8 * BLOCK / (1 << 30)})), random.Random(kill)

        def work():
            stored(server, chosen.sample(range(24), 3))
            server.lock([KEYS[chosen.randrange(24)]], {0: ODD})

        return work

    for kill in range(KILLS):
        kill_while_it_stores(begin, pool, rng.randrange(1, 12))
        seen += len(loaded(reader, range(24)))
        assert (pool.stats()["leased"], pool.stats()["writing"]) == (0, 0), f"after {kill + 1} kills"
    print(f"\n{KILLS} kills, {pool.stats()['stored']} objects stored, {seen} loaded")
    assert seen > KILLS and len(pool.allocate(4)) == 4


#: Stores objects in a KV pool whose tmpfs has another file up to its last byte, and once that file is gone.
WITHOUT_ROOM = f"""
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
if (libc.unshare(0x20000) or libc.mount(b"none", b"/", None, 0x44000, None)
        or libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=12m")):
    print("skip", os.strerror(ctypes.get_errno()))
    sys.exit()
os.environ["ONECOPY_STORE_DIR"] = "/dev/shm/store"
sys.path[:0] = [{TESTS!r}, {TESTS + "/integrations"!r}]
import contextlib, onecopy
from test_lmcache_l2 import BLOCK, ODD, Layout, Server, lmcache, loaded, stored, torch
options = {{"onecopy.max_gib": 64 * BLOCK / (1 << 30), "onecopy.extent_bytes": 8 * BLOCK, "onecopy.outlives_keeper": True}}
small = Layout([torch.Size((2, 4, 16, 256))], [torch.bfloat16])
first, second = (Server(lmcache.install_l2()(options)) for _ in range(2))
stored(first, range(4))
with open("/dev/shm/other", "wb", buffering=0) as file, contextlib.suppress(OSError):
    while True:
        file.write(bytes(4096))
print([stored(server, range(at, at + 4)) > 0 for server, at in ((first, 4), (second, 8), (first, 12))])
print(loaded(second, range(24)), stored(second, [1], small), loaded(first, [1], small))
os.remove("/dev/shm/other")
print(stored(second, range(16, 24)) > 0, loaded(first, range(16, 24)), stored(first, [1], small) > 0)
first.adapter.close(), second.adapter.close(), onecopy.store.connect().stop()
"""


def test_servers_whose_tmpfs_is_full_evict_objects_or_store_none_and_go_on():
    done = interpret(WITHOUT_ROOM)
    if done.stdout.startswith("skip"):
        pytest.skip("wants to mount a file system: " + done.stdout)
    full = f"[True, True, True]\n{list(range(8, 16))} -1 []\n"
    assert done.stdout == f"{full}True {list(range(16, 24))} True\n", done.stdout + done.stderr
