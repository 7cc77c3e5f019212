# SPDX-License-Identifier: Apache-2.0
"""Tensors pickled for a channel of multiprocessing wait there for hours, not for ten minutes."""

from __future__ import annotations

import os
import pickle
import subprocess
import time
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import pytest
import torch

import onecopy
import onecopy.multiprocessing as mp
from conftest import handles_in_transit
from support.devices import eventually


@pytest.fixture(scope="module")
def later(tmp_path_factory):
    """The environment in which a program can say ``later(seconds)``."""
    library = tmp_path_factory.mktemp("later") / "later.so"
    source = Path(__file__).parent / "later.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"], check=True)
    return {"LD_PRELOAD": str(library)}


LATER = """
import ctypes, os, time
import torch
import onecopy
import onecopy.multiprocessing as mp

def later(seconds):
    ctypes.CDLL(None).later(ctypes.c_long(seconds))
    time.sleep(0.5)  # owners look every 20 ms
"""

LOADER = (
    LATER
    + """
loader = torch.utils.data.DataLoader(torch.arange(8.0), num_workers=1, persistent_workers=True)
batches = iter(loader)
arrived = [next(batches).item()]
later(625)
arrived += [batch.item() for batch in batches]
print(arrived)
"""
)

POOL = (
    LATER
    + """
def wait(event):
    event.wait()

def double(tensor):
    return tensor * 2

def main():
    context = mp.get_context("fork")
    with context.Manager() as manager, context.Pool(1) as pool:
        event = manager.Event()
        busy = pool.apply_async(wait, (event,))
        results = [pool.apply_async(double, (torch.full((10,), float(i)),)) for i in range(3)]
        while onecopy.stats()["in_transit"] < 3:
            time.sleep(0.01)
        later(625)
        event.set()
        print([result.get(60)[0].item() for result in results])

main()
"""
)

PICKLES = (
    LATER
    + """
import pickle
explicit = pickle.dumps(onecopy.share(onecopy.full(3, 7)))
assert onecopy.stats()["in_transit"] == 1
later(625)
while onecopy.stats()["in_transit"]:
    time.sleep(0.01)
print("given up")
"""
)


def test_a_batch_is_there_though_nobody_fetched_it_for_ten_minutes(run_python, later):
    assert run_python(LOADER, env=later) == f"{[float(i) for i in range(8)]}\n"


def test_tasks_of_a_pool_are_done_after_one_that_takes_more_than_ten_minutes(run_python, later):
    assert run_python(POOL, env=later) == "[0.0, 2.0, 4.0]\n"


def test_what_a_program_pickles_itself_is_still_given_up(run_python, later):
    assert run_python(PICKLES, env=later) == "given up\n"


class Unreadable:
    """Cannot be unpickled."""

    def __init__(self, error) -> None:
        self.error = error

    def __reduce__(self) -> tuple:
        return throw, (self.error,)


def throw(error):
    raise error


@pytest.mark.parametrize("error", [KeyError("lost"), OSError("lost"), EOFError("lost")], ids=type)
def test_a_task_that_cannot_be_unpickled_fails_and_its_worker_goes_on(error):
    with mp.get_context("fork").Pool(1) as pool:
        worker = pool.apply(os.getpid)
        result = pool.apply_async(abs, (Unreadable(error),))
        with pytest.raises(type(error), match="lost"):
            result.get(60)
        assert pool.apply(os.getpid) == worker
        with pytest.raises(type(error), match="lost"):
            pool.map(abs, [1, Unreadable(error)], chunksize=1)


class OfTwoArguments(Exception):
    """Pickles, and cannot be unpickled."""

    def __init__(self, first, second) -> None:
        super().__init__(first)


def throw_of_two_arguments(_):
    raise OfTwoArguments("lost", 2)


class Unspeakable:
    def __reduce__(self) -> tuple:
        return throw_of_two_arguments, (0,)


def test_a_task_whose_error_cannot_be_unpickled_either_fails_and_its_pool_goes_on():
    with mp.get_context("fork").Pool(1) as pool:
        with pytest.raises(RuntimeError, match="the task cannot be unpickled: OfTwoArguments: lost"):
            pool.apply_async(abs, (Unspeakable(),)).get(60)
        assert pool.apply(abs, (-1,)) == 1


def test_tasks_that_a_terminated_pool_never_did_keep_nothing():
    before = onecopy.stats()["in_transit"]
    with mp.get_context("fork").Pool(1) as pool:
        pool.apply_async(time.sleep, (60,))
        for _ in range(20):
            pool.apply_async(abs, (torch.ones(3),))
        while onecopy.stats()["in_transit"] < before + 20:
            time.sleep(0.01)
    assert eventually(lambda: onecopy.stats()["in_transit"] == before)


@pytest.mark.parametrize("make", [torch.ones, onecopy.zeros, lambda n: onecopy.share(onecopy.zeros(n))])
def test_what_waits_is_visible_with_its_age_and_can_be_given_up(make):
    data = bytes(ForkingPickler.dumps(make(3)))
    assert [t["blocks"] for t in handles_in_transit()] == [1]
    onecopy.collect(older_than=0)
    assert handles_in_transit() == []
    with pytest.raises(onecopy.StaleHandle):
        opened = pickle.loads(data)
        onecopy.open(opened)
