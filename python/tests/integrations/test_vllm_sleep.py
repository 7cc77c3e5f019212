# SPDX-License-Identifier: Apache-2.0
"""vLLM's sleep mode with the weights in the store: nothing is lost, and no engine keeps a copy of its own.

The card is memory of the host that loses its content. vLLM's own allocator and a card are tested by nobody here.
"""

from __future__ import annotations

import json
import os

import pytest

torch = pytest.importorskip("torch")

from support.processes import TESTS, interpret

BEGIN = f"""
import json, logging, sys, types
sys.path.insert(0, {TESTS + "/integrations"!r})
import vllm_sleep_interface
allocator = vllm_sleep_interface.install()
import torch
import onecopy
from onecopy.integrations import vllm

vllm.register()
vllm.register()
store = onecopy.store.connect(framework="torch")
config = types.SimpleNamespace(enable_sleep_mode=True, sleep_mode_backend="onecopy", files={{}})
model = vllm_sleep_interface.Model(allocator)


def weights(value):
    return {{"a": torch.full((4000,), float(value)), "b": torch.full((8000,), -float(value))}}


def load(value):
    store.publish("llama", weights(value))
    import dataclasses
    given = dataclasses.make_dataclass("LoadConfig", ["load_format", "model_loader_extra_config"])
    loader = sys.modules["vllm.model_executor.model_loader"]._LOAD_FORMAT_TO_MODEL_LOADER["onecopy"]
    loader(given("onecopy", {{"store": "llama"}})).load_weights(model, config)


def contents(value):
    return [[float(value)], [-float(value)], [3.0], [5.0], [7.0], [6.0]]


backend = sys.modules["vllm.device_allocator.sleep_mode_backend"].SleepModeBackendFactory.create_backend(config)
WEIGHTS = 4 * 12000
"""

END = """
print(json.dumps("done"))
"""


@pytest.fixture
def run(store):
    def run(program):
        done = interpret(BEGIN + program + END)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout.splitlines()[-1]) == "done"
        return done.stderr

    return run


def test_an_engine_sleeps_without_a_copy_of_its_weights_and_wakes_with_all_of_its_memory(run):
    run("""
load(1)
for _ in range(2):
    backend.suspend(1)
    assert model.content()[0] != [1.0]
    assert allocator.private_bytes <= 2 * 4096  # the runtime's
    assert sum(copy.nbytes for _, copy in backend._others) < (64 << 10) - WEIGHTS + 8
    assert backend.state() == "SUSPENDED"
    backend.resume()
    assert model.content() == contents(1)
    assert backend.state() == "RUNNING"
""")


def test_weights_wake_before_the_kv_cache_and_after_it(run):
    run("""
load(1)
for order in (["weights"], ["kv_cache"]), (["kv_cache"], ["weights"]):
    backend.suspend(1)
    for tags in order:
        backend.resume(tags)
    assert model.content() == contents(1)
""")


def test_an_engine_wakes_with_its_own_version_and_not_with_a_newer_one(run):
    run("""
load(1)
backend.suspend(1)
for value in range(2, 6):
    store.publish("llama", weights(value))  # two are kept
backend.resume()
assert model.content() == contents(1)
""")


def test_an_update_through_the_store_is_what_an_engine_wakes_with(run):
    run("""
load(1)
engines = __import__("onecopy.integrations._vllm_engines").integrations._vllm_engines
engine = engines.OnecopyWeightTransferEngine(None, types.SimpleNamespace(model_config=config), torch.device("cpu"), model)
store.publish("llama", weights(2))
engine.receive_weights(engines.OnecopyUpdateInfo(store="llama"))
backend.suspend(1)
backend.resume()
assert model.content() == contents(2)
""")


def test_an_update_from_elsewhere_is_not_lost(run):
    said = run("""
logging.basicConfig()
load(1)
model.load_weights(weights(2).items())
backend.suspend(1)
assert allocator.private_bytes > WEIGHTS  # as vLLM's own backend
backend.resume()
assert model.content() == contents(2)
""")
    assert "the weights of this engine did not come from the store" in said


def test_level_2_discards_the_weights_as_vllms_own_backend_does(run):
    run("""
load(1)
backend.suspend(2)
backend.resume()
assert model.content()[0] != [1.0] and model.content()[5] == [6.0]
load(2)
assert model.content()[:2] == contents(2)[:2]
""")


def test_a_wake_that_fails_is_repeated(run):
    run("""
load(1)
backend.suspend(1)
reload = sys.modules["vllm.model_executor.model_loader.reload"]
initialize, reload.initialize_layerwise_reload = reload.initialize_layerwise_reload, None
try:
    backend.resume()
except TypeError:
    assert backend.state() != "RUNNING"
else:
    raise AssertionError
reload.initialize_layerwise_reload = initialize
backend.resume()
assert model.content() == contents(1)
""")


def test_a_reload_that_finds_no_version_does_not_touch_the_model(run):
    run("""
load(1)
store.delete("llama")
loaders = sys.modules["vllm.model_executor.model_loader"]
loader = object.__new__(loaders._LOAD_FORMAT_TO_MODEL_LOADER["onecopy"])
loader._handle, loader._object = "onecopy:nothing", None
try:
    loader.get_all_weights(config, model)  # vLLM begins a reload when this has returned
except onecopy.Error:
    pass
else:
    raise AssertionError
assert model.content() == contents(1)
""")


# --- adapters


ADAPTER = """
import dataclasses, os

@dataclasses.dataclass
class Request:
    lora_name: str
    lora_path: str
    lora_int_id: int = 1


class WorkerLoRAManager:
    def _load_adapter(self, request):
        import safetensors.torch
        tensors = safetensors.torch.load_file(f"{request.lora_path}/adapter_model.safetensors")
        for name, tensor in tensors.items():
            if "lora_B" in name:
                tensor *= 2  # as LoRALayerWeights.optimize()
        folder.append(request.lora_path)
        return tensors, json.load(open(f"{request.lora_path}/adapter_config.json"))


folder = []
lora = __import__("onecopy.integrations._vllm_lora").integrations._vllm_lora
for _ in range(2):
    lora.install(WorkerLoRAManager)
manager = WorkerLoRAManager()


def refused(path):
    try:
        manager._load_adapter(Request("sql", path))
    except onecopy.Error as error:
        return str(error)
"""


def test_an_adapter_comes_from_a_version_and_may_be_scaled_in_place(run):
    pytest.importorskip("safetensors")
    run(
        ADAPTER
        + """
tensors = {"x.lora_A.weight": torch.ones(2, 3), "x.lora_B.weight": torch.ones(3, 2)}
number = store.publish("sql", {**tensors, "adapter_config.json": b'{"r": 2}'})
found, config = manager._load_adapter(Request("sql", f"onecopy:sql@{number}"))
assert config == {"r": 2}
assert found["x.lora_A.weight"].eq(1).all() and found["x.lora_B.weight"].eq(2).all()
assert store.open("sql")["x.lora_B.weight"].eq(1).all()
assert not os.path.exists(folder[0])
"""
    )


def test_the_folder_of_a_process_that_was_killed_while_it_loaded_an_adapter_is_removed(run):
    pytest.importorskip("safetensors")
    run(
        ADAPTER
        + """
import signal, tempfile
tempfile.tempdir = tempfile.mkdtemp()
number = store.publish("sql", {"x": torch.ones(2), "adapter_config.json": b"{}"})
path = f"onecopy:sql@{number}"
if (child := os.fork()) == 0:
    with lora._folder(path):
        os.kill(os.getpid(), signal.SIGKILL)
os.waitpid(child, 0)
with lora._folder(path) as own:
    (left,) = {*os.listdir(tempfile.tempdir)} - {os.path.basename(own)}
    for folder in os.listdir(tempfile.tempdir):
        os.utime(os.path.join(tempfile.tempdir, folder), (0, 0))
    with lora._folder(path) as other:
        assert {*os.listdir(tempfile.tempdir)} == {os.path.basename(own), os.path.basename(other)}
os.rmdir(tempfile.tempdir)
"""
    )


def test_an_adapter_that_is_not_in_the_store_says_how_to_publish_it(run):
    pytest.importorskip("safetensors")
    run(
        ADAPTER
        + """
store.publish("plain", {"x": torch.ones(2)})
assert "onecopy:NAME@VERSION" in refused("onecopy:plain")
assert "onecopy:NAME@VERSION" in refused("onecopy:plain@last")
assert "bytes of its adapter_config.json" in refused("onecopy:plain@1")
assert "no version 7" in refused("onecopy:plain@7")
"""
    )


def test_a_path_of_a_folder_goes_to_vllm_as_it_is(run, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file({"x": torch.ones(1)}, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text("{}")
    run(
        ADAPTER
        + f"""
assert manager._load_adapter(Request("sql", {os.fspath(tmp_path)!r}))[1] == {{}}
"""
    )
