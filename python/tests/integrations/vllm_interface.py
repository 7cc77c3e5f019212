# SPDX-License-Identifier: Apache-2.0
"""The part of vLLM that onecopy plugs into: its own files from ONECOPY_VLLM, a folder with vLLM's package, or stubs.

The interface of vLLM 0.32 is stubs always. Of vLLM 0.33 the base classes and factories are the real ones with
ONECOPY_VLLM, and stubs with the same interface without. ``test_vllm_server.py`` runs vLLM itself.
"""

import contextlib
import importlib.util
import os
import sys
import types
from dataclasses import dataclass, field

FILES = os.environ.get("ONECOPY_VLLM")


def install(version="0.33"):
    """Puts the modules of that version of vLLM into sys.modules."""
    for name in ("vllm", "vllm.distributed", "vllm.distributed.weight_transfer", "vllm.config", "vllm.config.parallel",
                 "vllm.config.weight_transfer", "vllm.logger", "vllm.model_executor", "vllm.model_executor.model_loader",
                 "vllm.model_executor.model_loader.reload", "vllm.model_executor.model_loader.reload.layerwise", "vllm.model_executor.model_loader.default_loader"):  # fmt: skip
        module(name)
    sys.modules["vllm"].__version__ = f"{version}.0"
    sys.modules["vllm.config.parallel"].ParallelConfig = object
    sys.modules["vllm.config.weight_transfer"].WeightTransferConfig = object
    sys.modules["vllm.logger"].init_logger = __import__("logging").getLogger
    reload = sys.modules["vllm.model_executor.model_loader.reload"]
    reload.initialize_layerwise_reload, reload.finalize_layerwise_reload = initialize, finalize
    sys.modules["vllm.model_executor.model_loader.reload.layerwise"].get_layerwise_info = lambda layer: layer.info
    loader_stubs(sys.modules["vllm.model_executor.model_loader"])
    for name, stub in (("base", BASES[version]), ("factory", factory_stub)):
        full = f"vllm.distributed.weight_transfer.{name}"
        if FILES and version == "0.33":
            load(full, f"{FILES}/distributed/weight_transfer/{name}.py")
        else:
            stub(module(full))


class LayerInfo:
    """What vLLM's reload knows of a layer."""

    def __init__(self):
        self.load_numel, self.load_numel_total, self.loaded_weights, self.kernel_tensors = 0, None, [], None

    def can_load(self):
        return self.load_numel_total is not None


class Layer:
    """A layer of two weights, which replace the old ones once both have come."""

    def __init__(self):
        self.weights, self.info = {}, LayerInfo()

    def take(self, name, tensor):
        self.info.loaded_weights.append((name, tensor.clone()))
        self.info.load_numel += 1
        if self.info.load_numel == self.info.load_numel_total:
            self.weights, self.info = dict(self.info.loaded_weights), LayerInfo()


def initialize(model):
    """As vLLM's: from here on the layers have no weights to serve with."""
    model.calls.append("initialize")
    for layer in getattr(model, "modules", list)():
        layer.info.load_numel_total = 2
        layer.weights, layer.info.kernel_tensors = None, layer.weights


def finalize(model, config):
    """As vLLM's: a layer that has got only a part of its weights keeps what lies in its memory for the others."""
    model.calls.append(f"finalize {config}")
    for layer in getattr(model, "modules", list)():
        if layer.info.can_load():
            layer.weights = layer.info.kernel_tensors if layer.info.load_numel <= 0 else dict(layer.info.loaded_weights)
        layer.info = LayerInfo()


def loader_stubs(loaders):
    loaders._LOAD_FORMAT_TO_MODEL_LOADER = formats = {}
    loaders.register_model_loader = lambda name: lambda cls: formats.update({name: cls})

    class DefaultModelLoader:
        def __init__(self, load_config):
            self.load_config = load_config
            if load_config.model_loader_extra_config:
                raise ValueError("Unexpected extra config keys")

        def get_all_weights(self, model_config, model):
            yield from model_config.files.items()

        def load_weights(self, model, model_config):
            model.load_weights(self.get_all_weights(model_config, model))

    loaders.default_loader = sys.modules["vllm.model_executor.model_loader.default_loader"]
    loaders.default_loader.DefaultModelLoader = DefaultModelLoader


def install_ipc_engine():
    """vLLM's own ipc engine, from its files. There is no card here: torch's answers about one are made up."""
    import torch

    install()
    module("vllm.envs").VLLM_ALLOW_INSECURE_SERIALIZATION = True
    sys.modules["vllm"].envs = sys.modules["vllm.envs"]
    sys.modules["pybase64"] = __import__("base64")
    validation = module("vllm.model_executor.model_loader.mtp_validation")
    validation.disable_mtp_completeness_check = contextlib.nullcontext
    torch.accelerator.current_device_index = lambda: 0
    torch.cuda.get_device_properties = lambda device: types.SimpleNamespace(uuid="the card")
    torch.cuda.ipc_collect = torch.cuda._lazy_init = lambda: None
    for name in ("packed_tensor", "ipc_engine"):
        load(f"vllm.distributed.weight_transfer.{name}", f"{FILES}/distributed/weight_transfer/{name}.py")
    return sys.modules["vllm.distributed.weight_transfer.ipc_engine"]


def module(name):
    found = sys.modules[name] = types.ModuleType(name)
    found.__path__ = []
    return found


def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])


def base_stub(base):
    """What both versions have."""

    class WeightTransferEngine:
        def __init__(self, config, vllm_config, device, model):
            self.config, self.vllm_config, self.device, self.model = config, vllm_config, device, model
            self.model_config = vllm_config.model_config

        def parse_init_info(self, given):
            return self.init_info_cls(**given)

        def parse_update_info(self, given):
            return self.update_info_cls(**given)

    @dataclass
    class TrainerInitInfo:
        rank: int = field(kw_only=True)

        @property
        def is_sender(self):
            return self.rank == 0

    base.WeightTransferEngine = WeightTransferEngine
    base.WeightTransferInitInfo = type("WeightTransferInitInfo", (), {})
    base.WeightTransferUpdateInfo = type("WeightTransferUpdateInfo", (), {})
    base.TrainerInitInfo = TrainerInitInfo


def base_stub_of_033(base):
    base_stub(base)

    class TrainerWeightTransferEngine:
        def __init__(self, *, client, source=None, is_sender=True, rank=0):
            self.client, self.source, self.is_sender, self.rank = client, source, is_sender, rank

    class WeightSource:
        def owned_names(self, rank):
            return [meta.name for meta in self.metadata if meta.owners is None or rank in meta.owners]

    class ModuleSource(WeightSource):
        def __init__(self, module):
            self.module = module
            self.metadata = [types.SimpleNamespace(name=name, owners=None) for name, _ in module.named_parameters()]

        def implements_iter_full(self):
            return True

        def iter_full(self):
            yield from self.module.named_parameters()

    base.TrainerWeightTransferEngine = TrainerWeightTransferEngine
    base.ModuleSource = ModuleSource


def base_stub_of_032(base):
    base_stub(base)

    class TrainerWeightTransferEngine:
        def __init__(self, *, client, source=None, is_sender=True):
            self.client, self.source, self.is_sender = client, source, is_sender

    class ModuleSource:
        def __init__(self, module):
            self.module = module

        def __iter__(self):
            yield from self.module.named_parameters()

        def held_names(self):
            return None

    base.TrainerWeightTransferEngine = TrainerWeightTransferEngine
    base.ModuleSource = ModuleSource


BASES = {"0.32": base_stub_of_032, "0.33": base_stub_of_033}


def factory_stub(factory):
    class Registry:
        @classmethod
        def register_engine(cls, name, path, class_name):
            if name in cls._registry:
                raise ValueError(name)
            cls._registry[name] = lambda: getattr(importlib.import_module(path), class_name)

    class WeightTransferEngineFactory(Registry):
        _registry = {}

        @classmethod
        def create_engine(cls, config, vllm_config, device, model):
            return cls._registry[config.backend]()(config, vllm_config, device, model)

    class WeightTransferTrainerFactory(Registry):
        _registry = {}

        @classmethod
        def trainer_init(cls, init_info, *, client, source=None):
            return cls._registry[init_info.backend]().trainer_init(init_info, client=client, source=source)

    factory.WeightTransferEngineFactory = WeightTransferEngineFactory
    factory.WeightTransferTrainerFactory = WeightTransferTrainerFactory
