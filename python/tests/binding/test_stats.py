# SPDX-License-Identifier: Apache-2.0
"""The holders of memory: the answers of stats(), list_owners() and collect()."""

import os
import subprocess
import sys
import tempfile

import pytest

import onecopy
from conftest import SHARED, is_left, listed_owner

KEEPER = """
import sys, onecopy
t = onecopy.open(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def keeper():
    """Starts programs that hold a tensor until their input ends."""
    started = []

    def start(handle):
        program = subprocess.Popen([sys.executable, "-c", KEEPER, str(handle)], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, text=True)  # fmt: skip
        started.append(program)
        assert program.stdout.readline() == "open\n"
        return program

    yield start
    for program in started:
        program.kill()
        program.communicate()


def test_a_directory_of_another_run_is_not_taken_for_memory_that_is_left():
    with tempfile.TemporaryDirectory(prefix="onecopy-soak-", dir=SHARED) as directory:
        assert not is_left(os.path.basename(directory))


def test_the_promised_numbers_are_there():
    stats = onecopy.stats()
    promised = {"shared_total", "opened_total", "segments", "foreign_segments", "bytes_shared", "in_transit", "limbo",
                "unkept", "descriptors", "host_waits", "direct_copies", "staged_copies",
                "staged_bytes", "torch_moved", "torch_moved_by_torch", "torch_adopted"}  # fmt: skip
    assert promised <= set(stats)
    assert all(type(value) is int for value in stats.values())


def test_sharing_and_opening_are_counted():
    before = onecopy.stats()
    t = onecopy.empty(1 << 20, "uint8")
    opened = [onecopy.open(onecopy.share(t)) for _ in range(3)]
    after = onecopy.stats()
    assert after["shared_total"] == before["shared_total"] + 3
    assert after["opened_total"] == before["opened_total"] + 3
    assert after["live_blocks"] == before["live_blocks"] + 1
    assert after["live_bytes"] >= before["live_bytes"] + (1 << 20)
    assert len(opened) == 3


def test_a_borrower_keeps_freed_memory_in_limbo_until_it_ends(run_python):
    # Runs in a program of its own, since blocks that earlier tests borrowed may be leaving limbo.
    program = """
        import subprocess, sys, time, onecopy

        def wait_for_limbo(count):
            while onecopy.stats()["limbo"] != count:
                time.sleep(0.02)

        t = onecopy.empty(3)
        with subprocess.Popen([sys.executable, "-c", sys.argv[1], str(onecopy.share(t))], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True) as keeper:
            assert keeper.stdout.readline() == "open\\n"
            assert onecopy.stats()["borrowers"] == 1
            del t
            wait_for_limbo(1)
            keeper.kill()
            wait_for_limbo(0)
        print("free")
    """
    assert run_python(program, KEEPER) == "free\n"


def test_owners_are_listed_with_those_who_keep_their_memory(keeper):
    t = onecopy.empty(3)
    program = keeper(onecopy.share(t))
    mine = listed_owner()
    assert {"pid", "name", "stats", "borrowers", "in_transit"} <= set(mine)
    assert {"pid": program.pid, "claims": 1}.items() <= next(
        b for b in mine["borrowers"] if b["pid"] == program.pid
    ).items()
    assert mine["stats"]["live_blocks"] >= 1 and t.size == 3


def test_the_borrower_sees_whose_memory_it_keeps(run_python):
    program = """
        import sys, onecopy
        t = onecopy.open(sys.argv[1])
        stats = onecopy.stats()
        print(stats["owners"], stats["foreign_segments"], stats["leases"])
        del t
        onecopy.collect()
        print(onecopy.stats()["leases"])
    """
    t = onecopy.empty(3)
    assert run_python(program, str(onecopy.share(t))) == "1 1 1\n0\n"


def test_many_tensors_take_few_descriptors_and_segments(run_python):
    """pytorch#973, #11201, #60626: a descriptor or a mapping for each tensor runs out."""
    program = """
        import pathlib, sys, onecopy

        def count_mappings():
            return len(pathlib.Path("/proc/self/maps").read_text().splitlines())

        before = onecopy.stats()["descriptors"]
        maps = count_mappings()
        tensors = onecopy.open(sys.argv[1]).values()
        own = [onecopy.empty(64) for _ in range(20_000)]
        handles = [onecopy.share(t) for t in own]
        print(len(tensors), onecopy.stats()["descriptors"] - before <= 64,
              count_mappings() - maps <= 64)
    """
    tensors = [onecopy.empty(64) for _ in range(20_000)]
    handle = onecopy.share(tensors)
    assert run_python(program, str(handle)) == "20000 True True\n"


def test_a_queue_that_nothing_was_put_into_is_not_counted_as_memory():
    before = onecopy.stats()["bytes_shared"]
    queue = onecopy.Queue()
    assert onecopy.stats()["bytes_shared"] == before
    del queue


def test_memory_is_given_back_by_collect():
    t = onecopy.zeros(1 << 26, "uint8")
    before = onecopy.stats()["bytes_shared"]
    del t
    onecopy.collect()
    assert onecopy.stats()["bytes_shared"] <= before - (1 << 26)


def test_strategies():
    assert onecopy.strategy() == "file_descriptor"
    onecopy.set_strategy("file_system")
    try:
        assert onecopy.strategy() == "file_system"
        t = onecopy.full(3, 2.0)
        assert any(name.startswith("onecopy") for name in os.listdir(SHARED))
        assert onecopy.open(onecopy.share(t).to_bytes()).tolist() == [2, 2, 2]
    finally:
        onecopy.set_strategy("file_descriptor")
    del t
    onecopy.collect()


def test_torch_counters(run_python):
    pytest.importorskip("torch")
    program = """
        import torch, onecopy
        x = torch.ones(3)
        onecopy.share(x); onecopy.share(x); onecopy.share(x[1:])
        print({k: v for k, v in onecopy.stats().items() if k.startswith("torch")})
    """
    expected = {"torch_moved": 1, "torch_moved_by_torch": 0, "torch_adopted": 0}
    assert run_python(program) == f"{expected}\n"
