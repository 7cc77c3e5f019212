# SPDX-License-Identifier: Apache-2.0
import os, tempfile
import torch
import onecopy.distributed.autograd as dist_autograd
import onecopy.distributed.rpc as rpc
import onecopy.multiprocessing as mp
from onecopy.distributed.optim import DistributedOptimizer


class Stage(torch.nn.Module):  # one half of the model; each half lives in a process of its own
    def __init__(self, inputs, outputs):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(inputs, outputs)

    def forward(self, x):
        return torch.tanh(self.linear(x))

    def parameter_rrefs(self):
        return [rpc.RRef(p) for p in self.parameters()]


def train():
    first, second = Stage(4, 8), rpc.remote("second", Stage, args=(8, 1))
    optimizer = DistributedOptimizer(
        torch.optim.SGD, first.parameter_rrefs() + second.rpc_sync().parameter_rrefs(), lr=0.5
    )
    x = torch.linspace(-1, 1, 32).reshape(8, 4)
    target = x.sum(dim=1, keepdim=True).clamp(-0.5, 0.5)
    losses = []
    for _ in range(60):
        with dist_autograd.context() as context_id:
            y = second.rpc_sync().forward(first(x))  # forward through both processes
            loss = torch.nn.functional.mse_loss(y, target)
            dist_autograd.backward(context_id, [loss])  # and back through both
            optimizer.step(context_id)
        losses.append(loss.item())
    print("the loss fell to less than a quarter:", losses[-1] < losses[0] / 4)


def run(rank, rendezvous):
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{rendezvous}")
    rpc.init_rpc(["first", "second"][rank], rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 0:
        train()
    rpc.shutdown()  # waits for the other


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        mp.spawn(run, args=(os.path.join(directory, "rendezvous"),), nprocs=2)
