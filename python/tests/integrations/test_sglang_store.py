# SPDX-License-Identifier: Apache-2.0
"""SGLang's own engine on the CPU has the last version of the store, whichever trainer, engine or keeper is killed.

Run by ``./dev test sglang``. The folder of the engines has no weights, so they come from the store.
"""

import importlib.util
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import KILLS
from engine_process import EngineProcess

if not os.environ.get("ONECOPY_SGLANG_ENGINE") or not importlib.util.find_spec("sglang"):
    pytest.skip("needs sglang: ./dev test sglang", allow_module_level=True)

CPU = {"SGLANG_USE_CPU_ENGINE": "1", "SGLANG_CPU_OMP_THREADS_BIND": "0|0"}
TESTS = Path(__file__).parents[1]
TRAINER = """
import sys, onecopy, sglang_engine
store = onecopy.store.connect()
for seed in map(int, sys.argv[1:]):
    print(seed, flush=True)
    store.publish("llama", sglang_engine.model(seed).state_dict(), attributes={"seed": str(seed)})
print("done", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def start(store, tmp_path):
    """Starts engines, which end with the test."""
    started = []

    def start():
        started.append(EngineProcess(tmp_path, TESTS / "sglang_engine.py", tmp_path / "model", 1, "llama", **CPU))
        return started[-1]

    yield start
    for one in started:
        one.kill()


def train(*seeds):
    """Starts a trainer that publishes the weights of each seed."""
    return subprocess.Popen(
        [sys.executable, "-c", TRAINER, *map(str, seeds)], stdin=-1, stdout=-1, text=True, cwd=TESTS
    )


def kill(trainer):
    trainer.kill()
    trainer.communicate()


def publish(seed):
    """Publishes by a trainer that is killed afterwards."""
    trainer = train(seed)
    assert [trainer.stdout.readline() for _ in range(2)] == [f"{seed}\n", "done\n"]
    kill(trainer)


def test_engines_have_the_last_version_of_trainers_and_engines_that_were_killed(store, start):
    publish(7)
    first = start()
    assert first.ask("tokens") == first.ask("expected", 7)
    publish(8)
    assert first.ask("reload")[0]
    last = first.ask("tokens")
    assert last == first.ask("expected", 8)
    first.kill()
    os.kill(store.keeper()["worker"], signal.SIGKILL)
    assert start().ask("tokens") == last


def test_reloads_beside_trainers_that_are_killed_while_they_publish_give_the_tokens_of_one_version(store, start):
    publish(0)
    engine, rng, seen = start(), random.Random(1), set()
    for kills in range(min(KILLS, 30)):
        trainer = train(*range(10 * kills, 10 * kills + 10))
        for _ in range(rng.randrange(1, 5)):
            trainer.stdout.readline()
        time.sleep(rng.uniform(0, 0.2))  # the weights are made, or published
        kill(trainer)
        assert engine.ask("reload")[0]
        seed = int(store.open("llama").attributes["seed"])
        assert engine.ask("tokens") == engine.ask("expected", seed)
        seen.add(seed)
    assert len(seen) > 5
