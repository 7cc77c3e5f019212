# SPDX-License-Identifier: Apache-2.0
"""Prefill and decode in two processes with one KV cache in shared memory: only block numbers are sent."""

import torch
import onecopy
import onecopy.multiprocessing as mp

BLOCKS, LAYERS, TOKENS, WIDTH = 8, 2, 16, 32  # a block holds TOKENS tokens


def decode(handle, requests, finished):
    cache = onecopy.open(handle, access="read", framework="torch")  # a write here ends this process
    for number, blocks, length in iter(requests.get, None):
        keys = cache[blocks, 0, 0].flatten(0, 1)[:length].float()
        print(f"request {number}: {length} tokens in blocks {blocks}, keys sum to {keys.sum():g}", flush=True)
        finished.put(blocks)  # they may be used again


def prefill(cache, free, number, length):  # computes the keys and values of a prompt into free blocks
    blocks = [free.pop(0) for _ in range(-(-length // TOKENS))]
    for position in range(length):
        cache[blocks[position // TOKENS], :, :, position % TOKENS] = number
    return number, blocks, length


def main():
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    shared = onecopy.zeros((BLOCKS, 2, LAYERS, TOKENS, WIDTH), dtype=torch.bfloat16, device=device)  # keys and values
    cache, free = shared.torch(), list(range(BLOCKS))
    context = mp.get_context("spawn")
    requests, finished = context.Queue(), context.Queue()
    decoder = context.Process(target=decode, args=(onecopy.share(shared), requests, finished))
    decoder.start()
    for number, length in enumerate([40, 16, 70, 100], start=1):
        while len(free) * TOKENS < length:
            free += finished.get()
        requests.put(prefill(cache, free, number, length))
    requests.put(None)
    decoder.join()


if __name__ == "__main__":
    main()
