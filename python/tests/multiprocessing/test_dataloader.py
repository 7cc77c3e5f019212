# SPDX-License-Identifier: Apache-2.0
"""torch's DataLoader runs on our queues, keeps any number of batches, and survives its workers' deaths."""

from __future__ import annotations

import gc
import os
import signal
import time
import warnings

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

import onecopy
import onecopy.multiprocessing as mp
from conftest import has_ended
from support.devices import eventually
from support.processes import beside

METHODS = ["fork", "spawn", "forkserver"]


class Numbers(Dataset):
    """Tensors and labels that say their index."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int):
        return {"x": torch.full((16,), float(index)), "label": index}


class Stream(IterableDataset):
    """The numbers below 20 as a stream, split between the workers."""

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        yield from (torch.tensor(i) for i in range(info.id, 20, info.num_workers))


def loader(dataset, method="fork", **options):
    options = {"num_workers": 2, "batch_size": 2, "multiprocessing_context": mp.get_context(method), **options}
    return DataLoader(dataset, **options)


@pytest.mark.parametrize("method", METHODS)
def test_batches_arrive_in_order_from_every_kind_of_worker(method):
    opened = onecopy.stats()["opened_total"]
    batches = list(loader(Numbers(10), method))
    assert [b["label"].tolist() for b in batches] == [[i, i + 1] for i in range(0, 10, 2)]
    assert all(b["x"][1, 7] == b["label"][1] for b in batches)
    assert all(b["x"].is_shared() for b in batches), "batches lie in shared memory, not in copies"
    assert onecopy.stats()["opened_total"] > opened


def test_persistent_workers_serve_every_epoch():
    numbers = loader(Numbers(8), persistent_workers=True)
    for _ in range(3):
        assert sorted(int(i) for b in numbers for i in b["label"]) == list(range(8))
    workers = {w.pid for w in numbers._iterator._workers}
    list(numbers)
    assert {w.pid for w in numbers._iterator._workers} == workers
    numbers._iterator._shutdown_workers()


def test_a_stream_is_split_between_workers():
    arrived = [int(i) for batch in loader(Stream()) for i in batch]
    assert sorted(arrived) == list(range(20))


def test_the_thread_that_pins_memory_reads_our_queue():
    """Without a GPU torch pins nothing and says so; where there is one, batches are pinned."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batches = list(loader(Numbers(6), pin_memory=True))
    assert [b["label"].tolist() for b in batches] == [[0, 1], [2, 3], [4, 5]]
    if torch.cuda.is_available():
        assert all(b["x"].is_pinned() for b in batches)


def test_the_pinning_loop_itself_passes_batches_on(monkeypatch):
    """The thread's own loop, with a device that pins by copying."""
    import queue
    import threading

    from torch.utils.data._utils import pin_memory

    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor, device=None: tensor.clone())
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda index: None)
    source, target, done = mp.get_context("fork").Queue(), queue.Queue(), threading.Event()
    tensor = torch.arange(4.0)
    with beside(pin_memory._pin_memory_loop, (source, target, 0, done, None)):  # looks at `done` every five seconds
        source.put((0, {"x": tensor}))
        index, batch = target.get(timeout=60)
        done.set()
    assert index == 0 and torch.equal(batch["x"], tensor) and batch["x"].data_ptr() != tensor.data_ptr()
    source.close()


class KillsInPut:
    """Kills the worker in the middle of put(): while the batch is pickled."""

    def __reduce__(self):
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("still alive")


def collate_and_kill(items):
    first = items[0]["label"]
    return KillsInPut() if first == 4 else torch.full((100,), first)


def test_a_worker_killed_in_put_is_reported_and_the_next_loader_works():
    before = onecopy.stats()["segments"]
    with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid\(?s?\)? ?.*killed by signal|exited unexpectedly"):
        for _ in loader(Numbers(20), collate_fn=collate_and_kill):
            pass
    assert len(list(loader(Numbers(8)))) == 4
    for _ in range(600):  # the loaders' queues lie in cycles; what the killed one had is given back when it is seen
        gc.collect()
        onecopy.collect()
        if onecopy.stats()["segments"] <= before + 2:
            break
        time.sleep(0.05)
    assert onecopy.stats()["segments"] <= before + 2


def collate_and_raise(items):
    raise KeyError("no such label")


def test_an_error_in_a_worker_is_raised_with_its_traceback():
    with pytest.raises(KeyError, match="no such label"):
        list(loader(Numbers(4), collate_fn=collate_and_raise))


def test_a_timeout_is_told():
    with pytest.raises(RuntimeError, match="timed out after 1 seconds"):
        next(iter(loader(Sleeper(), timeout=1)))


class Sleeper(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        signal.pause()


def test_a_loader_let_go_in_the_middle_ends_its_workers():
    iterator = iter(loader(Numbers(100)))
    next(iterator)
    workers = [w.pid for w in iterator._workers]
    del iterator
    for pid in workers:
        assert eventually(lambda: has_ended(pid))


KEEP_ALL = """
    import resource, sys
    import torch
    from torch.utils.data import DataLoader, Dataset
    import onecopy
    import onecopy.multiprocessing as mp

    class Numbers(Dataset):
        def __len__(self):
            return int(sys.argv[1])

        def __getitem__(self, index):
            return torch.full((16,), index)

    if __name__ == "__main__":
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
        context = mp.get_context(sys.argv[2]) if sys.argv[2] != "default" else None
        loader = DataLoader(Numbers(), batch_size=None if sys.argv[3] == "items" else 1, num_workers=2,
                            multiprocessing_context=context)
        kept = list(loader)
        assert len(kept) == int(sys.argv[1])
        assert all(int(batch.view(-1)[0]) == index for index, batch in enumerate(kept))
        assert onecopy.stats()["descriptors"] < 150
        print("ok")
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "default"])
@pytest.mark.parametrize("batches", ["batches", "items"])
def test_thousands_of_batches_are_kept_alive_at_256_descriptors(run_python, method, batches):
    """torch stops after about 250: "received 0 items of ancdata", "Too many open files"."""
    assert run_python(KEEP_ALL, "3000", method, batches) == "ok\n"
