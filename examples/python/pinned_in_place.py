# SPDX-License-Identifier: Apache-2.0
"""Two processes feed one tensor to their devices. Its bytes exist once on the host, pinned by each process."""

import torch
import onecopy
import onecopy.multiprocessing as mp

DEVICE = "cuda:0" if torch.cuda.is_available() else "cpu"
PIN = DEVICE != "cpu"  # without a device there is no driver to pin for


def feed(name, handle):
    weights = onecopy.open(handle, framework="torch", pin=PIN)  # pins the mapping of this process; copies nothing
    there = weights.to(DEVICE, non_blocking=True)  # torch's own call
    pinned = onecopy.is_pinned(weights)
    own = onecopy.stats()["live_bytes"] >> 20  # CPU memory that this process has allocated with onecopy
    print(f"{name}: pinned {pinned}, last element on the device {int(there[-1])}, {own} MiB allocated here", flush=True)


if __name__ == "__main__":
    weights = onecopy.empty(1 << 20, pin=PIN).torch()  # float32, 4 MiB
    weights.copy_(torch.arange(1 << 20))
    handle = onecopy.share(weights)
    feed("first", handle)
    second = mp.get_context("spawn").Process(target=feed, args=("second", handle))
    second.start()
    second.join()
