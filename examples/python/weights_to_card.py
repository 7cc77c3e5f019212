# SPDX-License-Identifier: Apache-2.0
"""One file of weights on a card (or in the host's memory, where there is none), opened by a second process."""

import json
import multiprocessing
import struct
import tempfile
from pathlib import Path

import onecopy


def write_weights(path: Path) -> None:
    """A safetensors file with two tensors of float32."""
    header = {
        "w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "F32", "shape": [3], "data_offsets": [24, 36]},
    }
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + struct.pack("<9f", *range(9)))


def engine(handle: str) -> None:
    weights = onecopy.open(handle)  # the memory that the other process has filled
    print("engine:", {name: weights[name].cpu().tolist() for name in weights})


def a_card() -> str:
    try:
        return str(onecopy.empty(1, device="cuda:0").device)
    except onecopy.Error:
        return "cpu"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        write_weights(Path(folder) / "model.safetensors")
        weights = onecopy.load(folder, a_card())
    handle = onecopy.share(weights)
    other = multiprocessing.get_context("spawn").Process(target=engine, args=(str(handle),))
    other.start()
    other.join()
