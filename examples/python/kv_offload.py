# SPDX-License-Identifier: Apache-2.0
"""KV pages that a GPU has no room for lie in pinned shared memory; the GPU of a second engine reads them in place."""

from __future__ import annotations

import torch

import onecopy
import onecopy.multiprocessing as mp

PAGES, WIDTH = 4, 1024
DEVICE = "cuda:0" if torch.cuda.is_available() else "cpu"


def second_engine(handle: onecopy.Handle, requests: mp.Queue[int | None]) -> None:
    pages = onecopy.open(handle, framework="torch")
    if DEVICE != "cpu":
        pages = onecopy.view_on(pages, DEVICE)  # a tensor of the GPU; nothing is copied
    for number in iter(requests.get, None):
        print(f"page {number}: its keys sum to {pages[number].sum():g}", flush=True)


def main() -> None:
    pages = onecopy.zeros((PAGES, WIDTH), pin=DEVICE != "cpu").torch()
    context = mp.get_context("spawn")
    requests = context.Queue()
    engine = context.Process(target=second_engine, args=(onecopy.share(pages), requests))
    engine.start()
    for number in range(PAGES):
        keys = torch.full((WIDTH,), float(number), device=DEVICE)  # as the first engine has computed them
        pages[number].copy_(keys, non_blocking=True)
        requests.put(number)  # the GPU of the engine waits for the copy; this process does not
    requests.put(None)
    engine.join()


if __name__ == "__main__":
    main()
