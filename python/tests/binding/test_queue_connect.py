# SPDX-License-Identifier: Apache-2.0
"""A queue that is opened by a handle or text, and one that ends with its producers."""

from __future__ import annotations

import multiprocessing
import os
import signal

import pytest

import onecopy
from support.processes import running

SPAWN = multiprocessing.get_context("spawn")


@pytest.mark.parametrize("form", [str, lambda h: h.to_bytes(), lambda h: h], ids=["text", "bytes", "handle"])
def test_connect_takes_a_handle_its_bytes_or_its_text(form):
    queue = onecopy.Queue(maxsize=3)
    other = onecopy.Queue.connect(form(queue.handle()))
    other.put("x")
    assert queue.get(timeout=60) == "x"
    assert other.maxsize == 3


def test_connect_refuses_what_is_not_a_queue():
    with pytest.raises(onecopy.BadHandle, match="does not name a queue"):
        onecopy.Queue.connect(str(onecopy.share(onecopy.zeros(3))))
    for text in ("a", "", "onecopy:"):
        with pytest.raises(onecopy.BadHandle):
            onecopy.Queue.connect(text)
    with pytest.raises(TypeError):
        onecopy.Queue.connect(None)


def test_the_text_of_a_queue_that_nobody_has_open_is_stale():
    text = str(onecopy.Queue().handle())
    with pytest.raises((onecopy.StaleHandle, onecopy.OwnerDied)):
        onecopy.Queue.connect(text)


def test_the_text_of_a_queue_travels_by_a_name_in_the_store(store):
    queue = onecopy.Queue()
    store.publish("frames", {"none": onecopy.zeros(1)}, attributes={"queue": str(queue.handle())})
    onecopy.Queue.connect(store.open("frames").attributes["queue"]).put("x")
    assert queue.get(timeout=60) == "x"


def produce(text, count):
    queue = onecopy.Queue.connect(text)
    for number in range(count):
        queue.put(number)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("count", [1, 10])
def test_a_queue_that_ends_with_its_producers_closes_after_a_kill(count):
    queue = onecopy.Queue(ends_with_producers=True)
    with running(SPAWN, produce, str(queue.handle()), count, exitcode=-signal.SIGKILL):
        assert list(queue) == list(range(count))
    assert queue.closed
    with pytest.raises(onecopy.Closed):
        queue.get()
    with pytest.raises(onecopy.Closed):
        queue.try_get()


def test_another_queue_waits_on_after_its_producer_was_killed():
    queue = onecopy.Queue()
    with running(SPAWN, produce, str(queue.handle()), 1, exitcode=-signal.SIGKILL):
        assert queue.get(timeout=60) == 0
    with pytest.raises(onecopy.Timeout):
        queue.get(timeout=0.3)
    assert not queue.closed
