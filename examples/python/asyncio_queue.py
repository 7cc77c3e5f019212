# SPDX-License-Identifier: Apache-2.0
"""asyncio waits for a queue of another process without a thread: ready_fd() and try_get()."""

import asyncio
import multiprocessing
import onecopy


async def get(queue):
    """The next object; may be cancelled, and nothing is lost then."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(queue.ready_fd(), ready.set)
    try:
        while (value := queue.try_get(default=...)) is ...:
            ready.clear()
            await ready.wait()
        return value
    finally:
        loop.remove_reader(queue.ready_fd())


def produce(start, queue):
    for number in range(start.get(), 3):
        queue.put(onecopy.full(1000, number))


async def consume(start, queue):
    try:
        await asyncio.wait_for(get(queue), timeout=0.05)
    except asyncio.TimeoutError:
        print("nothing yet, and the loop went on")
    start.put(0)
    for _ in range(3):
        tensor = await get(queue)
        print("got", tensor.shape, "of", tensor[0].item())


if __name__ == "__main__":
    queues = onecopy.Queue(), onecopy.Queue()
    process = multiprocessing.get_context("spawn").Process(target=produce, args=queues)
    process.start()
    asyncio.run(consume(*queues))
    process.join()
