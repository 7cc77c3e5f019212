# SPDX-License-Identifier: Apache-2.0
"""Programs of the shapes that people write with rpc: a model over processes, a pipeline, a parameter server, and
agents.
"""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch")

import onecopy.distributed.autograd as dist_autograd
from onecopy.distributed import rpc
from onecopy.distributed.optim import DistributedOptimizer
from support.rpc_group import shared_group

four = shared_group(4)


def parameter_rrefs(module):
    return [rpc.RRef(parameter) for parameter in module.parameters()]


def of_owner(rref):
    return parameter_rrefs(rref.local_value())


# --- a recurrent model whose tables live in another process


class Encoder(torch.nn.Module):
    def __init__(self, words, size):
        super().__init__()
        torch.manual_seed(1)
        self.table = torch.nn.Embedding(words, size)

    def forward(self, text):
        return self.table(text)


class Decoder(torch.nn.Module):
    def __init__(self, words, size):
        super().__init__()
        torch.manual_seed(2)
        self.linear = torch.nn.Linear(size, words)

    def forward(self, x):
        return self.linear(x)


class Middle(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        torch.manual_seed(3)
        self.lstm = torch.nn.LSTM(size, size)

    def forward(self, x, state):
        return self.lstm(x, state)


def batches(words):
    generator = torch.Generator().manual_seed(4)
    return [torch.randint(words, (6, 3), generator=generator) for _ in range(4)]


def loss_of(output, text, words):
    return torch.nn.functional.cross_entropy(output.reshape(-1, words), text.reshape(-1))


def recurrent_over_processes(words=11, size=5):
    encoder, decoder = (
        rpc.remote("worker1", Encoder, args=(words, size)),
        rpc.remote("worker2", Decoder, args=(words, size)),
    )
    middle, state, losses = Middle(size), (torch.zeros(1, 3, size), torch.zeros(1, 3, size)), []
    theirs = [p for rref in (encoder, decoder) for p in rpc.rpc_sync(rref.owner(), of_owner, args=(rref,))]
    optimizer = DistributedOptimizer(torch.optim.SGD, parameter_rrefs(middle) + theirs, lr=0.5)
    for text in batches(words):
        with dist_autograd.context() as context:
            state = tuple(s.detach() for s in state)
            x, state = middle(encoder.rpc_sync().forward(text), state)
            loss = loss_of(decoder.rpc_sync().forward(x), text, words)
            dist_autograd.backward(context, [loss])
            optimizer.step(context)
        losses.append(loss.item())
    return losses


def recurrent_in_one_process(words=11, size=5):
    encoder, decoder, middle = Encoder(words, size), Decoder(words, size), Middle(size)
    parameters = [*middle.parameters(), *encoder.parameters(), *decoder.parameters()]
    optimizer, state, losses = (
        torch.optim.SGD(parameters, lr=0.5),
        (torch.zeros(1, 3, size), torch.zeros(1, 3, size)),
        [],
    )
    for text in batches(words):
        optimizer.zero_grad()
        state = tuple(s.detach() for s in state)
        x, state = middle(encoder(text), state)
        loss = loss_of(decoder(x), text, words)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_a_recurrent_model_over_processes_learns_as_in_one(four):
    assert four[0](recurrent_over_processes) == pytest.approx(recurrent_in_one_process(), rel=1e-5)


# --- a pipeline of stages, each in a process of its own, with parts of a batch on their way at once


class Stage(torch.nn.Module):
    def __init__(self, seed, inputs, outputs):
        super().__init__()
        torch.manual_seed(seed)
        self.layers = torch.nn.Sequential(torch.nn.Linear(inputs, outputs), torch.nn.Tanh())
        self.lock = threading.Lock()

    def forward(self, x_rref):
        x = x_rref.to_here()
        with self.lock:
            return self.layers(x)


def pipeline_over_processes(parts):
    stages = [rpc.remote(f"worker{i}", Stage, args=(i, *sizes)) for i, sizes in ((1, (6, 8)), (2, (8, 8)), (3, (8, 2)))]
    x = torch.linspace(-1, 1, 48).reshape(8, 6)
    with dist_autograd.context() as context:
        futures = []
        for part in x.split(8 // parts):
            rref = rpc.RRef(part)
            for stage in stages[:-1]:
                rref = stage.remote().forward(rref)
            futures.append(stages[-1].rpc_async().forward(rref))
        y = torch.cat(torch.futures.wait_all(futures))
        dist_autograd.backward(context, [y.sum()])
        gradients = [rpc.rpc_sync(stage.owner(), gradients_of, args=(context, stage)) for stage in stages]
    return y.detach(), gradients


def gradients_of(context, rref):
    found = dist_autograd.get_gradients(context)
    return [found[p] for p in rref.local_value().parameters()]


def pipeline_in_one_process():
    stages = [Stage(1, 6, 8), Stage(2, 8, 8), Stage(3, 8, 2)]
    y = torch.linspace(-1, 1, 48).reshape(8, 6)
    for stage in stages:
        y = stage.layers(y)
    y.sum().backward()
    return y.detach(), [[p.grad for p in stage.parameters()] for stage in stages]


@pytest.mark.parametrize("parts", [1, 4])
def test_a_pipeline_gives_what_one_process_does(four, parts):
    (y, gradients), (expected, theirs) = four[0](pipeline_over_processes, parts), pipeline_in_one_process()
    assert torch.allclose(y, expected, atol=1e-6)
    for mine, other in zip(gradients, theirs):
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(mine, other))


# --- a parameter server that waits for gradients of all trainers, and keeps no thread while it does


class Server:
    def __init__(self, trainers):
        self.trainers, self.lock = trainers, threading.Lock()
        self.model, self.sum, self.count, self.future = torch.zeros(4), torch.zeros(4), 0, torch.futures.Future()

    @staticmethod
    @rpc.functions.async_execution
    def update(rref, gradient):
        """The model once all trainers' gradients are in it."""
        self = rref.local_value()
        with self.lock:
            future = self.future
            self.sum += gradient
            self.count += 1
            if self.count == self.trainers:
                self.model = self.model - self.sum / self.trainers
                self.sum, self.count, self.future = torch.zeros(4), 0, torch.futures.Future()
                future.set_result(self.model)
        return future


def train(server, number, steps):
    seen = []
    for step in range(steps):
        model = rpc.rpc_sync(server.owner(), Server.update, args=(server, torch.full((4,), float(number + step))))
        seen.append(model.tolist())
    return seen


def serve(trainers, steps):
    server = rpc.RRef(Server(len(trainers)))
    futures = [rpc.rpc_async(to, train, args=(server, i, steps)) for i, to in enumerate(trainers)]
    return torch.futures.wait_all(futures)


def test_a_parameter_server_takes_batches_of_gradients(four):
    seen = four[0](serve, ["worker1", "worker2", "worker3"], 5)
    expected, model = [], 0.0
    for step in range(5):
        model -= 1.0 + step  # the mean of 0, 1 and 2, and the step
        expected.append([model] * 4)
    assert seen == [expected] * 3


# --- an agent that is asked by observers, and learns from what they tell it


class Environment:
    """The reward is for the action that is nearest to a hidden number."""

    def __init__(self, hidden):
        self.hidden = hidden

    def step(self, action):
        return -abs(self.hidden - action)


class Observer:
    def __init__(self, hidden):
        self.environment = Environment(hidden)

    def episode(self, agent, steps):
        name = rpc.get_worker_info().name
        for _ in range(steps):
            action = agent.rpc_sync().choose(name)
            agent.rpc_sync().reward(name, action, self.environment.step(action))


class Agent:
    def __init__(self, observers):
        self.values = {name: torch.zeros(5) for name in observers}
        self.tries = dict.fromkeys(observers, 0)
        self.me = rpc.RRef(self)
        self.observers = [rpc.remote(name, Observer, args=(i + 1,)) for i, name in enumerate(observers)]

    def choose(self, name):
        self.tries[name] += 1
        return self.tries[name] % 5 if self.tries[name] <= 10 else int(self.values[name].argmax())

    def reward(self, name, action, reward):
        self.values[name][action] += 0.5 * (reward - self.values[name][action])

    def learn(self, episodes, steps):
        for _ in range(episodes):
            torch.futures.wait_all([o.rpc_async().episode(self.me, steps) for o in self.observers])
        return {name: int(values.argmax()) for name, values in self.values.items()}


def learn():
    return Agent(["worker1", "worker2", "worker3"]).learn(3, 10)


def test_an_agent_learns_from_observers_in_other_processes(four):
    assert four[0](learn) == {"worker1": 1, "worker2": 2, "worker3": 3}
