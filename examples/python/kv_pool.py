# SPDX-License-Identifier: Apache-2.0
"""Two engines with one pool of KV blocks: each reads in place what the other has computed, also after a kill -9."""

import hashlib, os, tempfile
from typing import Any

import torch
import onecopy
import onecopy.multiprocessing as mp

LAYERS, TOKENS, WIDTH = 2, 16, 32  # TOKENS of them a block


class Pool:
    """Blocks of keys and values. A block's name is the hash of all tokens up to its end."""

    def __init__(self) -> None:
        self.store = onecopy.store.connect()
        self.hits = self.misses = 0

    def block(self, tokens: list[int]) -> torch.Tensor:
        name = "kv/" + hashlib.sha256(repr(tokens).encode()).hexdigest()
        try:
            found = self.store.open(name)["kv"]  # read-only, the memory that the other engine has written
            self.hits += 1
        except onecopy.StaleHandle:
            found = compute(tokens)
            self.store.publish(name, {"kv": found}, keep=1)
            self.misses += 1
        return found


def compute(tokens: list[int]) -> torch.Tensor:  # stands for the model
    positions = torch.tensor(tokens[-TOKENS:], dtype=torch.bfloat16).view(1, 1, TOKENS, 1)
    return positions.expand(2, LAYERS, TOKENS, WIDTH).contiguous()


def engine(requests: Any, answers: Any) -> None:
    pool = Pool()
    for prompt in iter(requests.get, None):
        blocks = [pool.block(prompt[:end]) for end in range(TOKENS, len(prompt) + 1, TOKENS)]
        answers.put(f"{len(blocks)} blocks, sum {sum(block.float().sum().item() for block in blocks):g}; "
                    f"{pool.hits} hits and {pool.misses} misses so far")  # fmt: skip


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
