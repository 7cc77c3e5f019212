# SPDX-License-Identifier: Apache-2.0
"""onecopy.integrations.vllm: a trainer's weights reach a worker of vLLM without a buffer between them."""

import json
import os
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
vllm_interface.install({version!r})
import torch
import onecopy
from onecopy.integrations import vllm

vllm.register()
vllm.register()  # vLLM's plugins may be loaded again


class Model:
    def __init__(self):
        self.calls, self.leases = [], 0
        self.layers = {{"0": vllm_interface.Layer(), "1": vllm_interface.Layer()}}

    def modules(self):
        return self.layers.values()

    @property
    def weights(self):
        return {{name: weight for layer in self.modules() for name, weight in layer.weights.items()}}

    def load_weights(self, weights):
        self.calls.append("load")
        for name, tensor in weights:
            self.layers[name.split(".")[0]].take(name, tensor)
        self.leases = onecopy.stats()["leases"]


factory = sys.modules["vllm.distributed.weight_transfer.factory"]
model = Model()
config = types.SimpleNamespace(backend="onecopy")
engine = factory.WeightTransferEngineFactory.create_engine(
    config, types.SimpleNamespace(parallel_config=None, model_config="config"), torch.device("cpu"), model
)
active = False  # vLLM's worker takes one round at a time
for line in sys.stdin:
    method, given = json.loads(line)
    answer = None
    try:
        if method == "init":
            engine.init_transfer_engine(engine.parse_init_info(given))
        elif method == "start":
            if active:
                raise RuntimeError("a weight update is already active")
            engine.start_weight_update()
            active = True
        elif method == "update":
            active, was_active = False, active
            assert was_active
            engine.receive_weights(engine.parse_update_info(given))
            active = True
        elif method == "finish":
            assert active
            engine.finish_weight_update()
            active = False
        else:
            answer = {{"sums": {{name: w.double().sum().item() for name, w in model.weights.items()}},
                       "calls": model.calls, "leases": model.leases, "now": onecopy.stats()["leases"],
                       "own": onecopy.stats()["live_bytes"]}}
            model.calls = []
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
vllm_interface.install({version!r})
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


def refused(method, given=None):
    try:
        return ask(method, given)
    except RuntimeError as error:
        return str(error).split(":")[0]


vllm.register()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Linear(256, 1))
source = sys.modules["vllm.distributed.weight_transfer.base"].ModuleSource(model)
trainers = sys.modules["vllm.distributed.weight_transfer.factory"].WeightTransferTrainerFactory
trainer = trainers.trainer_init(vllm.trainer_init_info(), client=Client(), source=source)
answers = {{"said": []}}
for number in (1, 2):
    with torch.no_grad():
        model[0].weight.fill_(number)
    trainer.send_weights()
    answers["said"].append(ask("look"))
memory = model[0].weight.data_ptr()
live = onecopy.stats()["live_bytes"]
trainer.send_weights()
ask("look")
answers["same"] = memory == model[0].weight.data_ptr() and onecopy.stats()["live_bytes"] == live
answers["bytes"] = sum(p.nbytes for p in model.parameters())

program = "import onecopy; h = onecopy.share({{'x': onecopy.zeros(4)}}); print(h, flush=True); input()"
dead = subprocess.Popen([sys.executable, "-c", program], stdin=-1, stdout=-1, text=True)
handle = dead.stdout.readline().strip()
dead.kill()
dead.communicate()
answers["errors"] = []
for broken in ({{"handles": {{"cpu": handle}}}}, {{"handles": {{}}}}, {{"handles": {{"cpu": "onecopy:x"}}}}, {{"else": 1}}):
    ask("start")
    answers["errors"].append(refused("update", broken))
answers["after"] = ask("look")

# The model lacks the last name: first when no layer has all of its weights, then when one has.
ones = onecopy.full(4, 1)
answers["refused"] = []
for names in (["0.weight", "1.weight", "2.weight"], ["0.weight", "0.bias", "1.bias", "2.bias"]):
    handle = onecopy.share({{name: ones for name in names}})
    ask("start")
    answers["refused"].append([refused("update", {{"handles": {{"cpu": str(handle)}}}}), ask("look")["sums"]])

answers["published"] = []
publisher = trainers.trainer_init(vllm.trainer_init_info(store="model"), client=Client(), source=source)
for number in (5, 6):
    with torch.no_grad():
        model[0].weight.fill_(number)
    publisher.send_weights()
    answers["published"].append([ask("look")["sums"], onecopy.store.connect().open("model").version])
onecopy.store.connect().delete("model")
ask("start")
answers["deleted"] = [refused("update", {{"store": "model", "version": 2}}), ask("look")["sums"]]
onecopy.store.connect().stop()

ask("start")  # by a trainer that is killed then
with torch.no_grad():
    model[0].weight.fill_(3)
trainer.send_weights()
answers["next"] = ask("look")
worker.stdin.close()
worker.wait()
print(json.dumps(answers))
"""


@pytest.fixture(scope="module", params=["0.32", "0.33"])
def said(request, tmp_path_factory):
    about = {"tests": str(Path(__file__).parent), "version": request.param}
    environment = {**os.environ, "ONECOPY_STORE_DIR": str(tmp_path_factory.mktemp("place") / "store")}
    result = subprocess.run(
        [sys.executable, "-c", TRAINER.format(**about)], input=WORKER.format(**about),
        capture_output=True, text=True, timeout=200, env=environment,
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
    assert [answer["calls"] for answer in said["said"]] == 2 * [["initialize", "load", "finalize config"]]


def test_a_bad_update_is_an_error(said):
    dead, empty, damaged, unknown = said["errors"]
    assert (dead, empty, damaged) == ("OwnerDied", "ValueError", "BadHandle") and unknown in ("TypeError", "ValueError")


def test_a_dead_trainer_leaves_a_model_that_serves_its_old_weights(said):
    assert said["after"]["calls"] == []
    assert said["after"]["sums"] == said["said"][1]["sums"]


def test_a_model_that_refuses_a_weight_keeps_its_old_ones_but_for_layers_that_have_all_new_ones(said):
    old = said["after"]["sums"]
    (first, none_new), (second, one_new) = said["refused"]
    assert first == second == "KeyError"
    assert none_new == old
    assert one_new == old | {"0.weight": 4, "0.bias": 4}


def test_a_trainer_may_publish_each_round_in_the_store(said):
    versions = said["published"]
    assert [(sums["0.weight"], version) for sums, version in versions] == [(5 * 256 * 256, 1), (6 * 256 * 256, 2)]


def test_a_version_that_was_deleted_leaves_a_model_that_serves_its_old_weights(said):
    assert said["deleted"] == ["StaleHandle", said["published"][-1][0]]


def test_the_next_round_works_where_a_dead_trainer_has_left_one_open(said):
    assert said["next"]["sums"]["0.weight"] == 3 * 256 * 256


IN_A_PROGRAM_OF_ITS_OWN = (
    f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import vllm_interface, types\n"
)


@pytest.mark.parametrize(
    ("version", "source"),
    [
        ("0.32", "None"),
        ("0.32", "types.SimpleNamespace(held_names=lambda: ['a'])"),
        ("0.33", "types.SimpleNamespace(implements_iter_full=lambda: False)"),
        ("0.33", "types.SimpleNamespace(implements_iter_full=lambda: True, owned_names=lambda rank: [], metadata=[1])"),
    ],
)
def test_a_source_of_a_part_of_the_model_is_refused(run_python, version, source):
    program = IN_A_PROGRAM_OF_ITS_OWN + (
        f"vllm_interface.install({version!r})\nimport onecopy\nfrom onecopy.integrations import vllm, _vllm_engines\n"
        f"try:\n    _vllm_engines.OnecopyTrainerWeightTransferEngine.trainer_init(\n"
        f"        vllm.trainer_init_info(), client=None, source={source})\n"
        "except onecopy.InvalidArgument as error:\n    print(error)\n"
    )
    assert "the whole model on each rank" in run_python(program)


def test_without_vllm_the_error_names_the_package(run_python):
    program = (
        "import sys\nsys.modules['vllm'] = None\nimport onecopy\nfrom onecopy.integrations import vllm\nvllm.register()\n"
        "try:\n    vllm.trainer_init_info()\nexcept onecopy.MissingPackage as error:\n    print(error)\n"
    )
    assert "pip install 'vllm>=0.32'" in run_python(program, stderr=None)


def test_an_older_vllm_is_named_with_the_version_that_is_needed(run_python):
    """First a factory and a base without the names of 0.32, then no such modules at all."""
    program = IN_A_PROGRAM_OF_ITS_OWN + (
        "vllm_interface.install()\nimport onecopy, logging\nfrom onecopy.integrations import vllm\n"
        "logging.getLogger('onecopy').addHandler(logging.StreamHandler(sys.stdout))\n"
        "sys.modules['vllm'].__version__ = '0.12.0'\n"
        "del sys.modules['vllm.distributed.weight_transfer.base'].TrainerInitInfo\n"
        "del sys.modules['vllm.distributed.weight_transfer.factory'].WeightTransferTrainerFactory\n"
        "vllm.register()\n"
        "try:\n    vllm.trainer_init_info()\nexcept onecopy.MissingPackage as error:\n    print(error)\n"
        "for name in [name for name in sys.modules if name.startswith('vllm.')]: del sys.modules[name]\n"
        "try:\n    vllm.trainer_init_info()\nexcept onecopy.MissingPackage as error:\n    print(error)\n"
    )
    warning, lacks_a_name, lacks_a_module = run_python(program, stderr=None).splitlines()
    assert warning.startswith("vLLM cannot use weight transfer by onecopy: onecopy.integrations.vllm.register() needs")
    for line in (warning, lacks_a_name, lacks_a_module):
        assert (
            "needs 'vllm>=0.32'; the installed vllm 0.12.0 has no vllm." in line and "pip install 'vllm>=0.32'" in line
        )


LOADER = (
    IN_A_PROGRAM_OF_ITS_OWN
    + """
vllm_interface.install()
import dataclasses, onecopy
from onecopy.integrations import vllm

@dataclasses.dataclass
class LoadConfig:
    model_loader_extra_config: object
    load_format: str = "onecopy"

vllm.register()
loader = sys.modules["vllm.model_executor.model_loader"]._LOAD_FORMAT_TO_MODEL_LOADER["onecopy"]
"""
)


def test_a_server_loads_its_first_weights_from_a_handle(run_python):
    program = LOADER + (
        "handle = onecopy.share({'a': onecopy.full(3, 2), 'b': onecopy.zeros(2)})\n"
        "model = types.SimpleNamespace(load_weights=lambda weights: print({n: t.sum().item() for n, t in weights}))\n"
        "made = loader(LoadConfig({'handle': str(handle)}))\n"
        "made.download_model(None)\nmade.load_weights(model, None)\n"
    )
    assert run_python(program).strip() == "{'a': 6.0, 'b': 0.0}"


def test_the_first_server_publishes_its_files_and_the_next_needs_none(run_python, tmp_path, monkeypatch):
    monkeypatch.setenv("ONECOPY_STORE_DIR", str(tmp_path / "store"))
    program = LOADER + (
        "model = types.SimpleNamespace(load_weights=lambda weights: print({n: t.sum().item() for n, t in weights}))\n"
        "for files in ({'a': onecopy.full(3, 2).torch()}, {}):\n"
        "    loader(LoadConfig({'store': 'llama'})).load_weights(model, types.SimpleNamespace(files=files))\n"
        "onecopy.store.connect().stop()\n"
    )
    assert run_python(program).split("\n") == ["{'a': 6.0}", "{'a': 6.0}", ""]


@pytest.mark.parametrize("extra", [{}, {"handle": 1}, None, {"handle": "onecopy:x", "store": "llama"}])
def test_a_server_without_a_handle_is_told_how_to_name_it(run_python, extra):
    program = (
        LOADER
        + f"try:\n    loader(LoadConfig({extra!r}))\nexcept onecopy.InvalidArgument as error:\n    print(error)\n"
    )
    assert '--model-loader-extra-config \'{"handle": "onecopy:...' in run_python(program)


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
from onecopy.multiprocessing import _storages, _tensors

def as_of_a_card(tensor):
    "reduce_tensor() of a tensor on a card, of one in the CPU's memory."
    handle, begin = _storages.block_handle(tensor.untyped_storage(), tensor.dtype)
    return None, _tensors._device_arguments(tensor, handle, begin)

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
