# SPDX-License-Identifier: Apache-2.0
"""Weights that survive a crash: run `publish` in one terminal and `serve` in others, and kill any of them."""

import os, signal, sys, tempfile, time

import torch
import onecopy
import onecopy.multiprocessing as mp


def publish() -> None:
    store = onecopy.store.connect()  # starts the keeper if there is none
    for step in range(1, 1000):
        store.publish("weights", {f"layer.{i}": torch.full((1000,), float(step)) for i in range(100)})
        time.sleep(1)


def serve() -> None:
    store = onecopy.store.connect()
    live = store.follow("weights")  # tensors whose addresses never change
    for version in store.watch("weights"):
        live.update()  # all of them change together
        values = {float(tensor[0]) for tensor in live.values()}
        print(f"version {version}, every tensor holds {values}, keeper {store.keeper()}", flush=True)


def main() -> None:
    os.environ["ONECOPY_STORE_DIR"] = tempfile.mkdtemp()  # a store of this program's own
    publisher = mp.get_context("spawn").Process(target=publish)
    publisher.start()
    store = onecopy.store.connect()
    next(store.watch("weights"))
    first = store.open("weights")
    publisher.kill()
    publisher.join()
    for half in ("worker", "guard"):
        os.kill(store.keeper()[half], signal.SIGKILL)
        weights = store.open("weights", first.version)
        values = {float(tensor[0]) for tensor in weights.values()}
        print(f"publisher and {half} killed: {len(weights)} tensors, of one version: {values == {first.version}}")
    store.stop()


if __name__ == "__main__":
    {"publish": publish, "serve": serve, "": main}[sys.argv[1] if len(sys.argv) > 1 else ""]()
