# SPDX-License-Identifier: Apache-2.0
"""An item of a queue arrives while a process that the receiver can ask has it: owner, putter, the queue's maker."""

import os
import signal
import time

import pytest

import onecopy
import onecopy.multiprocessing as mp
from support.devices import eventually
from support.processes import running

FORK = mp.get_context("fork")
SPAWN = mp.get_context("spawn")


def train(weights, may_end):
    weights.put(onecopy.full((1000,), 7.0))
    may_end.wait()


def cache(weights, requests, done, answers):
    held = weights.get()
    done.set()
    while requests.get() == "put":
        answers.put(held)


def report(answers, results):
    try:
        results.put(answers.get(timeout=60).tolist()[0])
    except Exception as error:
        results.put(repr(error))


def from_a_fresh_process(context, answers):
    results = context.Queue()
    with running(context, report, answers, results):
        return results.get(timeout=120)


@pytest.fixture(params=["fork", "spawn"])
def context(request):
    return mp.get_context(request.param)


@pytest.mark.parametrize("ends", [False, True])
def test_a_cache_hands_out_what_a_process_that_ended_has_made(context, ends):
    """Main has made the queue; the cache's memory is a trainer's. ``ends``: the cache is killed after its last put."""
    weights, requests, answers = context.Queue(), context.Queue(), context.Queue()
    may_end, done = context.Event(), context.Event()
    trainer = context.Process(target=train, args=(weights, may_end))
    server = context.Process(target=cache, args=(weights, requests, done, answers))
    trainer.start()
    server.start()
    assert done.wait(60)
    may_end.set()
    trainer.join()
    for _ in range(2):
        requests.put("put")
        assert from_a_fresh_process(context, answers) == 7.0
        onecopy.collect()
    requests.put("put")
    while answers.empty():
        time.sleep(0.01)
    if ends:
        server.kill()
        server.join()
        onecopy.collect()
    assert from_a_fresh_process(context, answers) == 7.0
    requests.put("end")
    server.join()


def make_queue(pipe):
    queue = onecopy.Queue()
    pipe.send(queue)
    pipe.recv()


@pytest.fixture
def maker():
    """A process that has made a queue, and the queue."""
    ours, theirs = FORK.Pipe()
    process = FORK.Process(target=make_queue, args=(theirs,))
    process.start()
    yield process, ours.recv()
    if process.is_alive():
        ours.send(None)
    process.join()


def put_new_memory(queue, size, timeout, results):
    queue.put(onecopy.full((size,), 7, dtype="uint8"), timeout=timeout)
    results.put(onecopy.stats()["unkept"])


def test_a_put_waits_for_a_busy_maker_as_long_as_it_may(maker):
    """It need not wait for it; but memory that the maker has not got is lost when the putter ends."""
    (process, queue), results = maker, FORK.Queue()
    unkept = None
    for _ in range(5):  # on a busy machine the maker may take too long once
        os.kill(process.pid, signal.SIGSTOP)
        with running(FORK, put_new_memory, queue, 1000, 60, results):
            time.sleep(0.5)
            os.kill(process.pid, signal.SIGCONT)
            unkept = results.get(timeout=60)
        assert from_a_fresh_process(FORK, queue) == 7
        if unkept == 0:
            break
    assert unkept == 0


def test_a_stopped_maker_delivers_what_it_was_asked_to_keep(maker):
    (process, queue), results = maker, FORK.Queue()
    os.kill(process.pid, signal.SIGSTOP)
    with running(FORK, put_new_memory, queue, 1000, 0.1, results):
        assert results.get(timeout=60) == 1
    os.kill(process.pid, signal.SIGCONT)
    assert from_a_fresh_process(FORK, queue) == 7


def test_unkept_falls_when_its_queue_is_gone():
    ours, theirs = FORK.Pipe()
    maker = FORK.Process(target=make_queue, args=(theirs,))
    maker.start()
    queue = ours.recv()
    maker.kill()
    maker.join()
    before = onecopy.stats()["unkept"]
    queue.put(onecopy.full((1000,), 7.0))
    assert queue.get(timeout=60).tolist()[0] == 7.0
    assert onecopy.stats()["unkept"] == before + 1
    del queue
    assert eventually(lambda: onecopy.stats()["unkept"] == before)
