# SPDX-License-Identifier: Apache-2.0
"""onecopy.multiprocessing.SimpleQueue: put, get, empty, close."""

import multiprocessing.queues
import pickle

import pytest

import onecopy.multiprocessing as mp
from onecopy.multiprocessing import queues
from support.processes import running


@pytest.fixture
def queue():
    return mp.SimpleQueue()


def test_it_is_a_simple_queue_of_multiprocessing(queue):
    assert isinstance(queue, multiprocessing.queues.SimpleQueue) and type(queue) is queues.SimpleQueue
    assert mp.SimpleQueue.__name__ == "SimpleQueue" and queues.SimpleQueue[int].__args__ == (int,)


def test_objects_come_in_order(queue):
    assert queue.empty()
    for value in (1, "x", {2}):
        queue.put(value)
    assert not queue.empty()
    assert [queue.get(), queue.get(), queue.get()] == [1, "x", {2}]
    assert queue.empty()


def test_closing_it_is_this_process_s_own_matter(queue):
    queue.put(1)
    queue.close()
    queue.close()
    for call in (queue.get, queue.empty, lambda: queue.put(1)):
        with pytest.raises(OSError, match="closed"):
            call()
    assert queue._core.get() == 1


def test_it_is_pickled_for_a_child_only(queue):
    with pytest.raises(RuntimeError, match="inheritance"):
        pickle.dumps(queue)


def test_what_cannot_be_pickled_is_raised_by_put(queue):
    with pytest.raises(Exception, match="pickle"):
        queue.put(lambda: None)
    assert queue.empty()


def echo(questions, answers):
    for value in iter(questions.get, None):
        answers.put(value)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_objects_cross_with_every_start_method(method):
    context = mp.get_context(method)
    questions, answers = context.SimpleQueue(), context.SimpleQueue()
    with running(context, echo, questions, answers):
        for value in (1, [2.5], {3}, b"x" * 100_000):
            questions.put(value)
            assert answers.get() == value
        questions.put(None)


def test_pools_find_the_ends_they_look_for(queue):
    queue._writer.send((1, 2))
    assert queue._poll() and queue._reader.poll(5)
    with queue._rlock, queue._wlock:
        assert queue._reader.recv() == (1, 2)
