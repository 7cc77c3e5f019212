# SPDX-License-Identifier: Apache-2.0
"""A coroutine waits for a queue of another process, and the loop goes on: aget() and async for."""

import asyncio
import multiprocessing
import onecopy


def produce(start, queue):
    for number in range(start.get(), 4):
        queue.put(onecopy.full(1000, number))
    queue.close()


async def consume(start, queue):
    try:
        await asyncio.wait_for(queue.aget(), timeout=0.05)
    except asyncio.TimeoutError:
        print("nothing yet, and the loop went on")
    start.put(1)
    first = await queue.aget()
    print("first", first.shape, "of", first[0].item())
    async for tensor in queue:  # until the queue is closed and empty
        print("then", tensor.shape, "of", tensor[0].item())


if __name__ == "__main__":
    queues = onecopy.Queue(), onecopy.Queue()
    process = multiprocessing.get_context("spawn").Process(target=produce, args=queues)
    process.start()
    asyncio.run(consume(*queues))
    process.join()
