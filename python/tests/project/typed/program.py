# SPDX-License-Identifier: Apache-2.0
"""A program that uses all of the public API, for test_typing.py: it is type-checked, never run.

A line with ``type: ignore`` has to be an error: mypy reports comments that ignore nothing.
"""

from __future__ import annotations

from multiprocessing.queues import JoinableQueue, Queue
from pathlib import Path
from typing import Any

import numpy as np
import torch

import onecopy
import onecopy.multiprocessing as mp
from onecopy.multiprocessing.connection import Client, wait
from onecopy.multiprocessing.reductions import reduce_tensor


def tensors() -> None:
    t: onecopy.Tensor = onecopy.empty((2, 3), "float32")
    u = onecopy.zeros(3, dtype=onecopy.DType("int8"), device="cpu")
    v = onecopy.full([2, 2], 1.5)
    shape: tuple[int, ...] = t.shape
    itemsize: int = t.dtype.itemsize
    t[0, 1] = 3
    part: onecopy.Tensor = t[0, 1:, ..., None]
    number: float = float(part) + int(u[0]) + len(v)
    for row in t:
        row.reshape(-1).view("uint8").copy().to("cpu").cpu().copy_from(u)
    plain: bool = t.is_contiguous and t.is_shared and t.access == "read"
    memory: memoryview = t.memoryview()
    device: tuple[int, int] = t.__dlpack_device__()
    again: onecopy.Tensor = onecopy.from_dlpack(t.numpy(), copy=True)
    print(shape, itemsize, number, plain, memory, bytes(t), device, again, t.torch(), t.item(), t.tolist())
    onecopy.record_stream(t, 1)
    onecopy.full(3, "seven")  # type: ignore[arg-type]
    onecopy.empty()  # type: ignore[call-arg]


def handles(t: onecopy.Tensor) -> None:
    handle: onecopy.Handle = onecopy.share(t, exact="copy")
    same: bool = handle == onecopy.Handle.from_bytes(handle.to_bytes())
    onecopy.open(str(handle), access="read", framework="numpy")
    onecopy.open(handle, "cuda:0", "readwrite", framework="torch")
    onecopy.open(handle, access="write")  # type: ignore[arg-type]
    onecopy.share(t, exact="maybe")  # type: ignore[arg-type]
    onecopy.set_strategy("named")  # type: ignore[arg-type]
    print(same, onecopy.Handle.from_text(str(handle)).nbytes)


def opened(handle: onecopy.Handle) -> None:
    """The handle decides whether open() returns an array or a bundle, so the caller's annotation says which it is."""
    tensor: onecopy.Tensor = onecopy.open(handle)
    weights: onecopy.Bundle = onecopy.open(str(handle), pin=True)
    array: np.ndarray[Any, Any] = onecopy.open(handle, framework="numpy")
    of_torch: torch.Tensor = onecopy.open(handle, "cpu", framework="torch")
    named: onecopy.Bundle = onecopy.open(handle, framework="torch")
    onecopy.open(handle).load_into(None)
    weights.reshape(3)  # type: ignore[attr-defined]
    print(tensor.shape, weights.keys(), array, of_torch, named)


def bundles(bundle: onecopy.Bundle) -> None:
    for name in bundle:
        print(name, bundle[name], bundle[0], name in bundle, len(bundle), bundle.get(name, 3))
    weights: dict[str, Any] = dict(bundle)
    pairs: list[tuple[str, Any]] = bundle.items()
    print(weights, pairs, bundle.keys(), bundle.values(), bundle.handle, bundle.tree(framework="numpy"))


def loading_and_numbers() -> None:
    loaded: dict[str, Any] = onecopy.load_safetensors(Path("x"), framework="torch", progress=print)
    onecopy.load_npy("x")
    numbers: dict[str, int] = onecopy.stats()
    onecopy.collect(older_than=3)
    onecopy.set_strategy("file_system")
    strategy: str = onecopy.strategy()
    print(loaded, numbers["host_waits"], strategy, onecopy.list_owners()[0]["pid"])


def queues() -> None:
    queue = onecopy.Queue(maxsize=3)
    queue.put({"a": onecopy.zeros(1)}, timeout=1.0)
    queue.put(None)
    queue.get(timeout=2).sum()  # what comes out is anything
    queue.try_get().sum()
    taken: bool = queue.try_put(3)
    queue.put(3, timeout="long")  # type: ignore[arg-type]
    message = onecopy.Message(256, b"x", [onecopy.zeros(1)])
    rows: list[onecopy.Tensor] = message.tensors
    print(taken, queue.size(), queue.empty(), queue.closed, queue.fileno(), len(queue), message.tag, rows)
    queue.close()


def pipes() -> None:
    left, right = onecopy.Pipe()
    end: onecopy.PipeEnd = left
    with end, onecopy.Listener("unix:@name", b"key") as listener:
        end.send(3)
        right.recv(timeout=1).sum()
        accepted: onecopy.PipeEnd = listener.accept(timeout=None)
        print(right.poll(None), accepted, onecopy.PipeHandle.from_text(str(right.handle())))
    onecopy.connect("unix:@name", b"key", timeout=None)


def errors() -> None:
    try:
        onecopy.open("onecopy:")
    except onecopy.StaleHandle as error:
        print(error.code, error.vendor_code, error.domain)
    except (onecopy.Timeout, onecopy.errors.Closed) as error:
        print(error)


def work(queue: Queue[int]) -> None:
    queue.put(1)


def processes() -> None:
    context = mp.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=work, args=(queue,))
    process.start()
    code: int | None = process.exitcode
    joinable: JoinableQueue[int] = mp.JoinableQueue()
    a, b = mp.Pipe()
    a.send(3)
    with mp.Pool(2) as pool:
        texts: list[str] = pool.map(str, [1])
    with mp.Manager() as manager:
        manager.Queue().put(3)
    mp.Event().set()
    print(code, joinable, b, texts, mp.cpu_count(), mp.current_process().name, mp.TimeoutError, Client, wait)
    print(mp.queues.Queue, mp.connection.wait, reduce_tensor)
    mp.Queues()  # type: ignore[attr-defined]


def of_which_classes(pool: mp.pool.Pool, context: mp.context.SpawnContext) -> None:
    queue: mp.queues.Queue[onecopy.Tensor] = mp.Queue()
    simple: mp.queues.SimpleQueue[int] = mp.SimpleQueue()
    result: mp.pool.AsyncResult[int] = pool.apply_async(abs, (1,))
    of_which_classes(mp.Pool(2), mp.get_context("spawn"))
    print(queue, simple, result, context)


def what_torch_has_too(queue: Queue[int]) -> None:
    mp.set_sharing_strategy("file_system")
    names: set[str] = mp.get_all_sharing_strategies()
    mp.spawn(work, args=(queue,), nprocs=2, join=True)
    mp.start_processes(work, args=(queue,), start_method="fork")
    mp.init_reductions()
    mp._prctl_pr_set_pdeathsig(15)
    mp.uninstall()
    mp.install()
    print(names, mp.get_sharing_strategy(), mp.installed())


def torchs_memory() -> None:
    print(onecopy.torch.trim("cuda:0") + onecopy.torch.trim())
    with onecopy.torch.memory("cuda:0") as pool:
        print(pool)
