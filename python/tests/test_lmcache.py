# SPDX-License-Identifier: Apache-2.0
"""onecopy.integrations.lmcache: an engine gets the chunks that another engine has put. LMCache itself needs a card."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import onecopy

torch = pytest.importorskip("torch")

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import lmcache_interface as lmcache
from lmcache_interface import Key, Memory, MemoryFormat

sys.path.remove(str(HERE))

# Another engine: puts chunk 7, says so, and waits to be ended.
OTHER = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import torch
import lmcache_interface as lmcache

backend = lmcache.backend()
backend.batched_submit_put_task([lmcache.Key(7)], [lmcache.Memory(torch.full((2, 3, 4), 7.0).bfloat16())])
print(backend.contains(lmcache.Key(1)), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def backend(tmp_path, monkeypatch):
    before = set(sys.modules)
    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setenv("ONECOPY_RUNTIME_DIR", str(tmp_path / "run"))
    made = lmcache.backend(max_gib=1 / 1024)  # 1 MiB
    yield made
    made.close()
    for name in set(sys.modules) - before:
        if name.startswith(("lmcache", "onecopy.integrations._lmcache")):
            del sys.modules[name]


@pytest.fixture
def other(backend):
    backend.batched_submit_put_task([Key(1)], [Memory(torch.ones(4))])
    with subprocess.Popen([sys.executable, "-c", OTHER], stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout.readline() == "True\n", "it finds what this process has put"
        yield process
        process.stdin.close()


def test_a_chunk_of_another_process_is_got(backend, other):
    assert backend.batched_contains([Key(7), Key(1), Key(2)]) == 2
    memory = backend.get_blocking(Key(7))
    assert memory.tensor.dtype == torch.bfloat16 and memory.tensor.tolist() == torch.full((2, 3, 4), 7.0).tolist()
    assert memory.fmt == MemoryFormat.KV_2LTD
    assert not backend.remove(Key(7)), "it is the other's"


def test_chunks_of_a_killed_process_are_not_there(backend, other):
    assert backend.contains(Key(7))
    os.kill(other.pid, signal.SIGKILL)
    other.wait()
    assert not backend.contains(Key(7)) and backend.get_blocking(Key(7)) is None
    assert backend.contains(Key(1))


def test_the_least_recently_used_chunks_make_room_but_not_pinned_ones(backend):
    for number in range(4):  # of 300 KiB each, so that three have room
        backend.batched_submit_put_task([Key(number)], [Memory(torch.full((300 << 10,), number, dtype=torch.uint8))])
        if number == 2:
            assert backend.pin(Key(0)) and backend.get_blocking(Key(1)) is not None
    assert [backend.contains(Key(number)) for number in range(4)] == [True, True, False, True]
    assert not backend.remove(Key(0), force=False) and backend.unpin(Key(0)) and backend.remove(Key(0))
    assert not backend.contains(Key(0)) and not backend.unpin(Key(0))


def test_memory_goes_back_when_chunks_go(backend):
    onecopy.collect()
    before = onecopy.stats()["live_blocks"]
    backend.batched_submit_put_task([Key(1), Key(2)], [Memory(torch.ones(10)), Memory(torch.ones(10))])
    assert onecopy.stats()["live_blocks"] > before
    assert backend.remove(Key(1))
    backend.close()
    onecopy.collect()
    assert onecopy.stats()["live_blocks"] == before


def test_a_chunk_is_put_once_and_said_once(backend):
    said = []
    for _ in range(2):
        backend.batched_submit_put_task([Key(1)], [Memory(torch.ones(1))], on_complete_callback=said.append)
    assert said == [Key(1)] and not backend.exists_in_put_tasks(Key(1))


def test_chunks_behind_a_missing_one_are_not_read(backend):
    backend.batched_submit_put_task([Key(1), Key(3)], [Memory(torch.ones(1)), Memory(torch.ones(1))])
    found = asyncio.run(backend.batched_get_non_blocking("lookup", [Key(1), Key(2), Key(3)]))
    assert [memory.tensor.tolist() for memory in found] == [[1.0]]
    assert asyncio.run(backend.batched_async_contains("lookup", [Key(1), Key(2)])) == 1


def test_a_long_life_leaves_a_short_file(backend):
    handle = onecopy.share(onecopy.zeros(1))
    catalogue = backend._catalogue
    for _ in range(3000):
        catalogue.put("x", handle)
        catalogue.drop("x")
    catalogue.put("y", handle)
    assert catalogue._path.stat().st_size < 2000 * len(str(handle))
    assert catalogue.find("x") == [] and catalogue.find("y") == [str(handle)]
