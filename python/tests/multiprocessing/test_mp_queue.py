# SPDX-License-Identifier: Apache-2.0
"""onecopy.multiprocessing.Queue: the behaviour of the standard library's queue, and the differences."""

import asyncio
import gc
import inspect
import multiprocessing
import multiprocessing.queues
import os
import pickle
import queue as stdlib_queue
import signal
import threading
import time
from multiprocessing import connection

import pytest

import onecopy
import onecopy.multiprocessing as mp
from onecopy.multiprocessing import queue_ends, queues
from support.processes import interrupted, run, running, running_all

METHODS = ["fork", "spawn", "forkserver"]


@pytest.fixture
def queue():
    return mp.get_context("fork").Queue()


@pytest.fixture(params=METHODS)
def context(request):
    return mp.get_context(request.param)


@pytest.mark.parametrize("kind", ["Queue", "JoinableQueue"])
@pytest.mark.parametrize("maxsize", [2.5, "3", None])
def test_a_bound_that_is_no_integer_is_refused_in_the_standard_librarys_words(kind, maxsize):
    with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
        getattr(mp.get_context("fork"), kind)(maxsize)


def test_it_is_a_queue_of_multiprocessing(queue):
    assert isinstance(queue, multiprocessing.queues.Queue) and type(queue) is queues.Queue


def test_put_and_get_as_documented(queue):
    queue.put(1)
    queue.put(2, True)
    queue.put(3, True, None)
    queue.put(4, False)
    queue.put_nowait(5)
    queue.put(obj=6, block=True, timeout=1)
    assert queue.qsize() == 6 and not queue.empty() and not queue.full()
    assert [queue.get(), queue.get(True, None), queue.get(block=True, timeout=5)] == [1, 2, 3]
    assert [queue.get(False), queue.get_nowait(), queue.get(1)] == [4, 5, 6]
    assert queue.empty() and queue.qsize() == 0


def test_empty_and_full_are_raised(queue):
    with pytest.raises(stdlib_queue.Empty):
        queue.get_nowait()
    with pytest.raises(stdlib_queue.Empty):
        queue.get(False, 100)
    start = time.monotonic()
    with pytest.raises(stdlib_queue.Empty):
        queue.get(timeout=0.2)
    assert time.monotonic() - start >= 0.2
    bounded = mp.Queue(maxsize=1)
    bounded.put(1)
    assert bounded.full()
    for arguments in ((2, False), (2, True, 0.05), (2, True, -1)):
        with pytest.raises(stdlib_queue.Full):
            bounded.put(*arguments)
    assert bounded.get() == 1


def test_a_closed_queue_raises_value_error_here_only(context):
    queue = context.Queue()
    queue.put(1)
    queue.close()
    with pytest.raises(ValueError, match="is closed"):
        queue.put(2)
    with pytest.raises(ValueError, match="is closed"):
        queue.get()
    queue.join_thread()
    queue._core.put("others go on")


def test_join_thread_wants_close_first(queue):
    with pytest.raises(AssertionError, match="not closed"):
        queue.join_thread()
    queue.cancel_join_thread()
    queue.close()
    queue.join_thread()


def test_100_000_puts_without_a_consumer_do_not_block(queue):
    for i in range(100_000):
        queue.put(i)
    assert queue.qsize() == 100_000
    assert all(queue.get() == i for i in range(100_000))


def test_it_is_pickled_for_a_child_only(queue):
    with pytest.raises(RuntimeError, match="only be shared between processes through inheritance"):
        pickle.dumps(queue)


def double(numbers, answers):
    for number in iter(numbers.get, None):
        answers.put(2 * number)


def test_objects_cross_with_every_start_method(context):
    numbers, answers = context.Queue(), context.Queue()
    with running(context, double, numbers, answers):
        for number in range(100):
            numbers.put(number)
        numbers.put(None)
        assert [answers.get(timeout=60) for _ in range(100)] == list(range(0, 200, 2))


def test_a_child_gets_a_queue_that_its_parent_has_dropped(context):
    answers = context.Queue()
    with running(context, put_all_back, filled(context), answers):
        gc.collect()
        assert answers.get(timeout=60) == [1, [2], {3}]


def filled(context):
    queue = context.Queue()
    for value in (1, [2], {3}):
        queue.put(value)
    return queue


def put_all_back(queue, answers):
    answers.put([queue.get(timeout=60) for _ in range(3)])


def count(queue, name, number):
    for i in range(number):
        queue.put((name, i))


def put_name(queue, name):
    queue.put(name)


@pytest.mark.parametrize(
    "made_by, used_by, kind",
    [("fork", "spawn", "Queue"), ("fork", "forkserver", "SimpleQueue"), ("spawn", "fork", "Queue")],
)
def test_a_queue_of_any_context_is_given_to_a_process_of_any_other(made_by, used_by, kind):
    """The standard library's has locks that a fork context makes without names, and is refused."""
    queue = getattr(mp.get_context(made_by), kind)()
    with running(mp.get_context(used_by), put_name, queue, used_by):
        assert queue.get() == used_by
    queue.close()


def test_a_joinable_queue_has_the_standard_librarys_locks_and_their_limit():
    queue = mp.get_context("fork").JoinableQueue()
    process = mp.get_context("spawn").Process(target=put_name, args=(queue, "never"))
    with pytest.raises(RuntimeError, match="A SemLock created in a fork context"):
        process.start()
    queue.close()


def test_order_is_kept_per_producer():
    context = mp.get_context("fork")
    queue = context.Queue(maxsize=100)
    seen = {name: [] for name in range(4)}
    with running_all(context, *[(count, queue, name, 2000) for name in range(4)]):
        for _ in range(8000):
            name, i = queue.get(timeout=60)
            seen[name].append(i)
    assert all(seen[name] == list(range(2000)) for name in range(4))


def pass_on(source, target):
    for value in iter(source.get, None):
        target.put(value)


def test_four_producers_and_four_consumers_lose_and_double_nothing():
    context = mp.get_context("fork")
    source, target = context.Queue(), context.Queue()
    with running_all(context, *[(pass_on, source, target)] * 4):
        with running_all(context, *[(count, source, name, 1000) for name in range(4)]):
            pass
        got = {target.get(timeout=60) for _ in range(4000)}
        for _ in range(4):
            source.put(None)
    assert got == {(name, i) for name in range(4) for i in range(1000)} and target.empty()


def test_the_reader_can_be_waited_for(queue):
    other = mp.Queue()
    assert connection.wait([queue._reader, other._reader], 0) == []
    timer = threading.Timer(0.1, other.put, ("late",))
    timer.start()
    assert connection.wait([queue._reader, other._reader], 30) == [other._reader]
    assert other._reader.poll() and other._reader.recv() == "late"
    timer.join()
    assert not other._reader.poll() and not other._reader.poll(0.05)


class Stale:
    """A queue whose descriptor is still readable after its last object was taken."""

    closed = False

    def __init__(self, looks_until_next):
        self.looks = looks_until_next
        self.read, self.write = os.pipe()
        os.close(self.write)

    def fileno(self):
        return self.read

    def empty(self):
        self.looks -= 1
        return self.looks > 0


def test_poll_finds_no_object_where_there_was_one_until_now():
    taken, soon_another = Stale(10**9), Stale(4)
    assert not queue_ends.Reader(taken).poll(0.1)
    assert queue_ends.Reader(soon_another).poll(30)
    os.close(taken.read)
    os.close(soon_another.read)


def test_poll_of_a_queue_that_others_closed_does_not_wait(queue):
    queue._core.close()
    assert queue._reader.poll(30) and queue._reader.poll(None) and not queue._reader.poll()
    with pytest.raises(onecopy.errors.Closed):
        queue._reader.recv()


def test_the_ends_are_connections_as_far_as_others_look_at_them(queue):
    queue._writer.send({"a": 1})
    assert queue._reader.recv() == {"a": 1}
    queue._writer.send_bytes(pickle.dumps([1]))
    assert pickle.loads(queue._reader.recv_bytes()) == [1]
    assert not queue._reader.closed and queue._reader.readable and queue._writer.writable
    queue._reader.close()
    queue._writer.close()
    assert queue._reader.closed and queue._writer.closed
    for call in (queue._reader.recv, queue._reader.poll, queue._reader.fileno):
        with pytest.raises(OSError, match="closed"):
            call()
    with pytest.raises(OSError, match="closed"):
        queue._writer.send(1)


def test_asyncio_can_watch_it(queue):
    async def get():
        loop = asyncio.get_running_loop()
        came = loop.create_future()

        def ready():
            if not came.done():
                came.set_result(queue.get_nowait())

        loop.add_reader(queue._reader.fileno(), ready)
        try:
            return await asyncio.wait_for(came, 30)
        finally:
            loop.remove_reader(queue._reader.fileno())

    timer = threading.Timer(0.1, queue.put, (5,))
    timer.start()
    assert asyncio.run(get()) == 5
    timer.join()


def test_what_cannot_be_pickled_is_printed_and_the_queue_goes_on(queue, capsys):
    queue.put(lambda: None)
    assert "pickle" in capsys.readouterr().err
    queue.put("next")
    assert queue.get() == "next"


class Reporting(queues.Queue):
    """A subclass that wants the errors, as concurrent.futures has one."""

    def _on_queue_feeder_error(self, error, obj):
        self.reported = error, obj


def test_a_subclass_with_the_hook_is_told_what_cannot_be_pickled():
    queue = Reporting(ctx=mp.get_context())
    thing = lambda: None  # noqa: E731
    queue.put(thing)
    assert queue.reported[1] is thing and "pickle" in str(queue.reported[0])
    assert queue.empty()


class Unreadable:
    """Raises when it is unpickled; `ballast` makes its pickle large."""

    def __init__(self, ballast):
        self.ballast = ballast

    def __setstate__(self, state):
        raise RuntimeError("this is not to be read")


@pytest.mark.parametrize("size", [10, 1_000_000])
def test_a_traceback_that_is_kept_does_not_reach_the_memory_of_the_message(queue, size):
    queue.put(Unreadable(b"x" * size))
    with pytest.raises(RuntimeError, match="not to be read") as raised:
        queue.get(timeout=30)
    frames = [frame.frame for frame in traceback_of(raised.value)]
    views = [v for frame in frames for v in frame.f_locals.values() if isinstance(v, memoryview)]
    assert views
    for view in views:
        with pytest.raises(ValueError, match="released"):
            len(view)


def traceback_of(error):
    return inspect.getinnerframes(error.__traceback__)


class Interrupted(Exception):
    pass


def interrupt(*_):
    raise Interrupted


@pytest.fixture
def interrupting():
    """SIGUSR1 raises Interrupted in the main thread."""
    before = signal.signal(signal.SIGUSR1, interrupt)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("kind", ["Queue", "JoinableQueue"])
def test_what_a_signal_handler_raises_while_put_waits_is_raised_by_put(kind, interrupting, capsys):
    full = getattr(mp.get_context("fork"), kind)(maxsize=1)
    full.put(1)
    with interrupted(Interrupted, signal.SIGUSR1):
        full.put(2)
    assert capsys.readouterr().err == "" and full.qsize() == 1


@pytest.mark.parametrize("kind", ["Queue", "JoinableQueue"])
@pytest.mark.parametrize("timeout, error", [("x", TypeError), (float("nan"), ValueError)])
def test_a_timeout_that_is_none_is_an_error_of_put(kind, timeout, error, capsys):
    queue = getattr(mp.get_context("fork"), kind)()
    with pytest.raises(error):
        queue.put(2, True, timeout)
    assert capsys.readouterr().err == "" and queue.empty()


class Unpicklable:
    def __reduce__(self):
        raise TypeError("this stays at home")


def test_the_traceback_that_is_printed_names_what_failed(queue, capsys):
    queue.put([Unpicklable()])
    printed = capsys.readouterr().err
    assert "in __reduce__" in printed and printed.endswith("TypeError: this stays at home\n")


def test_put_nowait_into_a_full_queue_leaves_the_object_alone():
    torch = pytest.importorskip("torch")
    for kind in ("Queue", "JoinableQueue"):
        full = getattr(mp.get_context("fork"), kind)(maxsize=1)
        full.put(1)
        tensor = torch.zeros(10)
        for put in (lambda: full.put_nowait(tensor), lambda: full.put(tensor, True, 0)):
            with pytest.raises(stdlib_queue.Full):
                put()
        with pytest.raises(onecopy.errors.Timeout):
            full._core.put(tensor, 0)
        assert not full._core.try_put(tensor)
        assert not tensor.is_shared()


def serve(queue):
    from multiprocessing.managers import BaseManager

    class Manager(BaseManager):
        pass

    Manager.register("queue", callable=lambda: queue)
    return Manager(ctx=multiprocessing.get_context("fork"))


def test_it_works_inside_a_manager(queue):
    with serve(queue) as manager:
        proxy = manager.queue()
        proxy.put([1, 2])
        assert queue.get(timeout=60) == [1, 2]
        queue.put("back")
        assert proxy.get() == "back"


def test_keyboard_interrupt_wakes_get(queue):
    with interrupted():
        queue.get()


def test_a_forked_child_may_use_what_its_parent_closed(queue):
    queue.close()

    def child():
        queue.put(5)

    run(mp.get_context("fork"), child)
    assert queue._core.get(timeout=60) == 5


def test_onecopy_tensors_cross_in_everything(context):
    tensors, answers = context.Queue(), context.Queue()
    with running(context, add_one, tensors, answers):
        tensor = onecopy.zeros((3,), dtype="int64")
        tensors.put(tensor)
        tensors.put({"in a dict": tensor})
        tensors.put([{1}, tensor])
        assert [answers.get(timeout=60) for _ in range(3)] == [1, 2, 3]
    assert tensor.numpy().tolist() == [3, 3, 3]


def add_one(tensors, answers):
    for find in (lambda t: t, lambda d: d["in a dict"], lambda p: p[1]):
        array = find(tensors.get(timeout=60)).numpy()
        array += 1
        answers.put(int(array[0]))


def test_an_object_has_more_tensors_than_a_message_has_places(queue):
    torch = pytest.importorskip("torch")
    base = torch.zeros(65_600)
    queue.put({"tensors": list(base.unbind()), "whole": base})
    found = queue.get()
    assert len(found["tensors"]) == 65_600
    found["whole"] += torch.arange(65_600)
    assert base[65_599] == 65_599
    assert [int(tensor) for tensor in found["tensors"]] == list(range(65_600))
