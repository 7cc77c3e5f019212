# SPDX-License-Identifier: Apache-2.0
"""Processes that are killed, and threads that do everything at once."""

import random
import signal
import subprocess
import sys
import threading
import time

import onecopy
from support.devices import eventually, settled
from support.processes import in_threads

READER = """
import sys, onecopy
while True:
    bundle = onecopy.open(sys.argv[1])
    tensors = bundle.values()
    for index, tensor in enumerate(tensors[1:], 1):
        assert tensor[index].item() == index, "somebody else's data"
    tensors[0][0] = tensors[0][0].item() + 1
    again = [onecopy.share(t) for t in tensors]
    if len(sys.argv) == 2:
        print("ready", flush=True)
        sys.argv.append("")
"""

OWNER = """
import collections, sys, onecopy
kept = collections.deque(maxlen=2000)  # more than a pipe has room for
while True:
    batch = [onecopy.share({"a": onecopy.zeros(100), "b": [onecopy.zeros((3, 3))]}) for _ in range(20)]
    kept.append(batch[0])
    print(batch[0], flush=True)
"""


def test_borrowers_killed_at_any_time_leave_nothing(kills):
    value = {f"t{i}": onecopy.full(64, i) for i in range(50)}
    handle = onecopy.share(value)
    before = settled(onecopy.stats)
    rng = random.Random(7)
    for _ in range((kills + 11) // 12):
        readers = [subprocess.Popen([sys.executable, "-c", READER, str(handle)], stdout=subprocess.PIPE, text=True)
                   for _ in range(3)]  # fmt: skip
        for reader in readers:
            assert reader.stdout.readline() == "ready\n"
        time.sleep(rng.random() * 0.02)
        for reader in readers:
            reader.kill()
            reader.communicate()
            assert reader.returncode == -signal.SIGKILL

    def more(*names: str) -> int:
        now = onecopy.stats()
        return sum(now[name] - before[name] for name in names)

    assert eventually(lambda: more("borrowers") == more("limbo") == 0)
    del value, handle
    assert eventually(lambda: onecopy.collect() or more("live_blocks", "limbo") <= -51)
    assert more("live_blocks", "limbo") == -51
    assert more("descriptors") <= 2


def test_owners_killed_at_any_time_give_clean_errors(kills):
    rng = random.Random(8)
    before = settled(lambda: onecopy.stats()["descriptors"])
    for _ in range(kills // 4):
        owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
        killer = threading.Timer(rng.random() * 0.05, owner.kill)
        for text in owner.stdout:
            try:
                tree = onecopy.open(text.strip()).tree()
                assert tree["b"][0].tolist() == [[0.0] * 3] * 3
                tree["a"][0] = 1
                if killer.ident is None:
                    killer.start()
            except (onecopy.StaleHandle, onecopy.OwnerDied, onecopy.BadHandle):
                pass  # freed or gone meanwhile; the last line may be cut off
        owner.communicate()
        assert owner.returncode == -signal.SIGKILL
    tree = None

    def is_clean() -> bool:
        onecopy.collect()
        stats = onecopy.stats()
        return stats["foreign_segments"] == 0 and stats["descriptors"] <= before + 2

    assert eventually(is_clean)


def test_threads_share_and_open_at_once():
    t = onecopy.zeros((8, 64), "int64")
    errors = []

    def work(row: int) -> None:
        try:
            for i in range(200):
                mine = onecopy.open(onecopy.share({"t": t[row], "more": [onecopy.full(3, i)]}))
                tree = mine.tree()
                tree["t"][i % 64] = i
                assert tree["more"][0].tolist() == [i] * 3
                view = tree["t"].memoryview()
                assert onecopy.open(onecopy.share(view)).data_ptr == t[row].data_ptr
        except BaseException as error:
            errors.append(error)

    in_threads(work, [(row,) for row in range(8)])
    assert not errors
    written = [max(i for i in range(200) if i % 64 == at) for at in range(64)]
    assert t.tolist() == [written] * 8
