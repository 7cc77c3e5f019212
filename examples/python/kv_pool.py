# SPDX-License-Identifier: Apache-2.0
"""Two engines with one pool of KV blocks: each reads in place what the other has computed, also after a kill -9."""

import hashlib, os, tempfile
from typing import Any

import torch
import onecopy
import onecopy.multiprocessing as mp

LAYERS, TOKENS, WIDTH = 2, 16, 32  # a block holds TOKENS tokens


class Pool:
    """Blocks of keys and values in a KV pool. The key of a block is the hash of all tokens up to its end."""

    def __init__(self) -> None:
        store = onecopy.store.connect()
        self.kv_pool = store.kv_pool("kv", block_bytes=2 * LAYERS * TOKENS * WIDTH * 2, budget=1 << 20)
        self.hits = self.misses = 0

    def block(self, number: int) -> torch.Tensor:
        return self.kv_pool.block(number).view(torch.bfloat16).view(2, LAYERS, TOKENS, WIDTH)

    def blocks(self, prompt: list[int]) -> list[int]:
        """Returns the numbers of the prompt's blocks. Each has a lease of this process."""
        ends = range(TOKENS, len(prompt) + 1, TOKENS)
        keys = [hashlib.sha256(repr(prompt[:end]).encode()).digest() for end in ends]
        numbers = self.kv_pool.find(keys)  # up to the first key that no engine has put
        self.hits += len(numbers)
        for key, end in list(zip(keys, ends))[len(numbers) :]:
            numbers += self.kv_pool.allocate(1)
            tokens = torch.tensor(prompt[end - TOKENS : end]).view(TOKENS, 1)
            self.block(numbers[-1])[:] = tokens  # stands for the model
            self.kv_pool.put(key, numbers[-1])
            self.misses += 1
        return numbers


def engine(requests: Any, answers: Any) -> None:
    pool = Pool()
    for prompt in iter(requests.get, None):
        numbers = pool.blocks(prompt)
        total = sum(pool.block(number).float().sum().item() for number in numbers)
        answers.put(f"{len(numbers)} blocks, sum {total:g}; "
                    f"{pool.hits} hits and {pool.misses} misses so far")  # fmt: skip
        pool.kv_pool.release(numbers)  # the blocks stay until their place is needed


if __name__ == "__main__":
    os.environ["ONECOPY_STORE_DIR"] = tempfile.mkdtemp()  # a store of this program's own
    context = mp.get_context("spawn")
    engines: dict[str, Any] = {}
    system = list(range(64))  # the same four blocks at the beginning of each prompt
    for name, question in (("first", 7), ("second", 8), ("second", 7), ("third", 8)):
        if name == "third":
            engines["first"][0].kill()
        if name not in engines:
            requests, answers = context.Queue(), context.Queue()
            engines[name] = context.Process(target=engine, args=(requests, answers), daemon=True), requests, answers
            engines[name][0].start()
        engines[name][1].put(system + [question] * TOKENS)
        print(f"{name} engine: {engines[name][2].get()}")
    onecopy.store.connect().stop()
