# SPDX-License-Identifier: Apache-2.0
"""The part of vLLM that onecopy plugs into: its own files from ONECOPY_VLLM, a folder with vLLM's package, or stubs.

vLLM needs a card, and a torch of its own. With ONECOPY_VLLM the base classes and factories are the real ones of vLLM
0.33, the rest is stubs; without, those are stubs with the same interface, too.
"""

import contextlib
import importlib.util
import os
import sys
import types
from dataclasses import dataclass, field

FILES = os.environ.get("ONECOPY_VLLM")


def install():
    """Puts the modules into sys.modules."""
    for name in ("vllm", "vllm.distributed", "vllm.distributed.weight_transfer", "vllm.config", "vllm.config.parallel",
                 "vllm.config.weight_transfer", "vllm.logger", "vllm.model_executor", "vllm.model_executor.model_loader",
                 "vllm.model_executor.model_loader.reload"):  # fmt: skip
        module(name)
    sys.modules["vllm.config.parallel"].ParallelConfig = object
    sys.modules["vllm.config.weight_transfer"].WeightTransferConfig = object
    sys.modules["vllm.logger"].init_logger = __import__("logging").getLogger
    reload = sys.modules["vllm.model_executor.model_loader.reload"]
    reload.initialize_layerwise_reload = lambda model: model.calls.append("initialize")
    reload.finalize_layerwise_reload = lambda model, config: model.calls.append(f"finalize {config}")
    for name, stub in (("base", base_stub), ("factory", factory_stub)):
        full = f"vllm.distributed.weight_transfer.{name}"
        if FILES:
            load(full, f"{FILES}/distributed/weight_transfer/{name}.py")
        else:
            stub(module(full))


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
    class WeightTransferEngine:
        def __init__(self, config, vllm_config, device, model):
            self.config, self.vllm_config, self.device, self.model = config, vllm_config, device, model
            self.model_config = vllm_config.model_config

        def parse_init_info(self, given):
            return self.init_info_cls(**given)

        def parse_update_info(self, given):
            return self.update_info_cls(**given)

    class TrainerWeightTransferEngine:
        def __init__(self, *, client, source=None, is_sender=True, rank=0):
            self.client, self.source, self.is_sender, self.rank = client, source, is_sender, rank

    @dataclass
    class TrainerInitInfo:
        rank: int = field(kw_only=True)

        @property
        def is_sender(self):
            return self.rank == 0

    class ModuleSource:
        def __init__(self, module):
            self.module = module

        def implements_iter_full(self):
            return True

        def iter_full(self):
            yield from self.module.named_parameters()

    base.WeightTransferEngine = WeightTransferEngine
    base.TrainerWeightTransferEngine = TrainerWeightTransferEngine
    base.WeightTransferInitInfo = type("WeightTransferInitInfo", (), {})
    base.WeightTransferUpdateInfo = type("WeightTransferUpdateInfo", (), {})
    base.TrainerInitInfo = TrainerInitInfo
    base.ModuleSource = ModuleSource


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
