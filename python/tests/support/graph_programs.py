# SPDX-License-Identifier: Apache-2.0
"""What the tests of captured graphs have in common: models, and the devices that run them."""

from __future__ import annotations

import torch

from onecopy import graphs
from support.devices import driver, is_simulated

SHAPES = (3, 200, 17, 500, 128)
PART = 2 << 20  # of a page


def no_card() -> str:
    """Returns why graphs of CUDA cannot run here, or an empty text."""
    if not torch.cuda.is_available():
        return "wants a CUDA GPU"
    return "wants a CUDA GPU and its own driver" if driver() is not None and is_simulated() else ""


class Layers(torch.nn.Module):
    def __init__(self, width, device="cpu"):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width, device=device) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = torch.nn.functional.gelu(layer(x))
        return x


class Decoder(torch.nn.Module):
    """Writes rows into a cache that it is given, and into a buffer of its own."""

    def __init__(self, width, device="cpu"):
        super().__init__()
        self.layer = torch.nn.Linear(width, width, device=device)
        self.register_buffer("count", torch.zeros(1, device=device))

    def forward(self, x, cache, at):
        cache.index_copy_(0, at, self.layer(x))
        self.count.add_(1)
        return cache.sum(0) + x.sum(), cache


class Place:
    """A device, and what tests make on it."""

    def __init__(self, device):
        self.device = device
        self.is_card = device != "cpu"
        self.width = 1024 if self.is_card else 64

    def arena(self, **options):
        return graphs.arena(self.device, **options)

    def rows(self, count, width=None):
        return torch.randn(count, width or self.width, device=self.device)

    def layers(self, width=None):
        return Layers(width or self.width, self.device)

    def decoders(self, caches=3):
        """Returns two that are equal, and caches for each."""
        pair = [Decoder(self.width, self.device) for _ in range(2)]
        pair[1].load_state_dict(pair[0].state_dict())
        return *pair, *[[torch.zeros(32, self.width, device=self.device) for _ in range(caches)] for _ in range(2)]

    def same(self, a, b):
        return torch.allclose(a, b, rtol=2e-3 if self.is_card else 1e-4, atol=2e-3 if self.is_card else 1e-5)


def compiled(function, pool=None, dynamic=True, **options):
    return torch.compile(function, backend=graphs.backend(pool, **options), dynamic=dynamic, fullgraph=True)


# --- memory that nothing may be read from ------------------------------------------------------------


class Bytes:
    def __init__(self, window):
        self._window = window
        self.__cuda_array_interface__ = {
            "shape": (window.nbytes,), "typestr": "|u1", "data": (window.base, False), "version": 3,
        }  # fmt: skip


def poison(pool):
    """Whatever is read from the arena before it is written shows, in pages that windows show whole."""
    size = pool.footprint.shared
    if not size:
        return
    if pool.device.type == "cpu":
        torch.frombuffer(pool.open(size), dtype=torch.uint8).fill_(0xFF)
        return
    memory = torch.as_tensor(Bytes(pool.open(size)), device=pool.device)
    _fill(pool, memory)
    del memory  # and its window
    if pool.footprint.own:
        _poison_parts(pool, size)


def _poison_parts(pool, size):
    """The same for pages in parts: a window that owns every other part shows the parts between them."""
    for first in (0, 1):
        capture = pool.open_pool()
        with pool.lock, capture.use():
            memory = torch.empty(size, dtype=torch.uint8, device=pool.device)
        torch.cuda.synchronize()
        begin = memory.data_ptr()
        capture.window.keep_alive([(begin + at, 1) for at in range(first * PART, size, 2 * PART)])
        _fill(pool, memory)
        del memory
        capture.close()
        torch.cuda.empty_cache()


def _fill(pool, memory):
    with pool.lock.of(torch.cuda.current_stream()):
        memory.fill_(0xFF)
    torch.cuda.synchronize()
