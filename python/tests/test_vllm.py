# SPDX-License-Identifier: Apache-2.0
"""onecopy.integrations.vllm: a trainer's weights reach a worker of vLLM without a buffer between them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import vllm_interface

pytest.importorskip("torch")

# The worker: vLLM's part of one, around a small stand-in for a model. One line of json in, one out.
WORKER = """
import json, sys, types
sys.path.insert(0, {tests!r})
import vllm_interface
vllm_interface.install()
import torch
import onecopy
from onecopy.integrations import vllm

vllm.register()
vllm.register()  # vLLM's plugins may be loaded again


class Model:
    def __init__(self):
        self.calls = []

    def load_weights(self, weights):
        self.calls.append("load")
        self.weights = {{name: tensor.clone() for name, tensor in weights}}
        self.leases = onecopy.stats()["leases"]


factory = sys.modules["vllm.distributed.weight_transfer.factory"]
model = Model()
config = types.SimpleNamespace(backend="onecopy")
engine = factory.WeightTransferEngineFactory.create_engine(
    config, types.SimpleNamespace(parallel_config=None, model_config="config"), torch.device("cpu"), model
)
for line in sys.stdin:
    method, given = json.loads(line)
    answer = None
    try:
        if method == "init":
            engine.init_transfer_engine(engine.parse_init_info(given))
        elif method == "start":
            engine.start_weight_update()
        elif method == "update":
            engine.receive_weights(engine.parse_update_info(given))
        elif method == "finish":
            engine.finish_weight_update()
        else:
            answer = {{"sums": {{name: w.double().sum().item() for name, w in model.weights.items()}},
                       "calls": model.calls, "leases": model.leases, "now": onecopy.stats()["leases"],
                       "own": onecopy.stats()["live_bytes"]}}
    except Exception as error:
        answer = {{"error": f"{{type(error).__name__}}: {{error}}"}}
    print(json.dumps(answer), flush=True)
engine.shutdown()
"""

# The trainer, with a client that talks to the worker as vLLM's over HTTP does: in json.
TRAINER = """
import json, subprocess, sys
sys.path.insert(0, {tests!r})
import vllm_interface
vllm_interface.install()
import torch
import onecopy
from onecopy.integrations import vllm

worker = subprocess.Popen([sys.executable, "-c", sys.stdin.read()], stdin=-1, stdout=-1, text=True)


class Client:
    def __getattr__(self, name):
        words = {{"init_weight_transfer_engine": "init", "start_weight_update": "start", "update_weights": "update",
                  "finish_weight_update": "finish"}}
        return lambda given=None: ask(words[name], given)


def ask(method, given=None):
    worker.stdin.write(json.dumps([method, given]) + "\\n")
    worker.stdin.flush()
    answer = json.loads(worker.stdout.readline())
    if answer and "error" in answer:
        raise RuntimeError(answer["error"])
    return answer


vllm.register()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Linear(256, 1))
source = sys.modules["vllm.distributed.weight_transfer.base"].ModuleSource(model)
trainers = sys.modules["vllm.distributed.weight_transfer.factory"].WeightTransferTrainerFactory
trainer = trainers.trainer_init(vllm.trainer_init_info(), client=Client(), source=source)
said = []
for number in (1, 2):
    with torch.no_grad():
        model[0].weight.fill_(number)
    trainer.send_weights()
    said.append(ask("look"))
memory = model[0].weight.data_ptr()
live = onecopy.stats()["live_bytes"]
trainer.send_weights()
same = memory == model[0].weight.data_ptr() and onecopy.stats()["live_bytes"] == live
errors = []
for broken in ({{"handles": {{}}}}, {{"handles": {{"cpu": "onecopy:x"}}}}, {{"else": 1}}):
    try:
        ask("update", broken)
    except RuntimeError as error:
        errors.append(str(error).split(":")[0])
worker.stdin.close()
worker.wait()
print(json.dumps({{"said": said, "same": same, "errors": errors, "bytes": sum(p.nbytes for p in model.parameters())}}))
"""


@pytest.fixture(scope="module")
def said():
    tests = str(Path(__file__).parent)
    result = subprocess.run(
        [sys.executable, "-c", TRAINER.format(tests=tests)], input=WORKER.format(tests=tests),
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_each_round_brings_the_weights_of_that_moment(said):
    first, second = said["said"]
    assert first["sums"]["0.weight"] == 256 * 256 and second["sums"]["0.weight"] == 2 * 256 * 256
    assert sorted(first["sums"]) == ["0.bias", "0.weight", "1.bias", "1.weight"]


def test_the_worker_reads_them_where_they_are(said):
    assert all(answer["leases"] > 0 and answer["own"] < said["bytes"] / 8 for answer in said["said"])


def test_nothing_is_kept_between_rounds(said):
    assert [answer["now"] for answer in said["said"]] == [0, 0]
    assert said["same"] is True


def test_the_model_is_reloaded_layer_by_layer_as_vllm_wants_it(said):
    assert said["said"][0]["calls"] == ["initialize", "load", "finalize config"]


def test_a_bad_update_is_an_error(said):
    assert said["errors"] == ["ValueError", "BadHandle", said["errors"][2]] and said["errors"][2] in (
        "TypeError",
        "ValueError",
    )


def test_without_vllm_the_error_names_the_package(run_python):
    program = (
        "import sys\nsys.modules['vllm'] = None\nimport onecopy\nfrom onecopy.integrations import vllm\nvllm.register()\n"
        "try:\n    vllm.trainer_init_info()\nexcept onecopy.MissingPackage as error:\n    print(error)\n"
    )
    assert "pip install 'vllm>=0.33'" in run_python(program, stderr=None)


def test_vllm_finds_the_plugin_by_its_entry_point():
    from importlib.metadata import entry_points

    found = {point.name: point.value for point in entry_points(group="vllm.general_plugins")}
    assert found["onecopy"] == "onecopy.integrations.vllm:register"


# --- vLLM's own ipc engine, in a trainer with our import ---------------------------------------------

IPC_WORKER = """
import sys, types
sys.path.insert(0, sys.argv[1])
import vllm_interface
ipc = vllm_interface.install_ipc_engine()
import torch

class Model:
    def load_weights(self, weights):
        self.weights = dict(weights)

    calls = []

assert "onecopy" not in sys.modules
model = Model()
config = types.SimpleNamespace(parallel_config=None, model_config=None)
no_card = types.SimpleNamespace(index=torch.empty(0).get_device())
engine = ipc.IPCWeightTransferEngine(None, config, no_card, model)
engine.init_transfer_engine(engine.parse_init_info({"packed": False}))
engine.start_weight_update()
import json
engine.receive_weights(engine.parse_update_info(json.loads(sys.stdin.readline())))
engine.finish_weight_update()
print(json.dumps({name: weight.sum().item() for name, weight in model.weights.items()}), flush=True)
sys.stdin.readline()
print(json.dumps({name: weight.sum().item() for name, weight in model.weights.items()}), flush=True)
"""

IPC_TRAINER = """
import base64, json, pickle, subprocess, sys
sys.path.insert(0, sys.argv[1])
import vllm_interface
ipc = vllm_interface.install_ipc_engine()
import torch
import onecopy.multiprocessing
from onecopy.multiprocessing import reductions

def as_of_a_card(tensor):
    "reduce_tensor() of a tensor on a card, of one in the CPU's memory."
    handle, begin = reductions._block_handle(tensor.untyped_storage(), tensor.dtype)
    return None, reductions._device_arguments(tensor, handle, begin)

ipc.reduce_tensor = as_of_a_card
worker = subprocess.Popen([sys.executable, "-c", sys.stdin.read(), sys.argv[1]], stdin=-1, stdout=-1, text=True)

def ask(text):
    worker.stdin.write(text + "\\n")
    worker.stdin.flush()
    print(worker.stdout.readline(), end="")

class Client:
    def __getattr__(self, name):
        return lambda *given: None

    def update_weights(self, info):  # as vLLM's client for HTTP
        handles = info.pop("ipc_handles")
        ask(json.dumps({**info, "ipc_handles_pickled": base64.b64encode(pickle.dumps(handles)).decode()}))

model = torch.nn.Linear(300, 2)
for parameter in model.parameters():
    torch.nn.init.ones_(parameter)
source = sys.modules["vllm.distributed.weight_transfer.base"].ModuleSource(model)
ipc.IPCTrainerWeightTransferEngine.trainer_init(ipc.IPCTrainerInitInfo(rank=0), client=Client(), source=source).send_weights()
torch.nn.init.zeros_(model.bias)
ask("look")
"""


def test_vllms_own_ipc_engine_opens_weights_of_a_trainer_with_our_import():
    """In its worker, which imports nothing of ours; both have one memory. Its packed buffer wants a card."""
    if not vllm_interface.FILES:
        pytest.skip("wants vllm installed, or its files in ONECOPY_VLLM")
    command = [sys.executable, "-c", IPC_TRAINER, str(Path(__file__).parent)]
    result = subprocess.run(command, input=IPC_WORKER, capture_output=True, text=True, timeout=200)
    assert result.returncode == 0, result.stderr
    assert [json.loads(line) for line in result.stdout.splitlines()] == [
        {"weight": 600, "bias": 2},
        {"weight": 600, "bias": 0},
    ]
