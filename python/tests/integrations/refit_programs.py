# SPDX-License-Identifier: Apache-2.0
"""Workers of verl and NeMo-RL without Ray, for test_refit.py: each answers lines of JSON, as a driver calls them."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import sys
from typing import Any

import torch

import refit_interface


class Worker:
    """A worker with its engine, whose weights a round loads."""

    def __init__(self, rank: int, is_trainer: bool) -> None:
        self.rank, self.is_trainer, self.made = rank, is_trainer, 0
        self.weights: dict[str, Any] = {}

    def options(self, changed: dict[str, Any]) -> None:
        self.engine = self.new({"store": "actor", "timeout": 60.0, **changed})

    def prepare(self) -> Any:
        return self.engine.prepare()

    def finalize(self) -> None:
        self.engine.finalize()

    def produced(self, step: int, dies: bool, layers: int):
        """Yields the weights of a step, and counts them."""
        for layer in range(layers):
            if dies and layer == layers - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            self.made += 1
            yield f"layers.{layer}.weight", torch.full((300, 7), float(step)).to(torch.bfloat16)
        yield "step", torch.tensor(step)

    def broken(self, step: int):
        """Yields weights until the last one fails."""
        yield from list(self.produced(step, False, 3))[:-1]
        raise ZeroDivisionError("the trainer's own fault")

    def look(self) -> Any:
        """Returns what the weights of the engine are: the step, and whether all of them are of that step."""
        if not self.weights:
            return None
        step = self.weights["step"].item()
        layers = [value for name, value in self.weights.items() if name != "step"]
        return [step, len(layers), all(value.eq(step).all().item() for value in layers)]

    def count(self) -> int:
        return self.made


class Verl(Worker):
    def new(self, options: dict[str, Any]) -> Any:
        registry = sys.modules["verl.checkpoint_engine"].CheckpointEngineRegistry
        if self.is_trainer:
            options["is_master"] = self.rank == 0
        return registry.new("onecopy", bucket_size=1 << 20, **options)

    def topology(self, trainers: int, rollouts: int, metadata: list[Any]) -> Any:
        return type(self.engine).build_topology(trainers, rollouts, metadata)

    def init(self, options: dict[str, Any]) -> None:
        self.engine.init_process_group(**options)

    def send(self, step: int, dies: bool = False, layers: int = 3) -> None:
        asyncio.run(self.engine.send_weights(self.produced(step, dies, layers), global_steps=step))

    def send_broken(self, step: int) -> None:
        asyncio.run(self.engine.send_weights(self.broken(step), global_steps=step))

    def receive(self) -> Any:
        async def receive() -> None:
            self.weights = {name: value.clone() async for name, value in self.engine.receive_weights(global_steps=1)}

        asyncio.run(receive())
        return self.look()


class NemoRl(Worker):
    def new(self, options: dict[str, Any]) -> Any:
        create = sys.modules["nemo_rl.utils.checkpoint_engines.base"].create_checkpoint_engine
        options["release_after_refit"] = False
        return create("onecopy.integrations.nemo_rl:Engine", bucket_size_bytes=9000, engine_kwargs=options)

    def init(self, trainers: int, rollouts: int, metadata: list[Any]) -> None:
        named = {"train_world_size": trainers, "rollout_world_size": rollouts, "metadata": metadata}
        if self.is_trainer:
            self.engine.init_policy_process_group(worker_rank=self.rank, **named)
        else:
            self.engine.init_rollout_process_group(rollout_rank=self.rank, **named)

    def send(self, step: int, dies: bool = False, layers: int = 3) -> None:
        asyncio.run(self.engine.send_weights(self.produced(step, dies, layers)))

    def send_broken(self, step: int) -> None:
        asyncio.run(self.engine.send_weights(self.broken(step)))

    def receive(self) -> Any:
        async def receive() -> None:
            batches = [batch async for batch in self.engine.receive_weight_batches()]
            assert all(sum(tensor.nbytes for _, tensor in batch) <= 9000 for batch in batches)
            self.weights = {name: value.clone() for batch in batches for name, value in batch}

        asyncio.run(receive())
        return self.look()


def serve(worker: Worker) -> None:
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            answer = getattr(worker, name)(*arguments)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    kind, side, rank = sys.argv[1:]
    if kind == "verl":
        refit_interface.install_verl()
        importlib.import_module("onecopy.integrations.verl")  # as verl does, by its setting custom_backend_module
    else:
        refit_interface.install_nemo_rl()
    serve((Verl if kind == "verl" else NemoRl)(int(rank), side == "trainer"))
