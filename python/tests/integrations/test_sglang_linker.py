# SPDX-License-Identifier: Apache-2.0
"""onecopy.integrations.sglang_linker: pages of one engine are loaded by another, with SGLang's own classes or stubs.

The classes are SGLang's own where ``./dev test sglang`` has installed it.
"""

import abc
import dataclasses
import hashlib
import importlib.util
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

PAGE, LAYERS, HEADS = 4, 2, 2
KEYS = [hashlib.sha256(bytes([number])).hexdigest() for number in range(64)]
#: The abstract methods of SGLang 0.5.23.
ABSTRACT = {
    "lookup", "load", "start_layer_wise_loading", "finish_layer_wise_loading", "cancel_queued_load", "offload",
    "num_completed_offloads", "pop_completed_offload", "reset", "close",
}  # fmt: skip
BASE = "sglang.srt.mem_cache.unified_cache.unified_cache_linker"
STORAGE = "sglang.srt.mem_cache.hicache_storage"
IS_SGLANG = bool(os.environ.get("ONECOPY_SGLANG_ENGINE") and importlib.util.find_spec("sglang"))


class LayerWiseLoadCounter:
    """Knows which layers of each batch of loads are there, and which batches have failed."""

    def __init__(self, num_layers):
        self.batches = {}

    def update_producer(self):
        self.batches[len(self.batches)] = []
        return len(self.batches) - 1

    def complete(self, index, layer):
        self.batches[index].append(layer)

    def fail(self, index, error):
        self.batches[index] = None

    def finish(self, index):
        return self.batches[index] == list(range(LAYERS))

    def reset(self):
        self.batches.clear()


class DevicePoolGroup:
    def __init__(self, entries, num_layers, page_size):
        self.entry_map, self.num_layers = {entry.name: entry for entry in entries}, num_layers

    def resolve_transfers(self, transfers, **_):
        return [dataclasses.replace(transfer, host_indices=transfer.device_indices) for transfer in transfers]


@dataclasses.dataclass
class PoolTransfer:
    name: str
    device_indices: torch.Tensor
    keys: list
    host_indices: torch.Tensor = None


def linker_class():
    body = {name: abc.abstractmethod(lambda self, *_: None) for name in ABSTRACT}
    body["record_offload_ready"] = lambda self: [types.SimpleNamespace(synchronize=lambda: None)]
    return abc.ABCMeta("UnifiedCacheLinker", (abc.ABC,), body)


@pytest.fixture
def plug(monkeypatch):
    if IS_SGLANG:
        import sglang_engine  # stands for packages that are built for CUDA  # noqa: F401
        from onecopy.integrations import _sglang_linker

        monkeypatch.setattr(_sglang_linker, "_tensor_rank", lambda: 1)  # a rank that no engine has started
        sglang_hooks.Changes(True)
        yield _sglang_linker.OnecopyLinker
        return
    before = set(sys.modules)
    members = {
        BASE: {"UnifiedCacheLinker": linker_class(), "LayerWiseLoadCounter": LayerWiseLoadCounter},
        "sglang.srt.mem_cache.hybrid_cache.linker_pool_assembler": {
            "DevicePoolEntry": types.SimpleNamespace, "DevicePoolGroup": DevicePoolGroup,
        },
        STORAGE: {"PoolName": types.SimpleNamespace(KV="kv"), "PoolTransfer": PoolTransfer},
        "sglang.srt.runtime_context": {"get_parallel": lambda: types.SimpleNamespace(tp_rank=1)},
    }  # fmt: skip
    for name, values in members.items():
        parts = name.split(".")
        for count in range(1, len(parts) + 1):
            package = ".".join(parts[:count])
            sys.modules.setdefault(package, types.ModuleType(package)).__path__ = []
        vars(sys.modules[name]).update(values)
    sys.modules["sglang"].__version__ = "0.5.23"
    sglang_hooks.Changes(False)
    from onecopy.integrations import sglang_linker

    yield sglang_linker.OnecopyLinker
    for name in set(sys.modules) - before:
        if name.startswith(("sglang", "onecopy.integrations._sglang_linker")):
            del sys.modules[name]


class Cache:
    """The engine's memory of keys and values, with a row for each token."""

    dtype = torch.bfloat16

    def __init__(self, pages=17, width=8):
        self.k_buffer, self.v_buffer = (
            [torch.zeros(pages * PAGE, HEADS, width) for _ in range(LAYERS)] for _ in range(2)
        )


class Engine:
    """An engine that has one linker, and 16 pages in the KV pool."""

    def __init__(self, plug, cache=None, tp_size=1, **extra):
        self.cache = cache or Cache()
        block = sum(layer[:PAGE].nbytes for layer in getattr(self.cache, "k_buffer", [])) * 2
        options = {"onecopy.weights": "tiny@1", "onecopy.max_gib": 16 * block / (1 << 30), **extra}
        params = types.SimpleNamespace(
            token_to_kv_pool_allocator=types.SimpleNamespace(get_kvcache=lambda: self.cache), page_size=PAGE, pp_rank=0
        )
        args = types.SimpleNamespace(tp_size=tp_size, pp_size=1)
        self.linker = plug(args, params, components=set(), extra_config=options)
        self.pool = self.linker._pages.pool

    def fill(self, pages, by=0):
        for layer, tensor in enumerate([*self.cache.k_buffer, *self.cache.v_buffer]):
            for page in pages:
                tensor[page * PAGE : (page + 1) * PAGE] = by * (10 * page + layer + 1)

    def has(self, pages):
        return all(
            bool((tensor[page * PAGE : (page + 1) * PAGE] == 10 * page + layer + 1).all())
            for layer, tensor in enumerate([*self.cache.k_buffer, *self.cache.v_buffer])
            for page in pages
        )

    def offload(self, pages):
        self.fill(pages, 1)
        assert self.linker.offload(transfers(pages))
        assert self.linker.num_completed_offloads() == 1
        return self.linker.pop_completed_offload()

    def lookup(self, pages, request="r"):
        return self.linker.lookup(request, transfers(pages))

    def load(self, pages, request="r"):
        return self.linker.load(request, transfers(pages))

    def finish_loads(self):
        return self.linker.finish_layer_wise_loading(self.linker.start_layer_wise_loading())


def transfers(pages):
    rows = torch.cat([torch.arange(page * PAGE, (page + 1) * PAGE) for page in pages])
    storage = sys.modules[STORAGE]
    keys = [KEYS[page] for page in pages]
    return [storage.PoolTransfer(name=storage.PoolName.KV, device_indices=rows, keys=keys)]


def test_the_plug_implements_each_abstract_method_of_sglang(plug):
    assert plug.__abstractmethods__ == frozenset()
    path = "srt/mem_cache/unified_cache/unified_cache_linker.py"
    found = abstract_methods(os.environ.get("ONECOPY_SGLANG"), path, {"UnifiedCacheLinker"})
    assert found is None or found == {"UnifiedCacheLinker": ABSTRACT}, "a new release of SGLang has other methods"


def test_pages_that_one_engine_offloaded_are_loaded_by_another(store, plug):
    first, second = Engine(plug), Engine(plug)
    assert second.lookup([3, 1]) == []
    assert second.linker.start_layer_wise_loading() == -1, "there is nothing to load"
    assert first.offload([3, 1])
    assert second.lookup([3, 1, 2]) == [1, 2]
    assert second.load([3, 1]) and not second.has([3])
    assert second.finish_loads() and second.has([3, 1])
    assert not any(tensor[2 * PAGE].any() for tensor in second.cache.k_buffer)
    assert second.pool.stats()["leased"] == 0


def test_a_page_that_was_looked_up_stays_until_it_is_loaded(store, plug):
    first, second = Engine(plug), Engine(plug)
    first.offload([0])
    assert second.lookup([0]) == [1]
    first.pool.remove(bytes.fromhex(KEYS[0]))
    for number in first.pool.allocate(8):
        first.pool.block(number).fill_(99)
    assert second.load([0]) and second.finish_loads() and second.has([0])


def test_a_load_of_a_page_that_is_gone_is_refused_and_by_one_of_several_ranks_fails(store, plug):
    for ranks, is_queued in ((1, False), (2, True)):
        engine = Engine(plug, tp_size=ranks)
        engine.offload([0])
        engine.pool.clear()
        engine.fill([0])
        assert engine.load([0, 1]) is is_queued, "all ranks must return the same"
        assert engine.linker.start_layer_wise_loading() == (0 if is_queued else -1)
        assert not is_queued or not engine.linker.finish_layer_wise_loading(0)
        assert not engine.has([0]) and engine.pool.stats()["leased"] == 0


def test_a_cancelled_load_and_a_reset_end_leases_and_keep_pages(store, plug):
    engine = Engine(plug)
    engine.offload([0, 1])
    engine.lookup([0, 1]), engine.load([0, 1])
    assert engine.linker.cancel_queued_load("r") and not engine.linker.cancel_queued_load("r")
    assert engine.pool.stats()["leased"] == 0
    engine.lookup([0, 1]), engine.load([0], "other")
    engine.linker.reset()
    assert engine.pool.stats()["leased"] == 0 and engine.lookup([0, 1]) == [1, 2]


def test_an_offload_for_whose_pages_there_is_no_room_is_not_successful(store, plug):
    engine = Engine(plug)
    pages = list(range(1, 17))
    half = engine.pool.allocate(8)  # the max of one process
    assert not engine.offload(pages)
    engine.pool.release(half)
    assert engine.offload(pages[:8])


def test_engines_that_are_killed_while_they_offload_leave_whole_pages_only(store, plug):
    pages, rng, seen = list(range(64)), random.Random(1), 0
    cache = Cache(64, 512)
    reader = Engine(plug, cache)

    def start():
        engine, chosen = Engine(plug, cache), random.Random(kill)
        engine.fill(pages, 1)
        return lambda: engine.linker.offload(transfers(chosen.sample(pages, 3)))

    for kill in range(KILLS):
        kill_while_it_stores(start, reader.pool, rng.randrange(1, 12))
        found = [page for page in pages if reader.lookup([page], str(page))]
        seen += len(found)
        for page in found:
            reader.load([page], str(page))
        reader.fill(pages)
        assert reader.finish_loads() or not found
        assert reader.has(found), f"after {kill + 1} kills"
        stats = reader.pool.stats()
        assert (stats["leased"], stats["writing"]) == (0, 0), f"after {kill + 1} kills"
    print(f"\n{KILLS} kills, {reader.pool.stats()['stored']} pages stored, {seen} read")
    assert seen > KILLS and len(reader.pool.allocate(8)) == 8


@pytest.mark.parametrize("way", ["disk", "distributed", "tensor", "ipc"])
def test_a_page_of_old_weights_is_neither_found_nor_loaded_after_an_update(store, plug, way):
    changes, engine = sglang_hooks.Changes(IS_SGLANG), Engine(plug)
    engine.offload([0, 1])
    assert engine.lookup([0, 1]) == [1, 2]
    if way in ("distributed", "tensor") or not IS_SGLANG:
        changes.update(way)
    else:  # SGLang's own method fails, since there is no engine
        with pytest.raises(AttributeError):
            changes.update(way)
    assert not engine.load([0, 1]) and engine.lookup([0, 1], "other") == []
    engine.offload([0])
    changes.flush()
    assert engine.lookup([0], "after the flush") == []
    engine.linker.reset()
    assert engine.pool.stats()["leased"] == 0


def test_ranks_and_engines_with_other_weights_or_numbers_share_no_page(store, plug):
    Engine(plug).offload([0])
    assert Engine(plug, tp_size=2).lookup([0]) == []
    other = Cache()
    other.dtype = torch.float8_e4m3fn  # SGLang stores several kinds of numbers as bytes
    assert Engine(plug, other).lookup([0]) == []
    assert Engine(plug, **{"onecopy.weights": "tiny@2"}).lookup([0]) == []


def test_a_model_with_other_caches_and_an_engine_without_weights_are_refused(store, plug):
    scaled = Cache()
    scaled.k_scale_buffer = [torch.ones(1)]
    for cache in (types.SimpleNamespace(kv_buffer=[], dtype=torch.float32), scaled):
        with pytest.raises(onecopy.InvalidArgument, match="stores keys and values with a row for each token only"):
            Engine(plug, cache)
    with pytest.raises(onecopy.InvalidArgument, match="onecopy.weights"):
        Engine(plug, **{"onecopy.weights": ""})
