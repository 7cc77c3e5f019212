# SPDX-License-Identifier: Apache-2.0
"""Engines of SGLang on the CPU share one KV pool through HiCache or the linker: what one has computed, another finds.

Run by ``./dev test sglang``, in an environment of its own. The tests use the same engines.
"""

import importlib.util
import json
import os
import random
import time
from pathlib import Path

import pytest

import onecopy
import sglang_hicache
from engine_process import EngineProcess, guide_options, prefixes, prompts, reusable, tokens

if not os.environ.get("ONECOPY_SGLANG_ENGINE") or not importlib.util.find_spec("sglang"):
    pytest.skip("needs sglang: ./dev test sglang", allow_module_level=True)

import sglang_kv_engine

PROGRAM = Path(__file__).parent / "sglang_kv_engine.py"
PAGE = 16
SMALL = {"onecopy.max_gib": 0.5, "onecopy.extent_bytes": 1 << 20}  # for pages of 16 KiB
CPU = {"SGLANG_USE_CPU_ENGINE": "1", "SGLANG_CPU_OMP_THREADS_BIND": "0|0"}


def hicache(**options):
    """Returns SGLang's options with the guide's configuration of the storage backend, and other options of the plug."""
    given = guide_options("--hicache-storage-backend-extra-config")
    given |= {**SMALL, "prefetch_threshold": PAGE, **options}
    return {
        "enable_hierarchical_cache": True, "hicache_ratio": 2.0, "hicache_storage_backend": "dynamic",
        "hicache_storage_prefetch_policy": "wait_complete", "hicache_storage_backend_extra_config": json.dumps(given),
    }  # fmt: skip


def linker(**options):
    """Returns SGLang's options with the guide's configuration of the external linker, and other options of the plug."""
    given = guide_options("--unified-cache-external-linker-config")
    given["linker_extra_config"] |= SMALL
    for name, value in options.items():
        (given if name == "linker_module_path" else given["linker_extra_config"])[name] = value
    return {
        "enable_unified_cache_external_linker": True, "unified_cache_external_linker_backend": "dynamic",
        "unified_cache_external_linker_config": given,
    }  # fmt: skip


PLUGS = {"hicache": (hicache, "module_path"), "linker": (linker, "linker_module_path")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("engines")
    sglang_kv_engine.save_model(folder / "model")
    return folder


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONECOPY_STORE_DIR", str(tmp_path_factory.mktemp("store") / "store"))
        made = onecopy.store.connect()
        yield made
        made.stop()


@pytest.fixture(scope="module")
def start(folder, store):
    """Starts engines, which end with the tests of this file."""
    started = []
    paths = sglang_hicache.install(folder / "plugins")

    def start(options, is_awaited=True):
        made = EngineProcess(folder, PROGRAM, folder / "model", json.dumps(options), is_awaited=is_awaited,
                             PYTHONPATH=paths, **CPU)  # fmt: skip
        started.append(made)
        return made

    yield start
    for one in started:
        one.kill()


@pytest.fixture(scope="module", params=PLUGS)
def plug(request):
    """The function that returns an engine's options, and the name of the option that has the path of the module."""
    return PLUGS[request.param]


@pytest.fixture(scope="module")
def plain(start):
    """An engine without a KV pool and a cache, for the tests of both plugs."""
    return start({"disable_radix_cache": True})


@pytest.fixture(scope="module")
def engines(start, plug):
    """Two engines with one KV pool."""
    engines = [start(plug[0](), is_awaited=False) for _ in range(2)]
    for engine in engines:
        engine.await_ready()
    yield engines
    for engine in engines:
        engine.kill()


def answer_all(engine, prompts):
    """Asks one prompt after the other, since SGLang computes equal prompts of a batch together."""
    return [engine.ask("answers", [prompt])[0] for prompt in prompts]


def test_an_engine_finds_what_another_has_computed_and_gives_the_same_tokens(engines, plain):
    first, second = engines
    shared = prefixes(1)
    earlier, later = prompts(2, 200, shared), prompts(3, 150, shared)
    later += earlier[:50]
    answer_all(first, earlier)
    time.sleep(2)  # SGLang stores in the background
    expected = [answer for answer, _ in plain.ask("answers", later)]
    found = computed = 0
    for prompt, tokens_without in zip(later, expected):
        second.ask("forget")
        [[answer, cached]] = second.ask("answers", [prompt])
        assert answer == tokens_without
        found += min(cached, reusable(prompt, earlier, PAGE))
        computed += reusable(prompt, earlier, PAGE)
    print(f"\n{found} of {computed} tokens of the other engine's pages were found")
    assert computed > 10_000 and found >= 0.95 * computed


def test_a_third_engine_finds_what_a_killed_engine_has_stored(engines, plain, start, plug):
    first, _ = engines
    prompt = tokens(random.Random(8), 40 * PAGE + 3)
    first.ask("answers", [prompt])
    time.sleep(2)
    first.kill()
    third = start(plug[0]())
    [[answer, cached]] = third.ask("answers", [prompt])
    assert cached == 40 * PAGE and answer == plain.ask("answers", [prompt])[0][0]


def test_an_engine_with_new_weights_reads_no_page_of_the_old_ones(engines, plain, folder):
    _, engine = engines
    old, new, prompt = folder / "model", folder / "new", tokens(random.Random(9), 20 * PAGE + 3)
    if not new.exists():
        sglang_kv_engine.save_model(new, seed=1)

    def answer_of(one):
        [[answer, cached]] = one.ask("answers", [prompt])
        return answer, cached

    before, _ = answer_of(engine)
    time.sleep(2)
    engine.ask("forget")
    assert answer_of(engine) == (before, 20 * PAGE), "the pages are in the KV pool"
    for one in (engine, plain):
        one.ask("load", str(new))
    expected, _ = answer_of(plain)
    assert answer_of(engine) == (expected, 0) and expected != before
    for one in (engine, plain):
        one.ask("load", str(old))
    assert answer_of(engine) == (before, 0) and answer_of(plain)[0] == before


def test_engines_with_a_wrong_configuration_do_not_start(store, start, plug):
    options, module = plug
    store.kv_pool("other", block_bytes=1 << 16, budget=1 << 29)
    wrong = [
        ({module: "onecopy.integrations.no_such_module"}, "onecopy.integrations.no_such_module"),
        ({"onecopy.weights": ""}, 'set "onecopy.weights" to a text'),
        ({"onecopy.pool": "other", "onecopy.max_gib": 0.25}, 'the KV pool "other" has 536870912 bytes'),
    ]
    refused = [start(options(**change), is_awaited=False) for change, _ in wrong]
    for engine, (_, words) in zip(refused, wrong):
        assert engine.process.stdout.readline() == "" and engine.process.wait(100) != 0
        assert words in engine.log.read_text()
