# SPDX-License-Identifier: Apache-2.0
"""Queue.aget(), async for, and the descriptors of queues, pipes and listeners in event loops."""

import asyncio
import contextlib
import multiprocessing
import os
import random
import select
import threading
import uuid

import pytest

import onecopy
from support.processes import beside, running


@pytest.fixture
def queue():
    return onecopy.Queue()


def produce(queue, count, close=True):
    for number in range(count):
        queue.put(number)
    if close:
        queue.close()


def test_aget_returns_what_another_process_puts(queue):
    with running(multiprocessing.get_context("spawn"), produce, queue, 100):

        async def take():
            return [await queue.aget() for _ in range(100)]

        assert asyncio.run(take()) == list(range(100))


def test_async_for_ends_when_the_queue_is_closed_and_empty(queue):
    with running(multiprocessing.get_context("spawn"), produce, queue, 50):

        async def take():
            return [number async for number in queue]

        assert asyncio.run(take()) == list(range(50))


def test_a_loop_over_a_queue_ends_when_it_is_closed_and_empty(queue):
    with beside(produce, (queue, 50)):
        assert list(queue) == list(range(50))


def test_aget_of_a_closed_queue_raises(queue):
    queue.put("last")
    queue.close()

    async def take():
        assert await queue.aget() == "last"
        with pytest.raises(onecopy.errors.Closed):
            await queue.aget()

    asyncio.run(take())


def test_arrays_come_out_of_every_kind_of_loop(queue):
    """iter(queue.get, None) does not work with them: numpy compares element by element."""
    numpy = pytest.importorskip("numpy")
    array = onecopy.zeros(3).numpy()

    async def take():
        return [item async for item in queue]

    for _ in range(2):
        queue.put(array)
    assert isinstance(next(queue), numpy.ndarray)
    queue.close()
    assert [item.tolist() for item in asyncio.run(take())] == [[0, 0, 0]]


def test_other_tasks_run_while_a_queue_stays_full(queue):
    """The other process fills the queue as fast as it is emptied: the loop must go on nevertheless."""
    for number in range(1000):
        queue.put(number)

    async def take():
        async for _ in queue:
            pass

    async def end(task):
        task.cancel()

    async def main():
        task = asyncio.create_task(take())
        await asyncio.sleep(0)
        await end(task)
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert queue.size() > 900


def test_several_tasks_wait_for_one_queue(queue):
    """A loop takes one callback for each descriptor: waiters must not replace each other's."""

    async def main():
        tasks = [asyncio.create_task(queue.aget()) for _ in range(20)]
        await asyncio.sleep(0.01)
        for task in tasks[::2]:
            task.cancel()
        with beside(produce, (queue, 10, False)):
            return await asyncio.gather(*tasks[1::2])

    assert sorted(asyncio.run(main())) == list(range(10))


def test_waiting_leaves_no_descriptor(queue):
    async def main():
        queue.fileno()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(queue.aget(), 0.01)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(queue.aget(), 0.001)
        assert len(os.listdir("/proc/self/fd")) == before

    asyncio.run(main())


ITEMS = 3000


@pytest.mark.parametrize("how", ["cancel", "wait_for", "iterate"])
@pytest.mark.parametrize("seed", range(2))
def test_a_cancelled_aget_loses_no_item(queue, how, seed):
    """Consumers are cancelled at random moments, while another process puts; every item comes exactly once."""
    chance = random.Random(seed)
    process = multiprocessing.get_context("fork").Process(target=produce, args=(queue, ITEMS))
    got = []

    async def take_one():
        got.append(await queue.aget())

    async def take_all():
        async for item in queue:
            got.append(item)

    async def step():
        if how == "wait_for":
            with contextlib.suppress(asyncio.TimeoutError):
                got.append(await asyncio.wait_for(queue.aget(), chance.choice([0, 1e-5, 1e-4, 1e-3])))
            return
        task = asyncio.create_task(take_one() if how == "cancel" else take_all())
        for _ in range(chance.randrange(5)):
            await asyncio.sleep(0)
        if chance.random() < 0.3:
            await asyncio.sleep(chance.random() / 1000)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def main():
        with contextlib.suppress(onecopy.errors.Closed):
            while not (queue.closed and queue.empty()):
                await step()

    process.start()
    asyncio.run(main())
    process.join()
    assert got == list(range(ITEMS))


def test_items_cross_once_between_several_cancelled_consumers(queue):
    """Tasks of one loop and another process take from one queue; together they get every item once."""
    others = onecopy.Queue()
    context = multiprocessing.get_context("fork")
    producer = context.Process(target=produce, args=(queue, ITEMS))
    consumer = context.Process(target=forward, args=(queue, others))
    chance, got = random.Random(7), []

    async def take():
        async for item in queue:
            got.append(item)

    async def main():
        while not (queue.closed and queue.empty()):
            tasks = [asyncio.create_task(take()) for _ in range(4)]
            await asyncio.sleep(chance.random() / 1000)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    consumer.start()
    producer.start()
    asyncio.run(main())
    producer.join()
    consumer.join()
    assert sorted(got + list(others)) == list(range(ITEMS))


def forward(queue, others):
    for item in queue:
        others.put(item)
    others.close()


def is_readable(watched, seconds=0.0):
    return bool(select.select([watched], [], [], seconds)[0])


def test_the_end_of_a_pipe_can_be_watched():
    ours, theirs = onecopy.Pipe()
    assert not is_readable(ours)
    theirs.send(1)
    assert is_readable(ours, 30) and not is_readable(theirs)
    assert ours.recv() == 1 and not is_readable(ours)
    theirs.close()
    assert is_readable(ours, 30)
    with pytest.raises(onecopy.errors.Closed):
        ours.recv()
    ours.close()
    with pytest.raises(onecopy.errors.Closed):
        ours.fileno()


def hang(end, started):
    end.send("last")
    started.set()
    threading.Event().wait()


def test_a_killed_process_makes_the_descriptor_of_its_pipe_readable():
    context = multiprocessing.get_context("spawn")
    ours, theirs = onecopy.Pipe()
    started = context.Event()
    process = context.Process(target=hang, args=(theirs, started))
    process.start()
    theirs.close()
    assert started.wait(60)
    assert is_readable(ours, 30) and ours.recv() == "last"
    assert not is_readable(ours)
    process.kill()
    process.join()
    assert is_readable(ours, 30)
    with pytest.raises(onecopy.errors.Closed):
        ours.recv(timeout=30)


@pytest.mark.parametrize("address", ["unix:@{}", "tcp:127.0.0.1:0"])
def test_a_listener_can_be_watched(address):
    async def accept(listener):
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(listener, ready.set)
        try:
            while True:
                await ready.wait()
                ready.clear()
                with contextlib.suppress(onecopy.errors.Timeout):
                    return listener.accept(timeout=0)
        finally:
            loop.remove_reader(listener)

    async def main():
        with onecopy.Listener(address.format(f"onecopy-test-{uuid.uuid4()}"), b"key") as listener:
            assert not is_readable(listener)
            connecting = asyncio.to_thread(onecopy.connect, listener.address, b"key", 60)
            ours, theirs = await asyncio.gather(asyncio.wait_for(accept(listener), 60), connecting)
            theirs.send("hello")
            assert ours.recv(timeout=60) == "hello"
            assert not is_readable(listener)
        with pytest.raises(onecopy.errors.Closed):
            listener.fileno()

    asyncio.run(main())


def test_selectors_take_queues_pipes_and_listeners(queue):
    import selectors

    ours, _theirs = onecopy.Pipe()
    with (
        onecopy.Listener(f"unix:@onecopy-test-{uuid.uuid4()}", b"key") as listener,
        selectors.DefaultSelector() as all_of,
    ):
        for watched in (queue, ours, listener):
            all_of.register(watched, selectors.EVENT_READ)
        assert all_of.select(0) == []
        queue.put(1)
        assert [key.fileobj for key, _ in all_of.select(30)] == [queue]
