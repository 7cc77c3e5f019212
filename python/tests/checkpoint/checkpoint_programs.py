# SPDX-License-Identifier: Apache-2.0
"""Groups of ranks that save and load checkpoints in the store: each program forks its ranks."""

from __future__ import annotations

import functools
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.distributed.checkpoint._async_process_executor as executor
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import onecopy
from onecopy.checkpoint import StoreReader, StoreWriter, export_folder, import_folder

warnings.simplefilter("ignore")
torch.set_num_threads(1)
NAME = "checkpoint"


@functools.cache
def meetings() -> tempfile.TemporaryDirectory[str]:
    """Returns the folder in which the ranks of each group meet, which is removed when this program ends."""
    return tempfile.TemporaryDirectory(prefix="onecopy-ranks-")


def start(program: Callable[..., None], world: int, *arguments: Any) -> list[int]:
    """Forks the ranks of a group, and returns their pids."""
    meeting = tempfile.mktemp(dir=meetings().name)
    pids = []
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            try:
                dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
                program(*arguments)
            except BaseException:
                import traceback

                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        pids.append(pid)
    return pids


def run(program: Callable[..., None], world: int, *arguments: Any) -> None:
    """Runs a group to its end."""
    ends = [os.waitpid(pid, 0)[1] for pid in start(program, world, *arguments)]
    assert ends == [0] * world, f"{program.__name__}: {ends}"


# --- states


def whole(step: int) -> dict[str, Any]:
    """Returns a state without shards, all of which depends on the step."""
    count = torch.arange(24, dtype=torch.float32).reshape(6, 4) + step
    return {
        "w": count,
        "half": count.to(torch.bfloat16),
        "odd": torch.arange(5 * 3).reshape(5, 3) + step,
        "flags": (count % 2 == 0),
        "none": torch.empty(0, 4),
        "scalar": torch.tensor(float(step)),
        "optimizer": {"state": {"w": {"exp_avg": count * 2, "step": torch.tensor(step)}}, "lr": 0.5 + step},
    }


def sharded(state: dict[str, Any], dim: int) -> dict[str, Any]:
    """Returns a state whose matrices are sharded over the ranks."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))

    def shard(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: shard(each) for name, each in value.items()}
        if isinstance(value, torch.Tensor) and value.dim() == 2 and value.numel():
            return distribute_tensor(value, mesh, [Shard(dim)])
        return value

    return shard(state)


def blank(value: Any) -> Any:
    """Returns a state of the same shape without content."""
    if isinstance(value, dict):
        return {name: blank(each) for name, each in value.items()}
    return torch.zeros_like(value) if isinstance(value, torch.Tensor) else None


def check(found: Any, wanted: Any, path: str = "state") -> None:
    """Checks that two states are equal."""
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys(), path
        for name in wanted:
            check(found[name], wanted[name], f"{path}.{name}")
    elif isinstance(wanted, torch.Tensor):
        found = found.full_tensor() if isinstance(found, DTensor) else found
        assert torch.equal(found, wanted), f"{path} is {found}, not {wanted}"
    else:
        assert found == wanted, f"{path} is {found}, not {wanted}"


# --- programs of a rank


def save_and_die(steps: int) -> None:
    """Saves some steps, the last one in the background, and dies."""
    writer = StoreWriter(NAME)
    for step in range(1, steps):
        dcp.save(sharded(whole(step), 0), storage_writer=writer, checkpoint_id=f"step-{step}")
    dcp.async_save(sharded(whole(steps), 0), storage_writer=writer, checkpoint_id=f"step-{steps}").result()
    dist.barrier()
    os.kill(os.getpid(), signal.SIGKILL)


def load(step: int, dim: int) -> None:
    """Loads a step by its id, sharded in another way, and checks it."""
    state = sharded(blank(whole(step)), dim)
    dcp.load(state, storage_reader=StoreReader(NAME), checkpoint_id=f"step-{step}")
    check(state, whole(step))


def save_by_processes(step: int) -> None:
    """Saves a step by torch's own process of each rank, changes the state meanwhile, and dies.

    Then one of these processes is dead, and a save says so.
    """
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    state = sharded(whole(step), 0)
    writer, by = StoreWriter(NAME), AsyncCheckpointerType.PROCESS
    options = {"storage_writer": writer, "async_checkpointer_type": by, "checkpoint_id": f"step-{step}"}
    saving = dcp.async_save(state, **options)
    for tensor in (state["w"].to_local(), state["odd"].to_local(), state["scalar"]):
        tensor.zero_()
    saving.result()
    dist.barrier()
    if dist.get_rank() == 0:
        helper = executor._CHECKPOINT_PROCESS._save_process
        helper.kill()
        helper.join()
        try:
            dcp.async_save(state, **options).result()
        except (RuntimeError, OSError):
            pass
        else:
            raise AssertionError("a save by a process that is dead did not fail")
    os.kill(os.getpid(), signal.SIGKILL)


def save_into_a_folder(folder: str, step: int) -> None:
    """Saves a step as files."""
    dcp.save(sharded(whole(step), 0), checkpoint_id=folder)


def load_from_a_folder(folder: str, step: int) -> None:
    """Loads a step from files, sharded in another way, and checks it."""
    state = sharded(blank(whole(step)), 1)
    dcp.load(state, checkpoint_id=folder)
    check(state, whole(step))


def save_for_ever(first: int, said: int) -> None:
    """Saves steps until it is killed, and says which ones are saved."""
    writer = StoreWriter(NAME)
    for step in range(first, first + 10_000):
        if step % 2:
            dcp.save(sharded(whole(step), 0), storage_writer=writer)
        else:
            dcp.async_save(sharded(whole(step), 0), storage_writer=writer).result()
        if dist.get_rank() == 0:
            os.write(said, step.to_bytes(8, "little"))


def save_once(step: int) -> None:
    """Saves a step."""
    dcp.save(sharded(whole(step), 0), storage_writer=StoreWriter(NAME))


def train() -> None:
    """Trains with FSDP2, saves, goes on, and loads, with the calls of torchtitan; then trains the same steps again."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    def steps(count: int) -> list[float]:
        losses = []
        for number in range(count):
            loss = model(torch.full((2, 8), float(number + 1))).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    def state() -> dict[str, Any]:
        weights, others = get_state_dict(model, optimizer)
        return {"model": weights, "optimizer": others, "step": 3}

    steps(3)
    writer, group = StoreWriter(NAME), dist.new_group(backend="gloo")
    saving = dcp.async_save(state(), storage_writer=writer, checkpoint_id="step-3", process_group=group)
    after = steps(3)  # while the checkpoint is saved
    saving.result()
    for attempt in range(2):
        reader, loaded = StoreReader(NAME), state()
        dcp.load(loaded, storage_reader=reader, checkpoint_id="step-3")
        set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
        assert (reader.bytes_in_place > 0) is (attempt == 0)  # what has the memory of a checkpoint keeps its address
        assert steps(3) == after  # which writes into what was loaded


# --- histories


def kill_at_random(rounds: int, seed: int) -> None:
    """Kills a rank of a group at a random moment, and checks that the last checkpoint is whole."""
    chance = random.Random(seed)
    run(save_once, 2, 1)
    store = onecopy.store.connect()
    files = files_of(store)
    last = 1
    for _ in range(rounds):
        ours, said = os.pipe()
        pids = start(save_for_ever, 2, last + 1, said)
        os.close(said)
        last = int.from_bytes(os.read(ours, 8), "little")
        time.sleep(chance.random() * 0.2)
        for pid in chance.sample(pids, 2):
            os.kill(pid, signal.SIGKILL)
            time.sleep(chance.random() * 0.02)
        for pid in pids:
            os.waitpid(pid, 0)
        while step := os.read(ours, 8):
            last = int.from_bytes(step, "little")
        os.close(ours)
        found = blank(whole(1))
        dcp.load(found, storage_reader=StoreReader(NAME))
        step = int(found["scalar"].item())
        assert last <= step <= last + 1, f"step {step} was loaded after step {last}"
        check(found, whole(step))
        last = step
    for step in (last + 1, last + 2):
        run(save_once, 2, step)
    until = time.monotonic() + 30
    while files_of(store) > files + 2 and time.monotonic() < until:  # of one version more than at the beginning
        time.sleep(0.05)
    assert files_of(store) <= files + 2, "the memory of a checkpoint that failed is still there"
    print(f"{rounds} kills, step {last}")


def files_of(store: onecopy.store.Store) -> int:
    """Returns the number of files in memory that the keeper holds."""
    folder = f"/proc/{store.keeper()['worker']}/fd"
    links = [os.readlink(f"{folder}/{name}") for name in os.listdir(folder)]
    return sum("memfd:" in link for link in links)


if __name__ == "__main__":
    if sys.argv[1] == "die_and_load":
        for pid in start(save_and_die, 2, 3):
            assert os.waitpid(pid, 0)[1] == signal.SIGKILL
        run(load, 2, 3, 1)
        run(load, 2, 2, 0)
        run(load, 1, 3, 0)
        run(load, 3, 3, 0)
    elif sys.argv[1] == "processes":
        for pid in start(save_by_processes, 2, 3):
            assert os.waitpid(pid, 0)[1] == signal.SIGKILL
        run(load, 2, 3, 1)
    elif sys.argv[1] == "folders":
        folder = sys.argv[2]
        run(save_into_a_folder, 2, f"{folder}/step-3", 3)
        assert import_folder(f"{folder}/step-3", NAME) == 1
        run(load, 2, 3, 1)
        assert export_folder(NAME, f"{folder}/back") == 1
        run(load_from_a_folder, 2, f"{folder}/back", 3)
    elif sys.argv[1] == "train":
        run(train, 2)
    else:
        kill_at_random(*map(int, sys.argv[2:]))
