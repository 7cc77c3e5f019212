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
HERE = Path(__file__).parent
TRAINERS = """
import os, signal, sys, onecopy, sglang_engine, transformers
for line in sys.stdin:
    if child := os.fork():
        os.waitpid(child, 0)
        continue
    print("trainer", os.getpid(), flush=True)
    store = onecopy.store.connect()
    for seed in map(int, line.split()):
        print(seed, flush=True)
        store.publish("llama", sglang_engine.model(seed).state_dict(), attributes={"seed": str(seed)})
    print("done", flush=True)
    signal.pause()
"""


class Trainers:
    """Trainers, one at a time, that publish the weights of each seed. They are forks, since their imports take long."""

    def __init__(self):
        program = [sys.executable, "-c", TRAINERS]
        self._process = subprocess.Popen(program, stdin=-1, stdout=-1, text=True, bufsize=1, cwd=HERE)

    def start(self, *seeds):
        print(*seeds, file=self._process.stdin)
        while not (line := self.line()).startswith("trainer "):  # what a killed one has printed
            assert line, "the process of the trainers has ended"
        self._running = int(line.split()[1])

    def line(self):
        return self._process.stdout.readline()

    def kill(self):
        os.kill(self._running, signal.SIGKILL)

    def publish(self, seed):
        """Publishes by a trainer that is killed afterwards."""
        self.start(seed)
        assert [self.line(), self.line()] == [f"{seed}\n", "done\n"]
        self.kill()

    def end(self):
        self._process.communicate()


@pytest.fixture
def trainers(store):
    made = Trainers()
    yield made
    made.end()


@pytest.fixture
def start(store, tmp_path):
    """Starts engines, which end with the test."""
    started = []

    def start():
        started.append(EngineProcess(tmp_path, HERE / "sglang_engine.py", tmp_path / "model", 1, "llama", **CPU))
        return started[-1]

    yield start
    for one in started:
        one.kill()


def test_engines_have_the_last_version_of_trainers_and_engines_that_were_killed(store, start, trainers):
    trainers.publish(7)
    first = start()
    assert first.ask("tokens") == first.ask("expected", 7)
    trainers.publish(8)
    assert first.ask("reload", "8")[0]
    last = first.ask("tokens")
    assert last == first.ask("expected", 8) and first.ask("version") == "8", "the answer names its weights"
    first.kill()
    os.kill(store.keeper()["worker"], signal.SIGKILL)
    assert start().ask("tokens") == last


def test_reloads_beside_trainers_that_are_killed_while_they_publish_give_the_tokens_of_one_version(
    store, start, trainers
):
    trainers.publish(0)
    engine, rng, seen = start(), random.Random(1), set()
    for kills in range(min(KILLS, 30)):
        trainers.start(*range(10 * kills, 10 * kills + 10))
        for _ in range(rng.randrange(1, 5)):
            trainers.line()
        time.sleep(rng.uniform(0, 0.2))  # the weights are made, or published
        trainers.kill()
        assert engine.ask("reload")[0]
        seed = int(store.open("llama").attributes["seed"])
        assert engine.ask("tokens") == engine.ask("expected", seed)
        seen.add(seed)
    assert len(seen) > 5
