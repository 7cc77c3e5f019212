# SPDX-License-Identifier: Apache-2.0
"""Hogwild: several processes train one model at the same time, without locks."""

import torch
from torch import nn
import onecopy.multiprocessing as mp


def train(model, seed):
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for _ in range(150):
        x = torch.randn(32, 8)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
        optimizer.step()


def main(method="spawn"):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    model.share_memory()
    x = torch.randn(256, 8)

    def loss():
        with torch.no_grad():
            return float(nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)))

    before = loss()
    context = mp.get_context(method)
    workers = [context.Process(target=train, args=(model, seed)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print("all ended well:", all(worker.exitcode == 0 for worker in workers))
    print("loss is less than a quarter:", loss() < before / 4)


if __name__ == "__main__":
    main()
