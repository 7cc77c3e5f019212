# SPDX-License-Identifier: Apache-2.0
"""A member of a group of two, each with a card of its own if there are two: see ucx.sh."""

from __future__ import annotations

import sys
import time

import torch

import onecopy.rpc as native
from onecopy.distributed import rpc

rank, rendezvous = int(sys.argv[1]), sys.argv[2]
# A machine without a card tries everything but memory of cards.
CARDS = torch.cuda.device_count()
OWN = f"cuda:{rank % CARDS}" if CARDS else "cpu"
THERE = f"cuda:{1 % CARDS}" if CARDS else "cpu"


def negate(tensor: torch.Tensor) -> torch.Tensor:
    assert str(tensor.device) == THERE, tensor.device
    return -tensor


def take(tensor: torch.Tensor) -> str:
    return str(tensor.device)


def routes() -> dict[str, int]:
    return dict(native.stats()["routes"]["received"])


def check(elements: int) -> None:
    """Sends a tensor there and back, and compares its content."""
    tensor = torch.arange(elements, device=OWN, dtype=torch.float32)
    back = rpc.rpc_sync("worker1", negate, args=(tensor,))
    assert str(back.device) == OWN, back.device
    assert torch.equal(back, -tensor), f"the content of {elements} elements is not right"


def rate(mib: int, rounds: int) -> float:
    """Returns GB/s of calls with a tensor of that size, four under way."""
    tensor = torch.ones(mib << 18, device=OWN)
    rpc.rpc_sync("worker1", take, args=(tensor,))
    begin, under_way = time.perf_counter(), []
    for _ in range(rounds):
        under_way.append(rpc.rpc_async("worker1", take, args=(tensor,)))
        if len(under_way) == 4:
            under_way.pop(0).wait()
    for future in under_way:
        future.wait()
    return rounds * tensor.nbytes / (time.perf_counter() - begin) / 1e9


options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{rendezvous}", rpc_timeout=60)
if CARDS:
    options.set_device_map(f"worker{1 - rank}", {OWN: THERE if rank == 0 else "cuda:0"})
rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)
if rank == 0:
    print("cards:", CARDS, "of", torch.cuda.get_device_name() if CARDS else "no kind")
    print("route:", native.explain("worker1", torch.ones(1000, device=OWN)))
    for elements in (1, 1000, 5000, 1 << 18, 1 << 24):
        check(elements)
    print("content: right; tensors that worker1 copied once more:", rpc.rpc_sync("worker1", routes))
    for mib in (1, 16, 256):
        print(f"{mib} MiB: {rate(mib, max(8, 2048 // mib)):.2f} GB/s", flush=True)
rpc.shutdown()
