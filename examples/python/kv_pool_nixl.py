# SPDX-License-Identifier: Apache-2.0
"""A process without the KV pool, as on another host, reads a block of the KV pool through NIXL, here over TCP."""

import os, tempfile
from typing import Any

os.environ.update(UCX_TLS="tcp", NIXL_LOG_LEVEL="ERROR")  # without UCX_TLS, UCX takes RDMA or what else there is

import torch
import onecopy
import onecopy.multiprocessing as mp
from nixl._api import nixl_agent

KEY = b"all tokens up to the end of the block"


def read(queue: Any, answers: Any) -> None:
    agent = nixl_agent("reader")
    block = torch.zeros(1 << 20, dtype=torch.uint8)
    agent.register_memory(block)
    metadata, there = queue.get()
    source = agent.add_remote_agent(metadata)
    transfer = agent.initialize_xfer("READ", agent.get_xfer_descs(block), agent.deserialize_descs(there), source)
    state = agent.transfer(transfer)
    while state == "PROC":
        state = agent.check_xfer_state(transfer)
    answers.put(f"{state}, and all {len(block)} bytes are {set(block.tolist())}")


if __name__ == "__main__":
    os.environ["ONECOPY_STORE_DIR"] = tempfile.mkdtemp()  # a store of this program's own
    store, context = onecopy.store.connect(framework="torch"), mp.get_context("spawn")
    pool = store.kv_pool("kv", block_bytes=1 << 20, budget=64 << 20)
    [number] = pool.allocate(1)
    pool.block(number)[:] = 7  # stands for the model
    pool.put(KEY, number)
    pool.release([number])

    agent = nixl_agent("engine")
    agent.register_memory(pool.tensor)  # once, for all blocks
    queue, answers = context.Queue(), context.Queue()
    context.Process(target=read, args=(queue, answers), daemon=True).start()
    found = pool.find([KEY])  # a lease, which must last until the other process has read the block
    blocks = agent.get_xfer_descs([pool.block(number) for number in found])
    queue.put((agent.get_agent_metadata(), agent.get_serialized_descs(blocks)))
    print("the reader:", answers.get())
    pool.release(found)
    store.stop()
