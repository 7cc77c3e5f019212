# SPDX-License-Identifier: Apache-2.0
"""One model, captured for five batch sizes: all graphs share the memory of the largest, in whatever order they come."""

import random

import torch

from onecopy import graphs

DEVICE = "cuda:0" if torch.cuda.is_available() else "cpu"
WIDTH, SIZES = 1024, [1, 64, 256, 512, 1024]


def memory_of(order: list[int], apart: bool = False) -> int:
    """The scratch memory of all graphs, in MiB, once each size was captured."""
    torch._dynamo.reset()  # only for this comparison
    arena = graphs.arena(DEVICE)
    compiled = torch.compile(model, backend=graphs.backend(arena, one_arena_a_graph=apart), dynamic=True)
    for rows in order:
        compiled(torch.randn(rows, WIDTH, device=DEVICE))
    return int(graphs.report(arena).shared_bytes) >> 20


layers = [(torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU()) for _ in range(6)]
model = torch.nn.Sequential(*(part for layer in layers for part in layer)).to(DEVICE)
with torch.no_grad():
    print("a pool for each graph:", memory_of(SIZES, apart=True), "MiB")
    print("one arena, ascending: ", memory_of(SIZES), "MiB")
    print("one arena, shuffled:  ", memory_of(random.sample(SIZES, len(SIZES))), "MiB")

    torch._dynamo.reset()
    compiled = torch.compile(model, backend=graphs.backend(), dynamic=True)
    x = torch.randn(64, WIDTH, device=DEVICE)
    for _ in range(2):  # captured, then replayed
        held, want = compiled(x), model(x)
    for rows in SIZES:  # graphs of other sizes run over the same memory
        compiled(torch.randn(rows, WIDTH, device=DEVICE))
    print("a held output is still right:", torch.allclose(held, want, atol=1e-3))
