# SPDX-License-Identifier: Apache-2.0
"""A producer and two consumers of numpy arrays: one copy of each, and no torch."""

import multiprocessing
import numpy as np
import onecopy


def consume(batches, answers):
    for batch in batches:  # the producer's memory, until the queue is closed and empty
        answers.put(float(batch.sum()))
        np.sqrt(batch, out=batch)  # changes the producer's array


def main():
    context = multiprocessing.get_context("spawn")
    batches, answers = onecopy.Queue(maxsize=4), onecopy.Queue()
    consumers = [context.Process(target=consume, args=(batches, answers)) for _ in range(2)]
    for consumer in consumers:
        consumer.start()
    tensors = [onecopy.empty((100, 1000)) for _ in range(8)]
    for number, tensor in enumerate(tensors):
        tensor.numpy()[:] = number**2  # filled where it lies
        batches.put(tensor.numpy())  # nothing is copied
    print("sums there:", sorted(answers.get() for _ in tensors))
    batches.close()
    for consumer in consumers:
        consumer.join()
    print("roots here:", [float(tensor.numpy().mean()) for tensor in tensors])


if __name__ == "__main__":
    main()
