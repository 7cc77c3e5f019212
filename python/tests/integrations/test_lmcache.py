# SPDX-License-Identifier: Apache-2.0
"""onecopy.integrations.lmcache: engines read chunks in place. LMCache itself needs a card."""

import asyncio
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import KILLS
from support.processes import in_threads, kill_while_it_stores

torch = pytest.importorskip("torch")

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import lmcache_interface as lmcache
from lmcache_interface import Key, MemoryFormat

sys.path.remove(str(HERE))

# Another engine: stores chunks 0 to 3 and reads chunk 0, says so, and waits to be ended.
OTHER = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import lmcache_interface as lmcache

backend = lmcache.backend()
for number in range(4):
    assert lmcache.store(backend, number)
chunk = backend.get_blocking(lmcache.Key(0))
print(chunk.tensor.mean().item(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def backend(store):
    before = set(sys.modules)
    made = lmcache.backend()
    yield made
    made.close()
    lmcache.forget(before)


@pytest.fixture
def other(backend):
    with subprocess.Popen([sys.executable, "-c", OTHER], stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout.readline() == "0.0\n"
        yield process
        process.stdin.close()


def test_a_chunk_of_another_engine_is_read_in_place(backend, other):
    assert backend.batched_contains([Key(1), Key(2), Key(7), Key(3)]) == 2
    chunk, again = backend.get_blocking(Key(3)), backend.get_blocking(Key(3))
    assert chunk.tensor.shape == (2, 4, 16, 512) and chunk.tensor.dtype == torch.bfloat16
    assert chunk.tensor.eq(3).all() and chunk.meta.fmt == MemoryFormat.KV_2LTD
    assert chunk.tensor.data_ptr() == again.tensor.data_ptr()


def test_chunks_outlive_the_engine_that_stored_them(backend, other):
    os.kill(other.pid, signal.SIGKILL)
    other.wait()
    assert [chunk.tensor.mean().item() for chunk in backend.batched_get_blocking([Key(n) for n in range(4)])] == [
        *(0.0, 1.0, 2.0, 3.0)
    ]


def test_engines_that_are_killed_while_they_store_leave_whole_chunks_only(backend):
    keys, rng, seen = range(24), random.Random(1), 0
    pool = backend._kv_pool

    def start():
        engine, chosen = lmcache.backend(), random.Random(kill)
        return lambda: lmcache.store(engine, chosen.choice(keys))

    for kill in range(KILLS):
        kill_while_it_stores(start, pool, rng.randrange(1, 12))
        for number in keys:
            if (chunk := backend.get_blocking(Key(number))) is not None:
                assert chunk.tensor.shape == (2, 4, 16, 512) and chunk.tensor.eq(number).all(), (
                    f"after {kill + 1} kills"
                )
                chunk.ref_count_down()
                seen += 1
        assert (pool.stats()["leased"], pool.stats()["writing"]) == (0, 0), f"after {kill + 1} kills"
    print(f"\n{KILLS} kills, {pool.stats()['stored']} chunks stored, {seen} read")
    assert seen > KILLS and len(pool.allocate(4)) == 4


def test_a_chunk_is_kept_while_any_engine_reads_or_pins_it(backend, other):
    assert backend.pin(Key(1)) and backend.pin(Key(1)) and backend.unpin(Key(1))
    read = backend.get_blocking(Key(2))
    assert [lmcache.store(backend, number) for number in (10, 11)] == [
        True,
        True,
    ]  # 3 goes, then 10: all else is leased
    assert [backend.contains(Key(number)) for number in (0, 1, 2, 3, 10, 11)] == [True, True, True, False, False, True]
    assert read.tensor.eq(2).all()
    read.ref_count_down()
    assert backend.unpin(Key(1)) and not backend.unpin(Key(1))
    # a chunk that was found goes after those that nobody found
    assert all(lmcache.store(backend, number) and backend.contains(Key(number)) for number in (12, 13, 14))
    assert [backend.contains(Key(number)) for number in (0, 1, 2)] == [True, False, False]


def test_there_is_no_memory_for_a_chunk_when_all_blocks_are_read(backend, other):
    kept = backend.batched_get_blocking([Key(number) for number in range(4)])
    assert not lmcache.store(backend, 10) and not lmcache.store(backend, 11, shape=(4, 4, 16, 512))
    kept[0].ref_count_down()
    assert not lmcache.store(backend, 10), "the other engine reads chunk 0"
    kept[1].ref_count_down()
    assert lmcache.store(backend, 10)


def test_threads_that_come_first_together_use_one_kv_pool(backend):
    in_threads(lmcache.store, [(backend, number) for number in range(8)])
    assert backend._kv_pool.stats()["users"] == 1 and backend._kv_pool.stats()["idle"] == 4


def test_a_smaller_chunk_keeps_its_shape(backend):
    assert lmcache.store(backend, 5, shape=(2, 4, 3, 512))
    assert backend.get_blocking(Key(5)).tensor.shape == (2, 4, 3, 512)


def test_a_removed_chunk_is_gone_for_all_engines(backend, other):
    assert backend.pin(Key(1)) and not backend.remove(Key(1), force=False)
    assert backend.remove(Key(1)) and not backend.remove(Key(1)) and not backend.contains(Key(1))
    assert backend.clear() == 3 * 16 and not backend.contains(Key(0))


def test_a_chunk_is_put_once_and_said_once(backend):
    said = []
    for _ in range(2):
        memory = backend.allocate(torch.Size((1,)), torch.bfloat16, fmt=MemoryFormat.KV_2LTD)
        backend.batched_submit_put_task([Key(1)], [memory], on_complete_callback=said.append)
        memory.ref_count_down()
    assert said == [Key(1)] and not backend.exists_in_put_tasks(Key(1))


def test_chunks_behind_a_missing_one_are_not_read(backend, other):
    assert backend.remove(Key(1))
    found = asyncio.run(backend.batched_get_non_blocking("lookup", [Key(0), Key(1), Key(2)]))
    assert [memory.tensor.mean().item() for memory in found] == [0.0]
    assert asyncio.run(backend.batched_async_contains("lookup", [Key(0), Key(1)])) == 1


def test_memory_of_another_allocator_and_a_cache_of_lmcache_are_refused(backend):
    memory = backend.allocate(torch.Size((1,)), torch.bfloat16, fmt=MemoryFormat.KV_2LTD)
    foreign = lmcache.TensorMemoryObj(memory.raw_data, memory.meta, None)
    with pytest.raises(TypeError, match="memory of another backend"):
        backend.batched_submit_put_task([Key(1)], [foreign])
    with pytest.raises(ValueError, match="local_cpu: false"):
        lmcache.backend(local_cpu=True)
