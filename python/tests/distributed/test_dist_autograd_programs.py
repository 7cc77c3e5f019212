# SPDX-License-Identifier: Apache-2.0
"""Random distributed programs give the gradients of one process: many engines here, messages in random order."""

from __future__ import annotations

import itertools
import os
import random
import threading

import pytest

torch = pytest.importorskip("torch")

from onecopy.distributed.autograd._engine import Engine
from onecopy.rpc import registry

PROGRAMS = int(os.environ.get("ONECOPY_RPC_PROGRAMS", "100"))
SIZE = 3


class Wire:
    """Delivers the engines' messages in random order, each in a thread of its own: some wait for others."""

    def __init__(self, workers: int, seed: int) -> None:
        self._random, self._changed = random.Random(seed), threading.Condition()
        self._waiting, self._is_closed = [], False
        self.engines = []
        for worker in range(workers):
            engine = Engine()
            engine.start(worker, Port(self, worker))
            self.engines.append(engine)
        self._threads = [threading.Thread(target=self._deliver) for _ in range(3)]
        for thread in self._threads:
            thread.start()

    def post(self, function, arguments):
        future = torch.futures.Future()
        with self._changed:
            self._waiting.append((function, arguments, future))
            self._changed.notify()
        return future

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _deliver(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._is_closed:
                    self._changed.wait()
                if not self._waiting:
                    return
                message = self._waiting.pop(self._random.randrange(len(self._waiting)))
            threading.Thread(target=self._run, args=message).start()

    @staticmethod
    def _run(function, arguments, future) -> None:
        try:
            answer = function(*arguments)
        except Exception as error:
            future.set_exception(error)
            return
        if isinstance(answer, torch.futures.Future):
            answer.add_done_callback(lambda done: Wire._pass_on(done, future))
        else:
            future.set_result(answer)

    @staticmethod
    def _pass_on(done, future) -> None:
        try:
            future.set_result(done.value())
        except Exception as error:
            future.set_exception(error)


class Port:
    """The messages of one engine."""

    def __init__(self, wire: Wire, worker: int) -> None:
        self._wire, self._worker = wire, worker

    def send_gradients(self, to, context, key, message, gradients):
        copies = [None if g is None else g.clone() for g in gradients]
        return self._wire.post(self._wire.engines[to].on_gradients, (self._worker, context, key, message, copies))

    def call_gradients(self, *arguments):
        return self.send_gradients(*arguments).wait()

    def ask(self, to, *arguments):
        return self._wire.post(self._wire.engines[to].on_ask, arguments)

    def release_context(self, to, context):
        return self._wire.post(
            self._wire.engines[to].on_release, (self._worker, context, lambda run, *given: run(*given))
        )


def is_parameter(tensor):
    return isinstance(tensor, torch.nn.Parameter)


def computed(tensor):
    """Returns a tensor that crosses as a part of the graph."""
    return tensor * 1 if is_parameter(tensor) else tensor


class Program:
    """The same random program in one process (no wire), or with a worker an engine."""

    def __init__(self, seed: int, workers: int, wire: Wire | None) -> None:
        self._random, self._wire, self._workers = random.Random(seed), wire, workers
        generator = torch.Generator().manual_seed(seed)
        self.parameters = [
            [
                (torch.rand(SIZE, SIZE, generator=generator, dtype=torch.float64) - 0.5).requires_grad_()
                for _ in range(3)
            ]
            for _ in range(workers)
        ]
        for parameter in itertools.chain.from_iterable(self.parameters):
            if self._random.random() < 0.1:
                parameter.register_hook(lambda g: g.clamp(-0.7, 0.9) * 1.5)
        self.calls: list[tuple[int, int, list[float]]] = []  # of hooks: worker, number of the parameter, gradient
        self._nodes = [  # which live as long as their hooks
            self._hook(worker, number, parameter)
            for worker, parameters in enumerate(self.parameters)
            for number, parameter in enumerate(parameters)
            if seed % 3 == 0 and self._random.random() < 0.4
        ]
        self._kept: list[list[torch.Tensor]] = [[] for _ in range(workers)]

    def _hook(self, worker, number, parameter):
        """Hooks the node that accumulates the gradient of a parameter."""
        node = parameter.view_as(parameter).grad_fn.next_functions[0][0]
        if self._random.random() < 0.5:
            node.register_prehook(lambda gradients: (gradients[0] * 2,))
        node.register_hook(lambda _, gradients: self.calls.append((worker, number, gradients[0].flatten().tolist())))
        return node

    def loss(self):
        outputs = self._body(0, [self.parameters[0][0]], depth=3)
        return sum((o * o).mean() for o in outputs) + self.parameters[0][-1].sum() * 0.1

    def _operation(self, worker, pool):
        r = self._random
        a, b, p = r.choice(pool), r.choice(pool), r.choice(self.parameters[worker])
        which, uses_both = r.randrange(7), r.random() < 0.5
        made = [
            lambda: a @ p, lambda: torch.tanh(a) + b, lambda: a * b * 0.5, lambda: torch.sin(a @ p + b),
            lambda: self._halves(a, b, uses_both), lambda: torch.relu(a) * 1.1, lambda: a.t().contiguous() + b.mean(),
        ][which]()  # fmt: skip
        if r.random() < 0.1 and made.requires_grad:
            made.register_hook(lambda g: None if g is None else torch.tanh(g * 1.3))  # partial sums would show
        return made

    @staticmethod
    def _halves(a, b, uses_both):
        first, second = torch.split(torch.cat([a, b]), SIZE)
        return first - 0.3 * second if uses_both else first

    def _body(self, worker, arguments, depth):
        r = self._random
        pool = list(arguments)
        if r.random() < 0.2 and self._kept[worker]:
            pool.append(r.choice(self._kept[worker]))
        for _ in range(r.randrange(1, 6)):
            if depth and r.random() < 0.4:
                pool.extend(self._some_call(worker, pool, depth))
            else:
                pool.append(self._operation(worker, pool))
            if r.random() < 0.3:
                pool.append(pool[-1] + r.choice(pool))
        if r.random() < 0.2:
            self._kept[worker].append(r.choice(pool))
        return [computed(r.choice(pool[-3:])) for _ in range(r.randrange(1, 3))]

    def _some_call(self, worker, pool, depth):
        r = self._random
        to = r.randrange(self._workers)
        arguments = [computed(r.choice(pool)) for _ in range(r.randrange(1, 3))]
        if r.random() < 0.1:
            arguments = [a.detach() for a in arguments]
        if r.random() < 0.1:
            arguments = [self._parameter_of(to, a) for a in arguments]
        if self._wire is None:
            return self._body(to, [a if is_parameter(a) else a.view_as(a) for a in arguments], depth - 1)
        here = self._wire.engines[worker].current()
        there = self._wire.engines[to].get_or_create(here.id)
        arguments = self._cross(here, there, worker, to, arguments)
        with registry.within(there):
            results = self._body(to, arguments, depth - 1)
            return self._cross(there, here, to, worker, results)

    def _parameter_of(self, worker, tensor):
        """Makes a Parameter that a worker gets, which gets a gradient there."""
        made = torch.nn.Parameter(tensor.detach().clone())
        self.parameters[worker].append(made)
        return made

    @staticmethod
    def _cross(sender, receiver, from_worker, to_worker, tensors):
        recorded = sender.record_sent(tensors, to_worker)
        arrived = [t if is_parameter(t) else t.detach().clone() for t in tensors]
        receiver.know(from_worker)
        if recorded is not None:
            receiver.attach_received(recorded, arrived, from_worker)
        return arrived


def run_distributed(seed, workers, times):
    """The program, and {(worker, number): gradient}."""
    wire = Wire(workers, seed)
    try:
        program = Program(seed, workers, wire)
        context = wire.engines[0].new_context()
        loss = program.loss()
        for i in range(times):
            wire.engines[0].backward(context.id, [loss], retain_graph=i + 1 < times)
        found = {}
        for worker, engine in enumerate(wire.engines):
            known = engine.find(context.id)
            gradients = known.gradients() if known is not None else {}
            for number, parameter in enumerate(program.parameters[worker]):
                if parameter in gradients:
                    found[worker, number] = gradients[parameter]
        wire.engines[0].release(context.id)
        return loss.detach(), found, program.calls
    finally:
        wire.close()


def run_alone(seed, workers, times):
    program = Program(seed, workers, None)
    loss = program.loss()
    for i in range(times):
        loss.backward(retain_graph=i + 1 < times)
    return (
        loss.detach(),
        {
            (worker, number): parameter.grad
            for worker, parameters in enumerate(program.parameters)
            for number, parameter in enumerate(parameters)
            if parameter.grad is not None
        },
        program.calls,
    )


def check_calls(seed, wanted, found):
    """The hooks run as often, with the same gradients, in any order."""
    assert len(wanted) == len(found), f"seed {seed}: hooks ran {len(found)} times, and {len(wanted)} in one process"
    for (*mine, a), (*theirs, b) in zip(sorted(wanted), sorted(found)):
        assert mine == theirs and a == pytest.approx(b, rel=1e-9, abs=1e-12), f"seed {seed}, hook of {mine}"


@pytest.mark.parametrize("first", range(0, PROGRAMS, 20))
def test_random_programs_give_the_gradients_of_one_process(first):
    for seed in range(first, first + 20):
        workers, times = random.Random(seed * 7 + 1).randrange(2, 5), 2 if seed % 5 == 0 else 1
        loss, wanted, wanted_calls = run_alone(seed, workers, times)
        found_loss, found, calls = run_distributed(seed, workers, times)
        assert torch.equal(loss, found_loss), f"seed {seed}: the forward passes differ"
        for key in wanted.keys() | found.keys():
            nothing = torch.zeros(SIZE, SIZE, dtype=torch.float64)
            a, b = wanted.get(key, nothing), found.get(key, nothing)
            assert torch.allclose(a, b, rtol=1e-9, atol=1e-12), f"seed {seed}, worker and number {key}: {a} is not {b}"
        check_calls(seed, wanted_calls, calls)
