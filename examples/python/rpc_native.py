# SPDX-License-Identifier: Apache-2.0
import os, tempfile, time
import torch
import onecopy.multiprocessing as mp
import onecopy.rpc as rpc


@rpc.export  # others may call this, and nothing that is not marked
def scale(tensor, by):
    return tensor * by


@rpc.export
def add_one(tensor):
    tensor += 1


@rpc.export
def squares(count):  # a generator here, an iterator there
    for i in range(count):
        yield torch.tensor(i * i)


@rpc.export
def work_for_long():
    while not rpc.current_call().cancelled:
        time.sleep(0.01)


def main():
    print(rpc.call("worker1", scale, args=(torch.ones(3), 2), timeout=10.0).tolist())
    print([int(item) for item in rpc.stream("worker1", squares, args=(5,))])
    tensor = torch.zeros(2)
    rpc.call("worker1", add_one, args=(rpc.borrow(tensor),))  # lent, and not copied
    print(tensor.tolist())
    waiting = rpc.call_async("worker1", work_for_long)
    waiting.cancel()
    try:
        waiting.wait()
    except rpc.Cancelled:
        print("cancelled")
    try:
        rpc.call("worker1", "os:getpid")
    except PermissionError:
        print("refused")


def run(rank, rendezvous):
    rpc.init(f"worker{rank}", rank=rank, world_size=2, rendezvous=f"file://{rendezvous}")
    if rank == 0:
        main()
    rpc.shutdown()  # waits for the other


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        mp.spawn(run, args=(os.path.join(directory, "rendezvous"),), nprocs=2)
