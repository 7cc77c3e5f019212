# SPDX-License-Identifier: Apache-2.0
"""onecopy.integrations.sglang_storage: engines share pages in one KV pool. Stubs of SGLang's interface stand for it."""

import abc
import hashlib
import os
import random
import sys
import types

import pytest

torch = pytest.importorskip("torch")

import onecopy
import sglang_hooks
from abstract_methods import abstract_methods
from conftest import KILLS
from support.processes import kill_while_it_stores

PAGE, TOKEN_BYTES = 16, 256  # tokens of a page, and bytes of a token's keys, and as many of its values
KEYS = [hashlib.sha256(bytes([number])).hexdigest() for number in range(24)]
#: The abstract methods of SGLang 0.5.23.
ABSTRACT = {"get", "batch_get", "set", "batch_set", "exists"}


class HostPool:
    """HiCache's memory of one rank, whose pages are two runs: keys and values."""

    page_size, layout, dtype, storage_format_tag = PAGE, "page_first", torch.bfloat16, "v1"

    def __init__(self, pages=24):
        self.memory = torch.zeros((2, pages, PAGE * TOKEN_BYTES), dtype=torch.uint8)

    def get_page_buffer_meta(self, indices):
        pages = [int(indices[at]) // PAGE for at in range(0, len(indices), PAGE)]
        pointers = [self.memory[run, page].data_ptr() for page in pages for run in range(2)]
        return pointers, [PAGE * TOKEN_BYTES] * len(pointers)


def indices(pages):
    return torch.cat([torch.arange(page * PAGE, (page + 1) * PAGE) for page in pages])


@pytest.fixture
def plug():
    base = types.ModuleType("sglang.srt.mem_cache.hicache_storage")
    body = {name: abc.abstractmethod(lambda self, *_: None) for name in ABSTRACT}
    body["register_mem_pool_host"] = lambda self, pool: setattr(self, "mem_pool_host", pool)
    body["register_mem_host_pool_v2"] = lambda self, pool, name: None
    base.HiCacheStorage = abc.ABCMeta("HiCacheStorage", (abc.ABC,), body)
    before = set(sys.modules)
    for name in ("sglang", "sglang.srt", "sglang.srt.mem_cache"):
        sys.modules.setdefault(name, types.ModuleType(name)).__path__ = []
    sys.modules["sglang"].__version__ = "0.5.23"
    sys.modules[base.__name__] = base
    sglang_hooks.Changes(False)
    from onecopy.integrations import sglang_storage

    yield sglang_storage.OnecopyHiCache
    for name in set(sys.modules) - before:
        if name.startswith(("sglang", "onecopy.integrations._sglang_storage")):
            del sys.modules[name]


@pytest.fixture
def engine(store, plug):
    def make(tp_rank=0, is_mla_model=False, **extra):
        gib = 16 * 2 * PAGE * TOKEN_BYTES / (1 << 30)
        options = {"interface_v1": 1, "onecopy.weights": "tiny@1", "onecopy.max_gib": gib, **extra}
        config = types.SimpleNamespace(extra_config=options, tp_rank=tp_rank, tp_size=2, pp_rank=0, pp_size=1,
                                       is_mla_model=is_mla_model)  # fmt: skip
        made = plug(config, {})
        made.register_mem_pool_host(HostPool())
        made.on_host_pools_registered()
        return made

    return make


def stored(engine, pages):
    for page in pages:
        engine.mem_pool_host.memory[:, page] = torch.tensor([[10 * page + 1], [10 * page + 2]])
    return engine.batch_set_v1([KEYS[page] for page in pages], indices(pages))


def test_the_plug_implements_each_abstract_method_of_sglang(plug):
    assert plug.__abstractmethods__ == frozenset()
    found = abstract_methods(os.environ.get("ONECOPY_SGLANG"), "srt/mem_cache/hicache_storage.py", {"HiCacheStorage"})
    assert found is None or found == {"HiCacheStorage": ABSTRACT}, "a new release of SGLang has other abstract methods"


def test_pages_that_one_engine_stored_are_read_by_another(engine):
    first, second = engine(), engine()
    assert second.batch_exists(KEYS[:3]) == 0
    assert stored(first, [0, 1]) == [True, True]
    assert second.batch_exists(KEYS[:3]) == 2
    assert second.batch_get_v1(KEYS[:3], indices([5, 6, 7])) == [True, True, False]
    memory = second.mem_pool_host.memory
    assert [int(memory[run, page][0]) for page in (5, 6) for run in range(2)] == [1, 2, 11, 12]
    assert bool((memory[:, 5:7] == memory[:, 5:7, :1]).all()) and not memory[:, 7].any()
    assert second._pages.pool.stats()["leased"] == 0


def test_a_page_that_was_looked_up_stays_until_it_was_read(engine):
    first, second = engine(), engine()
    stored(first, [0])
    assert second.exists(KEYS[0])
    first._pages.pool.remove(bytes.fromhex(KEYS[0]))
    numbers = first._pages.pool.allocate(8)
    for number in numbers:
        first._pages.pool.block(number).fill_(99)
    assert second.batch_get_v1(KEYS[:1], indices([3])) == [True]
    assert int(second.mem_pool_host.memory[1, 3, 0]) == 2


def test_engines_that_are_killed_while_they_store_leave_whole_pages_only(engine):
    small = {"onecopy.max_gib": 8 * 2 * PAGE * TOKEN_BYTES / (1 << 30)}
    reader, pages, rng, seen = engine(**small), list(range(24)), random.Random(1), 0
    pool = reader._pages.pool
    expected = torch.tensor([[10 * page + run for page in pages] for run in (1, 2)], dtype=torch.uint8)

    def start():
        writer, chosen = engine(**small), random.Random(kill)
        return lambda: stored(writer, chosen.sample(pages, 3))

    for kill in range(KILLS):
        kill_while_it_stores(start, pool, rng.randrange(1, 12))
        reader.mem_pool_host.memory.zero_()
        found = [page for page in pages if reader.batch_get_v1([KEYS[page]], indices([page])) == [True]]
        seen += len(found)
        memory = reader.mem_pool_host.memory[:, found]
        assert bool((memory == expected[:, found, None]).all()), f"after {kill + 1} kills"
        assert (pool.stats()["leased"], pool.stats()["writing"]) == (0, 0), f"after {kill + 1} kills"
    print(f"\n{KILLS} kills, {pool.stats()['stored']} pages stored, {seen} read")
    assert seen > KILLS and len(pool.allocate(4)) == 4


def test_ranks_share_pages_of_latent_attention_and_no_others(engine):
    stored(engine(tp_rank=0), [0])
    assert engine(tp_rank=1).batch_exists(KEYS[:1]) == 0
    stored(engine(tp_rank=0, is_mla_model=True), [1])
    assert engine(tp_rank=1, is_mla_model=True).batch_exists(KEYS[1:2]) == 1


def test_an_engine_with_new_weights_finds_no_page_of_the_old_ones_and_other_engines_do(engine):
    changes = sglang_hooks.Changes(False)
    first = engine()
    stored(first, [0, 1])
    changes.flush()
    assert first.batch_exists(KEYS[:2]) == 2, "a flush alone changes no weights"
    changes.update()
    assert first.batch_exists(KEYS[:2]) == 0 and first.batch_get_v1(KEYS[:2], indices([5, 6])) == [False, False]
    assert stored(first, [1]) == [True], "a page of the old weights that SGLang had queued"
    changes.flush()
    assert not first.exists(KEYS[1])
    assert stored(first, [0, 2]) == [True, True] and first.exists(KEYS[0]) and first.exists(KEYS[2])
    assert not engine().exists(KEYS[2]), "another engine may have got other weights"
    sglang_hooks.Changes(False)
    assert engine().batch_exists(KEYS[:3]) == 2, "an engine without an update"


def test_the_ranks_of_an_engine_with_new_weights_share_pages_of_latent_attention(engine, monkeypatch):
    from onecopy.integrations import _sglang_pages

    monkeypatch.setattr(_sglang_pages, "of_all_ranks", lambda mine: [b"the first rank's", mine])
    sglang_hooks.Changes(False).update()
    stored(engine(tp_rank=0, is_mla_model=True), [0])
    assert engine(tp_rank=1, is_mla_model=True).exists(KEYS[0])


def test_an_engine_that_would_not_hear_of_new_weights_is_refused(engine):
    registry = sglang_hooks.Changes(False).registry
    registry._patched.discard("sglang.srt.managers.scheduler.Scheduler.flush_cache")
    with pytest.raises(onecopy.Error, match="SGLANG_PLUGINS"):
        engine()


def test_engines_with_other_weights_share_no_page_and_clear_nothing_for_others(engine):
    first = engine()
    stored(first, [0])
    other = engine(**{"onecopy.weights": "tiny@2"})
    assert other.batch_exists(KEYS[:1]) == 0
    other.clear()
    first.clear()
    assert first.exists(KEYS[0])


def test_an_engine_without_weights_or_interface_v1_and_models_with_other_pools_are_refused(engine, plug):
    with pytest.raises(onecopy.InvalidArgument, match="onecopy.weights"):
        engine(**{"onecopy.weights": None})
    with pytest.raises(onecopy.InvalidArgument, match="interface_v1"):
        engine(interface_v1=0)
    made = engine()
    made.register_mem_host_pool_v2(HostPool(), "kv")
    made.on_host_pools_registered()
    made.register_mem_host_pool_v2(HostPool(), "mamba")
    with pytest.raises(onecopy.InvalidArgument, match="mamba"):
        made.on_host_pools_registered()
