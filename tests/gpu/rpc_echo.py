# SPDX-License-Identifier: Apache-2.0
"""Times of calls with tensors on cards, ours or torch's: `rpc_echo.py [--torch] [device0 device1]`. Prints one line for
each row."""

import os
import statistics
import sys
import time

import torch

OF_TORCH = "--torch" in sys.argv
if OF_TORCH:
    import torch.multiprocessing as mp
    from torch.distributed import rpc
else:
    import onecopy.multiprocessing as mp
    from onecopy.distributed import rpc

DEVICES = [a for a in sys.argv[1:] if not a.startswith("-")] or ["cuda:0", "cuda:0"]
ROWS = [("4 B", 4, 300), ("4 MiB", 4 << 20, 100), ("64 MiB", 64 << 20, 30), ("1 GiB", 1 << 30, 5)]
ROWS = ROWS if DEVICES[0] != "cpu" else ROWS[:2]


def echo(tensor):
    return tensor


def measure(nbytes, count):
    """Median microseconds of a call there and back, with the result used on its card."""
    tensor = torch.ones(nbytes // 4, device=DEVICES[0])
    times = []
    for i in range(count + 10):
        begin = time.perf_counter()
        result = rpc.rpc_sync("worker1", echo, args=(tensor,))
        last = result[-1:].clone()
        if tensor.is_cuda:
            torch.cuda.synchronize(DEVICES[0])
        if i >= 10 or count < 10:
            times.append(time.perf_counter() - begin)
        assert last.item() == 1.0 and result.device == tensor.device
    return statistics.median(times) * 1e6


def empty():
    for _ in range(200):
        rpc.rpc_sync("worker1", len, args=((),))
    begin = time.perf_counter()
    for _ in range(1000):
        rpc.rpc_sync("worker1", len, args=((),))
    return (time.perf_counter() - begin) * 1e3


def run(rank):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ.setdefault("MASTER_PORT", "29571")
    options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=8)
    if rank == 0 and DEVICES[0] != "cpu":
        options.set_device_map("worker1", {DEVICES[0]: DEVICES[1]})
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 0:
        who = "torch" if OF_TORCH else "onecopy"
        print(f"{who} empty call {empty():.1f} us", flush=True)
        for name, nbytes, count in ROWS:
            try:
                print(f"{who} echo {name} {DEVICES[0]}->{DEVICES[1]} {measure(nbytes, count):.1f} us", flush=True)
            except Exception as error:
                print(f"{who} echo {name} {DEVICES[0]}->{DEVICES[1]} FAILED {error}", flush=True)
    rpc.shutdown()


if __name__ == "__main__":
    mp.spawn(run, nprocs=2, join=True)
