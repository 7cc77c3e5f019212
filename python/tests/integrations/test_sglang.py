# SPDX-License-Identifier: Apache-2.0
"""onecopy.integrations.sglang: one handle in place of the weights, and SGLang's serializer with our import.

test_sglang_engine.py has SGLang itself. The serializer here is that of ONECOPY_SGLANG, a folder with SGLang's package (0.5.23 was tried), or a
stub with the same interface: an unpickler that takes names from a list only.
"""

import ast
import io
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import onecopy

torch = pytest.importorskip("torch")
sglang = pytest.importorskip("onecopy.integrations.sglang")
FILES = os.environ.get("ONECOPY_SGLANG")

STUB = """
class SafeUnpickler(pickle.Unpickler):
    ALLOWED_GLOBALS = {("builtins", "list"), ("torch", "Tensor"), ("torch", "Size"), ("torch", "device"), ("torch", "float32"),
                       ("torch", "FloatStorage"), ("torch._utils", "_rebuild_parameter"),
                       ("torch.nn.parameter", "Parameter"), ("collections", "OrderedDict"),
                       ("torch.multiprocessing.reductions", "rebuild_tensor"),
                       ("torch.multiprocessing.reductions", "rebuild_storage_empty"),
                       ("torch.multiprocessing.reductions", "rebuild_typed_storage"),
                       ("torch.storage", "UntypedStorage"), ("torch.storage", "TypedStorage")}

    def find_class(self, module, name):
        if (module, name) not in self.ALLOWED_GLOBALS:
            raise RuntimeError(f"Blocked unsafe global ({module}.{name})")
        return super().find_class(module, name)


class MultiprocessingSerializer:
    @staticmethod
    def serialize(obj):
        buffer = io.BytesIO()
        ForkingPickler(buffer).dump(obj)
        return buffer.getvalue()

    @staticmethod
    def deserialize(data):
        return SafeUnpickler(io.BytesIO(data)).load()
"""


def serializer_source():
    """The two classes, of SGLang itself where it is at hand: its module imports half of SGLang."""
    head = "import io, pickle, base64\nfrom multiprocessing.reduction import ForkingPickler\n"
    if not FILES:
        return head + STUB
    text = (Path(FILES) / "srt/utils/common.py").read_text()
    wanted = ("MultiprocessingSerializer", "SafeUnpickler", "_safe_load_torch_storage")
    found = [node for node in ast.parse(text).body if getattr(node, "name", None) in wanted]
    return head + "import torch\n" + "\n\n".join(ast.get_source_segment(text, node) for node in found)


# SGLang's own buckets, in a trainer and in the server.
BUCKETS = """
import importlib.util, os, sys, types

def tensor_bucket():
    name = "sglang.srt.weight_sync.tensor_bucket"
    for package in ("sglang", "sglang.srt", "sglang.srt.weight_sync"):  # pickle imports them
        sys.modules.setdefault(package, types.ModuleType(package))
    spec = importlib.util.spec_from_file_location(name, os.environ["ONECOPY_SGLANG"] + "/srt/weight_sync/tensor_bucket.py")
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
    return sys.modules[name].FlattenedTensorBucket
"""

# Handles a request as the server does, with a small stand-in for a model.
SERVER = (
    BUCKETS
    + """
import json, sys, types
sys.modules.update({name: types.ModuleType(name) for name in ("sglang", "sglang.srt", "sglang.srt.utils")})
common = sys.modules["sglang.srt.utils.common"] = types.ModuleType("sglang.srt.utils.common")
exec(json.loads(sys.stdin.readline()), vars(common))
import importlib, importlib.metadata
import onecopy

for plugin in importlib.metadata.entry_points(group="sglang.srt.plugins"):
    plugin.load()()


class Model:
    def __init__(self):
        self.sums, self.leases = {}, 0

    def load_weights(self, weights):
        self.sums.update({name: tensor.double().sum().item() for name, tensor in weights})
        self.leases = max(self.leases, onecopy.stats()["leases"])


def load(model, data, load_format):
    bucket = tensor_bucket() if load_format == "flattened_bucket" else None
    value = common.MultiprocessingSerializer.deserialize(bytes.fromhex(data))
    if bucket:
        return model.load_weights(bucket(**value).reconstruct_tensors())
    tensors = [(name, tensor.to("cpu")) for name, tensor in value]
    if not load_format:
        return model.load_weights(tensors)
    module, name = load_format.rsplit(".", 1)
    getattr(importlib.import_module(module), name)(model, tensors)


for line in sys.stdin:
    model = Model()
    try:
        load(model, *json.loads(line))
        answer = {"sums": model.sums, "leases": model.leases}
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(answer), flush=True)
"""
)


class Server:
    def __init__(self):
        self.process = subprocess.Popen([sys.executable, "-c", SERVER], stdin=-1, stdout=-1, text=True)
        self.ask_raw(serializer_source(), wait=False)

    def ask_raw(self, value, wait=True):
        self.process.stdin.write(json.dumps(value) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline()) if wait else None

    def update(self, named_tensors, load_format=None):
        space = {}
        exec(serializer_source(), space)
        data = space["MultiprocessingSerializer"].serialize(named_tensors)
        return self.ask_raw([data.hex(), load_format]) | {"bytes": len(data)}


@pytest.fixture(scope="module")
def server():
    server = Server()
    yield server
    server.process.communicate()


def test_an_offer_brings_all_weights_in_one_small_message(server):
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(20)])
    with torch.no_grad():
        model[3].weight.fill_(1)
    offer = sglang.offer(model.state_dict())
    answer = server.update(offer.named_tensors, offer.load_format)
    assert answer["sums"]["3.weight"] == 64 * 64 and len(answer["sums"]) == 40
    assert answer["leases"] > 0 and answer["bytes"] < 1000


def test_a_write_of_the_trainer_needs_no_further_copy(server):
    model = torch.nn.Linear(8, 8, bias=False)
    offer = sglang.offer(model.named_parameters())
    with torch.no_grad():
        model.weight.fill_(2)
    assert server.update(offer.named_tensors, offer.load_format)["sums"] == {"weight": 128}


def test_tensors_that_are_no_offer_are_loaded_as_they_are(server):
    class Model:
        def load_weights(self, weights):
            loaded.extend(weights)

    loaded = []
    sglang.load_weights(Model(), [("a", torch.ones(2))])
    assert loaded[0][0] == "a" and loaded[0][1].tolist() == [1, 1]


def test_an_offer_that_was_dropped_is_an_error(server):
    offer = sglang.offer({"w": torch.ones(4)})
    named = offer.named_tensors
    del offer
    refusal = server.update(named, "onecopy.integrations.sglang.load_weights")["error"]
    assert refusal.startswith("Error: StaleHandle: ") and refusal.endswith("the engine keeps its old weights")


def test_tensors_of_a_trainer_with_our_import_pass_the_list_of_names(run_python):
    """Of all kinds that weights are of; our other names are not let through."""
    import onecopy.multiprocessing as mp

    buffer = io.BytesIO()
    mp.reductions.init_reductions()
    tensors = [torch.ones(3), torch.nn.Parameter(torch.ones(3)), torch.ones(4, 4).t(), torch.empty(0),
               torch.ones(2, dtype=torch.bfloat16)]  # fmt: skip
    from multiprocessing.reduction import ForkingPickler

    ForkingPickler(buffer).dump(tensors)
    import pickletools

    ours = {
        name
        for _, name, _ in pickletools.genops(buffer.getvalue())
        if isinstance(name, str) and name.startswith("rebuild")
    }
    assert ours and ours <= {name for _, name in sglang._OURS}
    assert "rebuild_event" not in {name for _, name in sglang._OURS}


def answer_to(program):
    """The server's answer, which a trainer of its own process prints."""
    result = subprocess.run(
        [sys.executable, "-c", program, str(Path(__file__).parent)], capture_output=True, text=True, timeout=200
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_the_server_unpickles_them(server):
    program = (
        "import sys, json, torch, onecopy.multiprocessing\n"
        "sys.path.insert(0, sys.argv[1])\nimport test_sglang\n"
        "server = test_sglang.Server()\n"
        "weights = [('a', torch.ones(300)), ('b', torch.nn.Parameter(torch.ones(5)))]\n"
        "print(json.dumps(server.update(weights)))\nserver.process.communicate()\n"
    )
    answer = answer_to(program)
    assert answer.get("sums") == {"a": 300, "b": 5}, answer


def test_the_server_reads_a_bucket_where_the_trainer_has_it():
    """A bucket is one tensor and a list of names, which SGLang's own unpickler takes."""
    if not FILES:
        pytest.skip("wants sglang installed, or its files in ONECOPY_SGLANG")
    program = BUCKETS + (
        "import json, torch, onecopy.multiprocessing\n"
        "sys.path.insert(0, sys.argv[1])\nimport test_sglang\n"
        "server = test_sglang.Server()\n"
        "bucket = tensor_bucket()([('a', torch.ones(300)), ('b', torch.ones(5, 2, dtype=torch.bfloat16))])\n"
        "value = {'flattened_tensor': bucket.get_flattened_tensor(), 'metadata': bucket.get_metadata()}\n"
        "print(json.dumps(server.update(value, 'flattened_bucket')))\nserver.process.communicate()\n"
    )
    answer = answer_to(program)
    assert answer.get("sums") == {"a": 300, "b": 10} and answer["leases"] > 0, answer


def test_every_name_that_is_allowed_exists():
    import importlib

    for module, name in sglang._OURS:
        assert hasattr(importlib.import_module(module), name)


def test_no_weights_are_an_error():
    with pytest.raises(onecopy.InvalidArgument, match="no weights"):
        sglang.offer({})


def test_sglang_finds_the_plugin_by_its_entry_point():
    from importlib.metadata import entry_points

    found = {point.name: point.value for point in entry_points(group="sglang.srt.plugins")}
    assert found["onecopy"] == "onecopy.integrations.sglang:allow"
    assert pickle.loads(pickle.dumps(found)) == found
