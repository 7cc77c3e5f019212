# SPDX-License-Identifier: Apache-2.0
"""verl's bucketed transfer with a trainer that has imported onecopy.multiprocessing: its own file, on the CPU.

The package itself wants vLLM's surroundings, so that its file is run beside stubs of what it takes from verl.utils.
`pip install --no-deps verl` is enough.
"""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("zmq")

# There is no card here: the device is one of which nothing has to be waited for.
LOAD = """
import importlib.util, json, sys, types
import torch

nothing = types.SimpleNamespace(**{name: lambda: None for name in ("synchronize", "ipc_collect", "empty_cache")})
async def steps(weights):
    for item in weights:
        yield item
for name, content in {
    "verl": {}, "verl.utils": {}, "verl.workers": {}, "verl.workers.rollout": {},
    "verl.utils.device": dict(get_device_id=lambda: 0, get_device_name=lambda: "cpu", get_torch_device=lambda: nothing,
                              is_support_ipc=lambda: True),
    "verl.workers.rollout.utils": dict(ensure_async_iterator=steps),
}.items():
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(content)
spec = importlib.util.spec_from_file_location("transfer", sys.argv[1])
transfer = importlib.util.module_from_spec(spec)
"""

ENGINE = (
    LOAD
    + """
spec.loader.exec_module(transfer)
seen = []
transfer.BucketedWeightReceiver(sys.argv[2], torch.device("cpu")).receive_weights(
    lambda weights, is_last: seen.append([{n: [list(w.shape), w.double().sum().item()] for n, w in weights}, is_last])
)
import onecopy
print(json.dumps([seen, onecopy.stats()["opened_total"] > 0, onecopy.stats()["leases"]]))
"""
)

TRAINER = (
    LOAD
    + """
import asyncio, subprocess
import onecopy.multiprocessing

spec.loader.exec_module(transfer)
engine = subprocess.Popen([sys.executable, "-c", sys.stdin.read(), *sys.argv[1:]], stdout=-1, text=True)
weights = {
    "w": torch.full((300, 1000), 1.0),          # most of the bucket of 1 MiB
    "b": torch.full((1000,), 2.0),
    "large": torch.full((1024, 512), 3.0),      # more than a bucket: a handle of its own
    "v": torch.full((100, 1000), 4.0),
}
sender = transfer.BucketedWeightSender(sys.argv[2], bucket_size_mb=1)
asyncio.run(sender.async_send_weights(iter(weights.items())))
print(engine.communicate()[0], end="")
"""
)


def transfer_file():
    verl = importlib.util.find_spec("verl")
    if verl is None:
        pytest.skip("wants verl installed")
    return Path(verl.submodule_search_locations[0]) / "workers/rollout/vllm_rollout/bucketed_weight_transfer.py"


def test_its_engine_reads_buckets_and_large_weights_where_the_trainer_has_them(tmp_path):
    arguments = [sys.executable, "-c", TRAINER, str(transfer_file()), f"ipc://{tmp_path}/socket"]
    result = subprocess.run(arguments, input=ENGINE, capture_output=True, text=True, timeout=200)
    assert result.returncode == 0, result.stderr
    seen, opened, leases = json.loads(result.stdout)
    assert {name: tensor for bucket, _ in seen for name, tensor in bucket.items()} == {
        "w": [[300, 1000], 300000],
        "b": [[1000], 2000],
        "large": [[1024, 512], 3 * 1024 * 512],
        "v": [[100, 1000], 400000],
    }
    assert [is_last for _, is_last in seen] == [False] * (len(seen) - 1) + [True]
    assert len(seen) > 1 and opened and leases == 0
