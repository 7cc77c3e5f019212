# SPDX-License-Identifier: Apache-2.0
"""Loaders give the right batches whatever the program does meanwhile, and their workers end with the program."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, Dataset

import onecopy
import onecopy.multiprocessing as mp
from conftest import has_ended
from support.devices import eventually

CONTEXTS = {"import": "fork", "context": mp.get_context("fork")}


class Rows(Dataset):
    """The rows of a tensor, and a count of the reads of each row in memory that is shared."""

    def __init__(self, rows) -> None:
        self.rows, self.reads = rows, torch.zeros(len(rows)).share_memory_()

    def __len__(self) -> int:
        return len(self.reads)

    def __getitem__(self, index: int):
        self.reads[index] += 1
        return self.rows[index].clone(), index


def numbered_rows(count: int, columns: int = 5000):
    return torch.arange(float(count))[:, None].repeat(1, columns)


def shared_by_torch():
    return numbered_rows(32).share_memory_()


def made_by_onecopy():
    return onecopy.from_numpy(numbered_rows(32).numpy()).torch()


def of_another_loader():
    loader = DataLoader([numbered_rows(32)], batch_size=None, num_workers=1, multiprocessing_context="fork")
    return next(iter(loader))


def check(batches, count: int) -> None:
    """Checks that the batches are the rows in their order."""
    seen = []
    for rows, numbers in batches:
        assert bool((rows == numbers[:, None]).all())
        seen += numbers.tolist()
    assert seen == list(range(count))


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("make", [shared_by_torch, made_by_onecopy, of_another_loader])
def test_persistent_workers_read_a_dataset_whose_tensor_the_program_has_dropped(make, context):
    dataset = Rows(make())
    options = {"num_workers": 2, "multiprocessing_context": CONTEXTS[context], "persistent_workers": True}
    loader = DataLoader(dataset, 4, **options)
    check(loader, 32)
    dataset.rows = None
    gc.collect()
    onecopy.collect()
    others = [torch.full((32, 5000), -1.0).share_memory_() for _ in range(8)]
    others += [onecopy.full((32, 5000), -2.0) for _ in range(8)]
    check(loader, 32)
    assert bool((dataset.reads == 2).all()), "the program sees what the workers write"


def start_timer(_worker: int) -> None:
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)


@pytest.mark.parametrize("context", CONTEXTS)
def test_no_batch_is_lost_or_damaged_while_signals_arrive_in_all_processes(context):
    options = {"num_workers": 2, "multiprocessing_context": CONTEXTS[context], "worker_init_fn": start_timer}
    before = signal.getsignal(signal.SIGALRM)
    start_timer(0)
    try:
        check(DataLoader(Rows(numbered_rows(300, 500)), 4, **options), 300)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


FORKS_BESIDE_THREADS = """
    import threading, warnings
    warnings.simplefilter("ignore")  # torch counts the processors
    import torch
    from torch.utils.data import DataLoader, Dataset
    import onecopy
    import onecopy.multiprocessing as mp

    class Numbers(Dataset):
        def __len__(self):
            return 12

        def __getitem__(self, index):
            return torch.full((100,), float(index))

    torch.set_num_threads(1)
    over, faults, rounds = threading.Event(), [], [0, 0]

    def put_and_get():
        queue = mp.get_context("fork").Queue()
        while not over.is_set():
            number = rounds[0] = rounds[0] + 1
            queue.put(torch.full((1 + number % 5000,), float(number)))
            if float(queue.get(timeout=60)[-1]) != number:
                faults.append(("queue", number))

    def share_and_open():
        while not over.is_set():
            handle = onecopy.share(torch.full((100,), 7.0))
            onecopy.open(str(handle))
            torch.ones(3).share_memory_()
            onecopy.collect()
            rounds[1] += 1

    def load(context):
        for _ in range(8):
            loader = DataLoader(Numbers(), 4, num_workers=2, multiprocessing_context=context, timeout=100)
            if [int(batch[0, 0]) for batch in loader] != [0, 4, 8]:
                faults.append(("loader", str(context)))

    threads = [threading.Thread(target=work) for work in (put_and_get, share_and_open)]
    loaders = [threading.Thread(target=load, args=(context,)) for context in ("fork", mp.get_context("fork"))]
    for thread in threads + loaders:
        thread.start()
    for thread in loaders:
        thread.join()
    over.set()
    for thread in threads:
        thread.join()
    assert not faults, faults
    assert min(rounds) > 0
"""


def test_loaders_fork_while_other_threads_share_put_and_get(run_python):
    run_python(FORKS_BESIDE_THREADS, stderr=None)


ENDS = """
import os, sys, time, warnings
warnings.simplefilter("ignore")
import torch
from torch.utils.data import DataLoader, Dataset
import onecopy.multiprocessing as mp

class Numbers(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        return torch.full((20_000,), float(index))

torch.set_num_threads(1)
how, mode, persistent = sys.argv[1:]
context = mp.get_context("fork") if mode == "context" else "fork"
options = {"num_workers": 2, "multiprocessing_context": context, "persistent_workers": persistent == "True"}
batches = iter(DataLoader(Numbers(), 4, **options))
kept = [next(batches) for _ in range(10)]
print(*[worker.pid for worker in batches._workers], flush=True)
if how == "exit":
    sys.exit(5)
if how == "_exit":
    os._exit(6)
if how == "raise":
    raise ValueError("of the loop")
for batch in batches:
    kept = kept[-5:] + [batch]
    time.sleep(0.01)
"""
SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGTERM": signal.SIGTERM}
CODES = {"exit": 5, "_exit": 6, "raise": 1, "SIGKILL": -9, "SIGTERM": -15}


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("mode", CONTEXTS)
@pytest.mark.parametrize("how", CODES)
def test_workers_end_with_their_program_however_it_ends(tmp_path, how, mode, persistent):
    program = tmp_path / "program.py"
    program.write_text(ENDS)
    command = [sys.executable, str(program), how, mode, str(persistent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        workers = [int(pid) for pid in process.stdout.readline().split()]
        assert len(workers) == 2
        if how in SIGNALS:
            process.send_signal(SIGNALS[how])
        assert process.wait(60) == CODES[how]
    assert all(eventually(lambda pid=pid: has_ended(pid), 60) for pid in workers)
