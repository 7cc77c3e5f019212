# SPDX-License-Identifier: Apache-2.0
"""Measures blocks of a KV pool on the host that are copied to a card and back, beside the driver's batch of copies."""

from __future__ import annotations

import ctypes
import random
from typing import Any

import cuda_floor
from effort import Effort
from report import Row, at_least, at_most
from samples import Samples, time_ns
from store_versions import own_store

_BLOCKS = 2048
_ROUNDS = 15
_KEYS = 1000
_SIZES = (64 << 10, 256 << 10, 1 << 20)
_IN_STREAM_ORDER = 1


class _Attributes(ctypes.Structure):
    _fields_ = [("order", ctypes.c_int), ("hints", ctypes.c_int * 4), ("flags", ctypes.c_uint)]


class _Batch:
    """The same copies by the driver alone, whose arrays are made beforehand."""

    def __init__(self, driver: cuda_floor.Driver, to: list[int], sources: list[int], nbytes: int, stream: Any) -> None:
        many = ctypes.c_uint64 * len(to)
        self._arguments = (many(*to), many(*sources), many(*[nbytes] * len(to)), ctypes.c_size_t(len(to)),
                           ctypes.byref(_Attributes(_IN_STREAM_ORDER)), (ctypes.c_size_t * 1)(0), ctypes.c_size_t(1),
                           ctypes.c_void_p(stream.cuda_stream))  # fmt: skip
        self._driver = driver

    def start(self) -> None:
        self._driver("cuMemcpyBatchAsync_v2", *self._arguments)


def copies(effort: Effort) -> Row:
    """Measures 2,048 scattered blocks of each size, and the lookup of 1,000 keys."""
    row = Row(
        "Blocks of a KV pool to a card and back", "≥ 0.95 x the speed of the driver's batch; 1,000 keys in ≤ 1 ms"
    )
    for nbytes in _SIZES:
        _measure(row, effort, effort.device, nbytes)
    return row


def _measure(row: Row, effort: Effort, device: str, nbytes: int) -> None:
    import torch

    stream = torch.cuda.Stream(device)
    with own_store() as store, torch.cuda.stream(stream):
        pool = store.kv_pool("kv", block_bytes=nbytes, budget=2 * _BLOCKS * nbytes, pin=True)
        numbers = pool.allocate(_BLOCKS)
        random.Random(0).shuffle(numbers)
        for number in numbers:
            pool.block(number).fill_(number % 251)
        card = torch.zeros(_BLOCKS, nbytes, dtype=torch.uint8, device=device)
        rows = list(range(_BLOCKS))
        host = [pool.block(number).data_ptr() for number in numbers]
        there = [card[index].data_ptr() for index in rows]
        driver = cuda_floor.Driver(card.device.index)
        for to_pool, what in ((False, "to the card"), (True, "into the pool")):
            bare = _Batch(driver, *((host, there) if to_pool else (there, host)), nbytes, stream)
            ours, floor = Samples(), Samples()
            for _ in range(effort.rounds(_ROUNDS)):
                ours.append(_timed(stream, lambda way=to_pool: pool.copy_blocks(numbers, rows, card, to_pool=way)))
                floor.append(_timed(stream, bare.start))
            assert card[:, 0].tolist() == [number % 251 for number in numbers]
            gigabytes = _BLOCKS * nbytes / 1e9
            name = f"{nbytes >> 10} KiB {what}"
            row.add(f"{name}, cuMemcpyBatchAsync", gigabytes / (floor.median() / 1e9), "GB/s")
            ratio = 1 / ours.ratio_to(floor)
            row.judge_ratio(
                f"{name}, copy_blocks", gigabytes / (ours.median() / 1e9), "GB/s", "the driver's", at_least(ratio, 0.95)
            )
        if nbytes == _SIZES[0]:
            _look_up(row, effort, pool, numbers[:_KEYS])
        del card


def _look_up(row: Row, effort: Effort, pool: Any, numbers: list[int]) -> None:
    keys = [f"{number:032}".encode() for number in numbers]
    for key, number in zip(keys, numbers, strict=True):
        pool.put(key, number)
    found = Samples(time_ns(lambda: pool.release(pool.find(keys))) for _ in range(effort.rounds(_ROUNDS * 10)))
    row.judge(f"find and release {len(keys)} keys", found.median(), "ns", at_most(found.median(), 1e6))


def _timed(stream: Any, work: Any) -> float:
    def whole() -> None:
        work()
        stream.synchronize()

    return time_ns(whole)
