# SPDX-License-Identifier: Apache-2.0
"""onecopy.Pipe: two ends, each receives what the other sends, and learns of the other's end."""

import multiprocessing
import os
import pickle
import signal

import pytest

import onecopy
from onecopy import _core
from support.processes import errors_of_waits, interrupted, running

FORK = multiprocessing.get_context("fork")
SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def ends():
    return _core.Pipe()


@pytest.mark.parametrize("value", [None, 5, ("x", [1.5]), {1, 2}, b"y" * 200_000], ids=lambda v: repr(v)[:12])
def test_objects_cross_both_ways(ends, value):
    a, b = ends
    a.send(value)
    b.send([value])
    assert b.recv() == value and a.recv() == [value]


def test_tensors_are_not_copied(ends):
    a, b = ends
    tensor = onecopy.zeros((3,), dtype="int32")
    a.send({"tensor": tensor})
    b.recv()["tensor"].numpy()[0] = 9
    assert tensor.numpy()[0] == 9


def test_poll_and_timeouts(ends):
    a, b = ends
    assert not b.poll() and not b.poll(0.05)
    with pytest.raises(onecopy.errors.Timeout, match="0.05"):
        b.recv(timeout=0.05)
    a.send(1)
    assert b.poll() and b.poll(None) and b.recv(timeout=0) == 1


def test_a_closed_end_is_closed_for_all_its_calls(ends):
    a, b = ends
    a.close()
    a.close()
    assert a.closed and not b.closed
    for call in (a.recv, a.poll, a.handle, lambda: a.send(1)):
        with pytest.raises(onecopy.errors.Closed):
            call()


def test_what_was_sent_arrives_after_the_sender_closed(ends):
    a, b = ends
    a.send(1)
    a.close()
    assert b.recv() == 1 and b.poll()
    with pytest.raises(EOFError):
        b.recv()


def test_closing_ends_the_wait_of_another_thread(ends):
    a, _ = ends
    assert len(errors_of_waits(a.recv, a.close, onecopy.errors.Closed)) == 1


def test_an_end_is_given_away_by_its_handle(ends):
    a, b = ends
    handle = b.handle()
    again = _core.PipeEnd.connect(_core.PipeHandle.from_text(str(handle)))
    same = _core.PipeEnd.connect(_core.PipeHandle.from_bytes(handle.to_bytes()))
    a.send(1)
    a.send(2)
    assert {again.recv(timeout=60), same.recv(timeout=60)} == {1, 2}
    with pytest.raises(onecopy.errors.BadHandle):
        _core.PipeHandle.from_bytes(b"nonsense")
    with pytest.raises(onecopy.errors.BadHandle):
        _core.PipeHandle.from_text("onecopy-pipe:!")


def test_only_a_child_gets_a_pickled_end(ends):
    with pytest.raises(RuntimeError, match="inheritance"):
        pickle.dumps(ends[0])


def echo(end):
    while True:
        try:
            end.send(end.recv())
        except EOFError:
            return


@pytest.mark.parametrize("context", [FORK, SPAWN], ids=["fork", "spawn"])
def test_a_child_talks_until_its_parent_closes(context, ends):
    a, b = ends
    with running(context, child_main, b, a if context is FORK else None):
        b.close()
        del b
        for value in (1, {2}, "x" * 100_000):
            a.send(value)
            assert a.recv(timeout=60) == value
        a.close()


def child_main(mine, inherited):
    if inherited is not None:
        inherited.close()
    echo(mine)


def test_the_death_of_the_other_end_is_noticed(ends):
    a, b = ends

    def child():
        a.close()
        b.send("last words")
        os.kill(os.getpid(), signal.SIGKILL)

    with running(FORK, child, exitcode=-signal.SIGKILL):
        b.close()
    assert a.recv(timeout=30) == "last words"
    with pytest.raises(onecopy.errors.Closed):
        a.recv(timeout=30)


class DiesWhenUnpickled:
    def __reduce__(self):
        return os._exit, (5,)


def receive(end):
    end.recv()


CHILDREN = {
    "ends well": (receive, ()),
    "dies before it has the end": (receive, (DiesWhenUnpickled(),)),
}


@pytest.mark.parametrize("how", CHILDREN)
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("is_joined", [True, False], ids=["joined", "not joined"])
def test_the_end_of_a_child_that_was_given_an_end_is_noticed(ends, how, method, is_joined):
    """Also while the Process object is there, and without join() by the caller that waits in recv()."""
    a, b = ends
    function, before = CHILDREN[how]
    child = multiprocessing.get_context(method).Process(target=function, args=(*before, b))
    child.start()
    b.close()
    a.send("you may go")
    if is_joined:
        child.join()
    with pytest.raises(onecopy.errors.Closed):
        a.recv(60)
    child.join()
    child.close()


def test_keyboard_interrupt_ends_recv_and_poll(ends):
    for wait in (ends[0].recv, lambda: ends[0].poll(None)):
        with interrupted():
            wait()


def test_ends_close_with_their_block(ends):
    a, b = ends
    with a, b:
        a.send(1)
        assert b.recv() == 1
    assert a.closed and b.closed and repr(a) == "<onecopy.PipeEnd, closed>"
