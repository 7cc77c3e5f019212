# SPDX-License-Identifier: Apache-2.0
"""A DataLoader with pinned batches, beside torch alone. Run as a program, it measures one loader in its process."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

from effort import Effort
from report import Row, at_least

ITEMS, BATCH, WORKERS, EPOCHS = 8192, 64, 8, 5


def loaders(effort: Effort) -> Row:
    row = Row(
        f"DataLoader(pin_memory=True), {WORKERS} workers, batches of {BATCH} images of 3 x 224 x 224 floats to the card",
        ">= 2 x torch",
    )
    rates = {(disable, method): [] for method in ("fork", "spawn") for disable in ("", "1")}
    for _ in range(effort.rounds(1)):
        for (disable, method), seen in rates.items():
            seen += _measured(method, effort.device, disable)
    for method in ("fork", "spawn"):
        ours, theirs = (statistics.median(rates[disable, method]) for disable in ("", "1"))
        row.add(f"torch: {method}", theirs, "images/s")
        row.judge_ratio(method, ours, "images/s", f"torch: {method}", at_least(ours / theirs, 2.0))
    row.note("The items cost the workers almost nothing. Medians of the epochs after the first one; torch is the same program "
             "with ONECOPY_DISABLE=1.")  # fmt: skip
    return row


def _measured(method: str, device: str, disable: str) -> list[float]:
    """Returns the images per second of each epoch but the first, from a process of its own."""
    environment = {**os.environ, "ONECOPY_DISABLE": disable, "ONECOPY_LOG": "off"}
    command = [sys.executable, __file__, method, device]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return [float(line) for line in done.stdout.split()[1:]]


def _main(method: str, device: str) -> None:
    import torch

    loader = torch.utils.data.DataLoader(
        Images(),
        batch_size=BATCH,
        num_workers=WORKERS,
        persistent_workers=True,
        pin_memory=True,
        multiprocessing_context=method,
    )
    for _ in range(EPOCHS):
        begin = time.perf_counter()
        for batch in loader:
            batch = batch.to(device, non_blocking=True)
        print(ITEMS / (time.perf_counter() - begin), flush=True)


class Images:
    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, number: int):
        import torch

        return torch.full((3, 224, 224), float(number))


if __name__ in ("__main__", "__mp_main__"):  # workers that are spawned run the top of the program, too
    import onecopy.multiprocessing  # noqa: F401

if __name__ == "__main__":
    _main(*sys.argv[1:])
