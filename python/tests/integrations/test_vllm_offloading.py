# SPDX-License-Identifier: Apache-2.0
"""onecopy.integrations.vllm_offloading: engines share one KV pool. Stubs of vLLM's interface stand for the engine."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import kv_offload_interface as vllm
import onecopy
from conftest import KILLS
from kv_offload_interface import GPULoadStoreSpec, LookupResult, request
from onecopy.integrations._kv_space import FIELDS, space_of
from support.processes import kill_while_it_stores

KEYS = [bytes([number]) * 32 + b"\0\0\0\0" for number in range(8)]

# An engine that stores the blocks of its arguments, whose bytes are their numbers, and is killed before it acknowledges.
ENGINE = f"""
import os, signal, sys
sys.path[:0] = {[str(Path(__file__).parent), str(Path(__file__).parents[1])]!r}
import test_vllm_offloading as tests

engine = tests.Engine()
engine.store([int(number) for number in sys.argv[1:]], acknowledges=False)
print("stored", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


class Engine:
    """A scheduler, and a worker for each rank."""

    def __init__(self, ranks=1, **extra):
        spec = vllm.install().OnecopySpec
        self.manager = spec(vllm.config(world_size=ranks, **extra)).get_manager()
        self.caches = [vllm.caches() for _ in range(ranks)]
        self.workers = [
            spec(vllm.config(rank, ranks, **extra)).get_worker(caches) for rank, (_, caches) in enumerate(self.caches)
        ]

    def fill(self, numbers):
        for rank, (tensors, _) in enumerate(self.caches):
            for layer, tensor in enumerate(tensors):
                for number in numbers:
                    tensor[number] = 10 * number + 2 * rank + layer

    def begin(self, numbers):
        return self.manager.prepare_store([KEYS[number] for number in numbers], request("store"))

    def store(self, numbers, acknowledges=True, ranks=None):
        self.fill(numbers)
        output = self.begin(numbers)
        rows = [KEYS.index(key) for key in output.keys_to_store]
        for worker in self.workers[:ranks]:
            assert worker.submit_store(1, GPULoadStoreSpec(rows, [len(rows)]), output.store_spec)
            assert [result.success for result in worker.get_finished()] == [True]
        if acknowledges:
            self.manager.complete_store(output.keys_to_store, request("store"))
        return rows

    def lookup(self, numbers, name="load"):
        return [self.manager.lookup(KEYS[number], request(name)) for number in numbers]

    def load(self, numbers, name="load"):
        """Loads blocks into the pages with their numbers, and returns whether the bytes are what store() wrote."""
        context = request(name)
        spec = self.manager.prepare_load([KEYS[number] for number in numbers], context)
        for tensors, _ in self.caches:
            for tensor in tensors:
                tensor.fill_(-1)
        for worker in self.workers:
            worker.submit_load(2, spec, GPULoadStoreSpec(numbers, [len(numbers)]), expedited=True)
            assert [result.success for result in worker.get_finished()] == [True]
        self.manager.complete_load([KEYS[number] for number in numbers], context)
        self.manager.on_request_finished(context)
        return all(
            bool((tensor[number] == 10 * number + 2 * rank + layer).all())
            for rank, (tensors, _) in enumerate(self.caches)
            for layer, tensor in enumerate(tensors)
            for number in numbers
        )


def test_the_plug_implements_each_abstract_method_of_vllm():
    plug = vllm.install()
    assert plug.OnecopySpec.__abstractmethods__ == frozenset()
    found = vllm.abstract_methods_of_vllm()
    assert found is None or found == vllm.ABSTRACT, "a new release of vLLM has other abstract methods"


def test_blocks_that_one_engine_computed_are_loaded_by_another(store):
    first, second = Engine(), Engine()
    assert second.lookup([0, 1]) == [LookupResult.MISS] * 2
    first.store([0, 1, 2])
    assert second.lookup([0, 1, 2, 3]) == [LookupResult.HIT] * 3 + [LookupResult.MISS]
    assert second.load([0, 1, 2])
    assert second.store([0, 1, 2, 3]) == [3], "blocks that are there are not stored again"
    assert second.manager._pool.stats()["leased"] == 0


def test_a_block_of_two_ranks_is_a_hit_when_both_have_stored(store):
    first, second = Engine(ranks=2), Engine(ranks=2)
    first.store([0], ranks=1, acknowledges=False)
    assert second.lookup([0]) == [LookupResult.HIT_PENDING]
    assert second.begin([0]).keys_to_store == [], "another engine does not wait"
    first.manager.complete_store([KEYS[0]], request("store"))
    assert second.lookup([0]) == [LookupResult.MISS]
    first.store([0])
    assert second.lookup([0]) == [LookupResult.HIT] and second.load([0])


def test_a_store_that_failed_is_never_a_hit(store):
    engine = Engine()
    output = engine.begin([0, 1])
    engine.manager.complete_store(output.keys_to_store, request("store"), success=False)
    assert engine.lookup([0, 1], "after") == [LookupResult.MISS] * 2
    assert engine.store([0, 1]) == [0, 1]


def test_what_was_found_stays_until_the_request_has_finished(store):
    first, second = Engine(), Engine()
    first.store([0])
    assert second.lookup([0]) == [LookupResult.HIT]
    pool = first.manager._pool
    assert pool.remove(KEYS[0])
    free = pool.allocate(8)
    assert second.load([0]), "no other engine got the block"
    pool.release(free)
    assert pool.stats()["leased"] == 0


def test_an_engine_that_is_killed_leaves_what_it_stored(store):
    with subprocess.Popen([sys.executable, "-c", ENGINE, "0", "1"], stdout=subprocess.PIPE, text=True) as engine:
        assert engine.stdout.readline() == "stored\n"
        assert engine.wait(60) == -signal.SIGKILL
    third = Engine()
    assert third.lookup([0, 1]) == [LookupResult.HIT] * 2 and third.load([0, 1])


def test_engines_that_are_killed_while_they_store_leave_whole_blocks_only(store):
    small = {"ranks": 2, "onecopy.max_gib": 6 * 2 * 8192 / (1 << 30)}
    reader, rng, seen = Engine(**small), random.Random(1), 0
    pool = reader.manager._pool

    def start():
        engine, chosen = Engine(**small), random.Random(kill)
        return lambda: engine.store(chosen.sample(range(8), 3))

    for kill in range(KILLS):
        kill_while_it_stores(start, pool, rng.randrange(1, 12))
        request = str(kill)
        found = [number for number in range(8) if reader.lookup([number], request) == [LookupResult.HIT]]
        seen += len(found)
        assert reader.load(found, request), f"after {kill + 1} kills"
        assert (pool.stats()["leased"], pool.stats()["writing"]) == (0, 0), f"after {kill + 1} kills"
    print(f"\n{KILLS} kills, {pool.stats()['stored']} blocks stored, {seen} read")
    assert seen > KILLS and len(pool.allocate(3)) == 3


def test_a_worker_whose_scheduler_was_killed_stores_nothing_into_the_blocks_of_others(store):
    readable, writable = os.pipe()
    spec = vllm.install().OnecopySpec
    pid = os.fork()
    if pid == 0:
        output = spec(vllm.config()).get_manager().prepare_store([KEYS[0]], request("store"))
        os.write(writable, b"%d" % output.store_spec.tickets[0])
        signal.pause()
        os._exit(1)
    tickets = [int(os.read(readable, 100))]
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    engine = Engine()
    pool = engine.manager._pool
    numbers = pool.allocate(8)
    for number in numbers:
        pool.block(number).fill_(77)
    engine.fill([0])
    [worker] = engine.workers
    late = sys.modules["onecopy.integrations._vllm_offloading"].PoolLoadStoreSpec(tickets)
    pool.allocate(8)
    worker.submit_store(1, GPULoadStoreSpec([0], [1]), late)
    assert [result.success for result in worker.get_finished()] == [True], "vLLM ends at a failed store"
    assert all(bool((pool.block(number) == 77).all()) for number in numbers)
    with pytest.raises(onecopy.StaleHandle):
        worker.submit_load(2, late, GPULoadStoreSpec([0], [1]))


def test_engines_with_other_weights_or_layouts_share_no_block(store):
    first = Engine()
    first.store([0])
    for extra in ({"onecopy.weights": "tiny@2"}, {"onecopy.kv_scales": "0.5"}, {"onecopy.layout": "flash"}):
        assert Engine(**extra).lookup([0]) == [LookupResult.MISS], extra


def test_an_engine_that_does_not_name_its_weights_is_refused(store):
    with pytest.raises(onecopy.InvalidArgument, match="onecopy.weights"):
        Engine(**{"onecopy.weights": ""})


@pytest.mark.parametrize("field", sorted(FIELDS))
def test_each_field_is_part_of_the_namespace_and_none_may_be_missing(field):
    fields = dict.fromkeys(FIELDS, "x")
    assert space_of(fields) != space_of({**fields, field: "y"})
    with pytest.raises(onecopy.InvalidArgument, match=field):
        space_of({**fields, field: None})
    del fields[field]
    with pytest.raises(onecopy.InvalidArgument, match=field):
        space_of(fields)


def test_a_reset_of_one_engine_clears_nothing_for_others(store):
    first = Engine()
    first.store([0])
    Engine().manager.reset_cache()
    assert first.lookup([0]) == [LookupResult.HIT]


def test_an_engine_that_was_reset_finds_no_block_that_was_stored_before(store):
    """A pause resets the caches, and the weights may be others afterwards."""
    first, other = Engine(), Engine()
    first.store([0])
    other.store([1])
    first.begin([2])
    assert first.lookup([0, 1]) == [LookupResult.HIT, LookupResult.HIT]
    first.manager.reset_cache()
    assert first.lookup([0, 1, 2]) == [LookupResult.MISS] * 3
    first.store([0, 2])
    assert first.lookup([0, 2]) == [LookupResult.HIT, LookupResult.HIT]
    assert other.lookup([0, 1, 2]) == [LookupResult.HIT, LookupResult.HIT, LookupResult.MISS]


def test_a_reset_ends_the_leases_of_this_engine(store):
    engine = Engine()
    engine.store([0])
    engine.lookup([0])
    engine.begin([1])
    pool = engine.manager._pool
    assert pool.stats()["leased"] == 2
    engine.manager.reset_cache()
    assert pool.stats()["leased"] == 0
