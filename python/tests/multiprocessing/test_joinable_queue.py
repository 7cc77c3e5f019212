# SPDX-License-Identifier: Apache-2.0
"""onecopy.multiprocessing.JoinableQueue: join() returns when all that was put is done with."""

import multiprocessing.queues
import queue as stdlib_queue
import threading
import time
from pathlib import Path

import pytest

import onecopy.multiprocessing as mp


@pytest.fixture
def queue():
    return mp.JoinableQueue()


def is_joined(queue, timeout):
    """Returns whether join() returns within the timeout."""
    thread = threading.Thread(target=queue.join, daemon=True)
    thread.start()
    thread.join(timeout)
    return not thread.is_alive()


def test_it_is_a_joinable_queue_of_multiprocessing(queue):
    assert isinstance(queue, multiprocessing.queues.JoinableQueue)


def test_an_unused_queue_is_joined_at_once(queue):
    queue.join()


def test_join_waits_for_task_done(queue):
    queue.put(1)
    assert queue.get() == 1
    joining = threading.Thread(target=queue.join)
    joining.start()
    joining.join(0.2)
    assert joining.is_alive(), "join() returned although nothing was done"
    queue.task_done()
    joining.join()


def test_task_done_once_too_often_is_an_error(queue):
    with pytest.raises(ValueError, match="called too many times"):
        queue.task_done()
    queue.put(1)
    queue.task_done()
    with pytest.raises(ValueError, match="called too many times"):
        queue.task_done()


def test_what_was_not_put_need_not_be_done(queue, capsys):
    bounded = mp.JoinableQueue(maxsize=1)
    bounded.put(1)
    with pytest.raises(stdlib_queue.Full):
        bounded.put(2, timeout=0.01)
    queue.put(lambda: None)
    assert "pickle" in capsys.readouterr().err
    bounded.get()
    bounded.task_done()
    bounded.join()
    queue.join()


def put_two(queue, first_is_put):
    queue.put(1)
    first_is_put.put(True)
    queue.put(2)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_producer_that_is_killed_while_it_waits_for_space_leaves_nothing_undone(method):
    context = mp.get_context(method)
    queue, first_is_put = context.JoinableQueue(maxsize=1), context.Queue()
    producer = context.Process(target=put_two, args=(queue, first_is_put))
    producer.start()
    first_is_put.get()
    while not is_asleep(producer.pid):
        time.sleep(0.01)
    producer.kill()
    producer.join()
    assert queue.get() == 1
    queue.task_done()
    assert is_joined(queue, 30), "what was never put is waited for"


def is_asleep(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def test_put_waits_for_space_and_then_counts():
    bounded = mp.JoinableQueue(maxsize=1)
    putting = threading.Thread(target=lambda: [bounded.put(value) for value in range(100)])
    putting.start()
    for value in range(100):
        assert bounded.get(timeout=30) == value
        bounded.task_done()
    putting.join()
    bounded.join()


def work(queue, results):
    while True:
        value = queue.get()
        if value is not None:
            results.put(value * value)
        queue.task_done()
        if value is None:
            return


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_in_other_processes_report_what_is_done(method):
    context = mp.get_context(method)
    queue, results = context.JoinableQueue(), context.Queue()
    workers = [context.Process(target=work, args=(queue, results)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for value in range(50):
        queue.put(value)
    queue.join()
    assert results.qsize() == 50, "join() returned before all was done"
    for _ in workers:
        queue.put(None)
    queue.join()
    for worker in workers:
        worker.join()
    assert sorted(results.get() for _ in range(50)) == [value * value for value in range(50)]
