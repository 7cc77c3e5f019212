# SPDX-License-Identifier: Apache-2.0
"""checkpoint-engine's worker with a trainer that has imported onecopy.multiprocessing: its own code, on the CPU.

It takes what reduce_tensor() gives apart, sends it through ZeroMQ, and calls the function with the arguments.
"""

import json
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("zmq")
pytest.importorskip("checkpoint_engine")

# There is no card here: the worker's device is one of which nothing has to be waited for.
WORKER = """
import json, sys, types
import torch, zmq
from checkpoint_engine import worker

nothing = types.SimpleNamespace(**{name: lambda: None for name in ("synchronize", "ipc_collect", "empty_cache")})
worker.DeviceManager = lambda: types.SimpleNamespace(device_module=nothing)
seen = []
worker.update_weights_from_ipc(
    zmq.Context(), sys.argv[1], None,
    run=lambda weights: seen.append({name: [list(w.shape), str(w.dtype), w.double().sum().item()] for name, w in weights}),
    post_hook=lambda: seen.append("done"),
)
import onecopy
print(json.dumps([seen, onecopy.stats()["opened_total"] > 0, onecopy.stats()["leases"]]))
"""

# Does the parameter server's side of the same conversation.
TRAINER = """
import subprocess, sys
import torch, zmq
import onecopy.multiprocessing
from torch.multiprocessing.reductions import reduce_tensor

socket = zmq.Context().socket(zmq.REQ)
address = f"ipc://{sys.argv[1]}"
socket.bind(address)
worker = subprocess.Popen([sys.executable, "-c", sys.stdin.read(), address], stdout=-1, text=True)
buffer = torch.empty(1 << 20, dtype=torch.uint8)
socket.send_pyobj(reduce_tensor(buffer))
assert socket.recv() == b""
for number in (1, 2):  # two buckets in one buffer
    buffer[:48].view(torch.float32).fill_(number)
    buffer[64:72].view(torch.bfloat16).fill_(number)
    socket.send_pyobj([
        {"name": "w", "shape": torch.Size([3, 4]), "dtype": torch.float32, "offset": 0},
        {"name": "b", "shape": (4,), "dtype": torch.bfloat16, "offset": 64},
    ])
    assert socket.recv() == b""
for _ in range(2):
    socket.send_pyobj(None)
    assert socket.recv() == b""
print(worker.communicate()[0], end="")
"""


def test_its_worker_reads_buckets_where_the_trainer_fills_them(tmp_path):
    result = subprocess.run(
        [sys.executable, "-c", TRAINER, str(tmp_path / "socket")],
        input=WORKER,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert result.returncode == 0, result.stderr
    seen, opened, leases = json.loads(result.stdout)
    assert seen[0] == {"w": [[3, 4], "torch.float32", 12], "b": [[4], "torch.bfloat16", 4]}
    assert seen[1] == {"w": [[3, 4], "torch.float32", 24], "b": [[4], "torch.bfloat16", 8]}
    assert seen[2] == "done" and opened and leases == 0
