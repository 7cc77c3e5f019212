# SPDX-License-Identifier: Apache-2.0
"""Queues of Python when processes die: items are delivered, and nothing hangs or is left behind."""

import contextlib
import gc
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

import onecopy
import onecopy.multiprocessing as mp
from support.processes import TESTS, beside, run, running

FORK = mp.get_context("fork")
SIZES = [1, 100, 240, 4096, 1 << 20, 64 << 20]


def leave_by_return():
    pass


def leave_by_exit():
    os._exit(0)


def leave_by_kill():
    os.kill(os.getpid(), signal.SIGKILL)


WAYS = [leave_by_return, leave_by_exit, leave_by_kill]


def put_and_leave(queue, size, leave):
    tensor = onecopy.empty((size,), dtype="uint8")
    array = tensor.numpy()
    array[0], array[-1] = 3, 7
    queue.put(tensor)
    queue.put(b"x" * size)
    queue.put([{1}, tensor])
    leave()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("leave", WAYS)
@pytest.mark.parametrize("kind", ["Queue", "SimpleQueue"])
def test_what_was_put_outlives_its_producer(kind, leave, size):
    queue = getattr(FORK, kind)()
    run(FORK, put_and_leave, queue, size, leave, exitcode=None)
    alone, data, (plain, again) = queue.get(), queue.get(), queue.get()
    assert alone.nbytes == size and len(data) == size and plain == {1}
    assert int(alone.numpy()[-1]) == 7 and again.numpy()[-1] == 7
    alone.numpy()[-1] = 8
    assert again.numpy()[-1] == 8


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("leave", [leave_by_return, leave_by_kill])
def test_also_with_fresh_interpreters(method, leave):
    context = mp.get_context(method)
    queue = context.Queue()
    run(context, put_and_leave, queue, 5000, leave, exitcode=None)
    assert [queue.get().nbytes, len(queue.get()), len(queue.get())] == [5000, 5000, 2]


def test_a_tensor_whose_owner_died_is_sent_on():
    first, second = FORK.Queue(), FORK.Queue()
    run(FORK, put_and_leave, first, 100_000, leave_by_kill, exitcode=None)
    second.put(first.get())

    def child_main():
        second.put(int(second.get().numpy()[-1]))

    run(FORK, child_main)
    assert second.get() == 7


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def numbered(number, size):
    """Memory that says its number in every byte."""
    return onecopy.full((size,), number % 251, dtype="uint8")


def check(value, number=None):
    """Data that another process's death has damaged, or that is another's, fails here."""
    if isinstance(value, tuple):
        number, value, rest = value
        assert rest == {"in": {1}}
    array = value.numpy()
    expected = array[0] if number is None else number % 251
    assert (array == expected).all(), (number, array)


def traffic(here, there):
    """Passes on its items, with tensors of its own, until it is killed."""
    number = 0
    try:
        while True:
            here.get()
            number += 1
            there.put((number, numbered(number, 1000), {"in": {1}}))
            there.put(numbered(number, 50_000))
    except onecopy.Error:
        os._exit(1)


def drain(queue):
    """Takes all there is; a tensor of a dead process may be lost, and then get() says so."""
    taken = 0
    while not queue.empty():
        try:
            check(queue.get(timeout=60))
            taken += 1
        except (onecopy.errors.OwnerDied, onecopy.errors.StaleHandle):
            pass
    return taken


def kill_once(here, there, rng):
    """Two are killed, and both queues are empty again."""
    children = [FORK.Process(target=traffic, args=(here, there)) for _ in range(2)]
    for child in children:
        child.start()
    deadline = time.monotonic() + rng.uniform(0.002, 0.02)
    while time.monotonic() < deadline:
        here.put((1, "two"))
        drain(there)
    for child in children:
        child.kill()
    for child in children:
        child.join()
        assert child.exitcode == -signal.SIGKILL
        child.close()
    while not here.empty():
        assert here.get(timeout=60) == (1, "two")
    drain(there)


def kill_many(rounds):
    """Both queues work after each kill, and cost no more after the last than after the tenth."""
    here, there = FORK.Queue(), FORK.Queue()
    rng = random.Random(rounds)
    for round_ in range(rounds):
        kill_once(here, there, rng)
        here.put(round_)
        assert here.get(timeout=60) == round_
        if round_ == 9:
            before = settled()
    after = settled()
    assert after["descriptors"] <= before["descriptors"] + 4, (before, after)
    assert after["foreign_segments"] <= before["foreign_segments"] + 4, (before, after)
    assert after["in_transit"] == 0, after
    assert after["bytes_shared"] <= before["bytes_shared"] + (1 << 20), (before, after)


def test_kills_during_traffic_leave_nothing(run_python, kills):
    """In a program of its own: a process that has seen a thousand tests forks slowly."""
    program = """
        import sys
        sys.path[:0] = [sys.argv[1], sys.argv[2]]
        import test_queue_faults
        test_queue_faults.kill_many(int(sys.argv[3]))
        print("ok")
    """
    assert run_python(program, os.path.dirname(__file__), TESTS, str(kills // 4)) == "ok\n"


def settled():
    """The numbers once what the dead had is given back."""
    numbers = {}
    for _ in range(600):
        gc.collect()
        onecopy.collect()
        stats = onecopy.stats()
        numbers = {k: stats[k] for k in ("foreign_segments", "in_transit", "bytes_shared")}
        numbers["descriptors"] = descriptors()
        if not numbers["in_transit"] and numbers["foreign_segments"] <= 2:
            break
        time.sleep(0.1)
    return numbers


def test_a_consumer_that_never_reads_harms_nobody():
    queue = FORK.Queue()
    stop = FORK.Event()
    idler = FORK.Process(target=stop.wait)
    idler.start()
    for _ in range(1000):
        queue.put(onecopy.zeros((1000,), dtype="uint8"))
    idler.kill()
    idler.join()
    assert queue.qsize() == 1000
    assert all(queue.get().nbytes == 1000 for _ in range(1000))


def test_a_consumer_killed_while_it_waits_takes_nothing():
    queue = FORK.Queue()
    child = FORK.Process(target=queue.get)
    child.start()
    time.sleep(0.2)
    child.kill()
    child.join()
    for i in range(10):
        queue.put(i)
    assert [queue.get(timeout=60) for _ in range(10)] == list(range(10))


def test_a_stopped_process_holds_up_its_own_work_only():
    """SIGSTOP at random: the others wait for its lock at most, and go on when it goes on."""
    here, there = FORK.Queue(), FORK.Queue()
    child = FORK.Process(target=traffic, args=(here, there))
    child.start()
    for _ in range(20):
        os.kill(child.pid, signal.SIGSTOP)
        for _ in range(5):
            here.put(1)
        os.kill(child.pid, signal.SIGCONT)
        there.get(timeout=60)
    child.kill()
    child.join()
    drain(there)


INTERRUPTED = """
    import sys
    import onecopy.multiprocessing as mp
    from onecopy import _core

    queue, full = mp.Queue(), mp.Queue(1)
    full.put(1)
    try:
        print("waiting", flush=True)
        full.put(2) if sys.argv[1] == "put" else queue.get()
    except KeyboardInterrupt:
        print("interrupted")
"""


@pytest.mark.parametrize("call", ["get", "put"])
def test_control_c_wakes_a_program(call, tmp_path):
    file = tmp_path / "program.py"
    file.write_text(textwrap.dedent(INTERRUPTED))
    program = subprocess.Popen(
        [sys.executable, "-X", "dev", "-W", "error", str(file), call],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with program:
        assert program.stdout.readline() == "waiting\n"
        time.sleep(0.2)
        program.send_signal(signal.SIGINT)
        out, err = program.communicate(timeout=60)
    assert (out, err, program.returncode) == ("interrupted\n", "", 0)


EXITS = """
    import atexit, sys, threading
    import onecopy
    import onecopy.multiprocessing as mp
    from onecopy import _core

    def child(queue):
        queue.put([{1}, onecopy.zeros((10,), dtype="uint8")])

    if __name__ == "__main__":
        context = mp.get_context(sys.argv[1])
        queue, joinable, simple = context.Queue(), context.JoinableQueue(), context.SimpleQueue()
        process = context.Process(target=child, args=(queue,))
        process.start()
        kept = queue.get(timeout=60)
        joinable.put(kept)
        simple.put(kept)
        queue.put(kept)
        queue._reader.fileno()
        atexit.register(queue.put, "at exit")
        threading.Thread(target=context.Queue().get, daemon=True).start()
        process.join()
        sys.modules["__main__"].cycle = kept.append(kept)
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_program_ends_silently_with_everything_in_use(method, run_python):
    assert run_python(EXITS, method) == ""


def test_a_fork_while_other_threads_use_the_queue():
    queue, answers = FORK.Queue(), FORK.Queue()
    stop = threading.Event()

    def use():
        while not stop.is_set():
            queue.put({1})
            queue.get(timeout=60)

    with beside(use, (), ()), contextlib.ExitStack() as at_the_end:
        at_the_end.callback(stop.set)
        for i in range(20):
            with running(FORK, answers.put, (i, onecopy.zeros((9,), dtype="uint8"))):
                assert answers.get(timeout=60)[0] == i
