# SPDX-License-Identifier: Apache-2.0
"""A trainer and an engine on one copy of the weights: the engine sees every step, nothing is copied."""

import torch
from torch import nn
import onecopy
import onecopy.multiprocessing as mp


def make_model():
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))


def engine(weights, requests, answers):
    with torch.device("meta"):
        model = make_model()  # no memory of its own
    onecopy.open(weights).load_into(model)  # its parameters and buffers are the trainer's
    for x in iter(requests.get, None):
        with torch.no_grad():
            answers.put(model(x))  # with the weights of this moment


def train(model, optimizer, x, y):
    for _ in range(200):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()  # in place: the engine's weights are these


def main():
    torch.manual_seed(0)
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    x = torch.randn(64, 4)
    y = x.sum(1, keepdim=True)

    weights = onecopy.share(model)  # moved into shared memory in place; one handle for all
    context = mp.get_context("spawn")
    requests, answers = context.Queue(), context.Queue()
    process = context.Process(target=engine, args=(weights, requests, answers))
    process.start()
    for round in range(3):
        train(model, optimizer, x, y)
        requests.put(x)  # the engine waits for requests while the weights change
        answer = answers.get()
        print(f"round {round}: the engine has the new weights: {torch.allclose(answer, model(x))}")
    print("it has learnt:", bool(nn.functional.mse_loss(answer, y) < 0.1))
    requests.put(None)
    process.join()


if __name__ == "__main__":
    main()
