# SPDX-License-Identifier: Apache-2.0
"""The backend "onecopy" of vLLM's weight transfer, with which an engine reads the trainer's weights in place.

vLLM calls ``register()`` in each of its processes, through its entry point ``vllm.general_plugins``. A trainer calls it
before ``WeightTransferTrainerFactory.trainer_init(onecopy.integrations.vllm.trainer_init_info(), ...)``.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any

from ._packages import need

__all__ = ["register", "trainer_init_info"]

NAME = "onecopy"
PACKAGE = "'vllm>=0.32'"
WHAT = "onecopy.integrations.vllm"
_ENGINES = "onecopy.integrations._vllm_engines"
_SLEEP = "onecopy.integrations._vllm_sleep"


def register() -> None:
    """Registers the backend with vLLM in this process. A second call has no effect.

    vLLM calls this function wherever both packages are installed, so a vLLM without weight transfer engines is not an
    error: a warning is logged.
    """
    factories = ("WeightTransferEngineFactory", "WeightTransferTrainerFactory")
    try:
        factory = need("vllm.distributed.weight_transfer.factory", PACKAGE, f"{WHAT}.register()", *factories)
    except ImportError as error:
        logging.getLogger("onecopy").warning("vLLM cannot use weight transfer by onecopy: %s", error)
        return
    for registry, name in zip(factories, ("OnecopyWeightTransferEngine", "OnecopyTrainerWeightTransferEngine")):
        engines = getattr(factory, registry)
        if NAME not in engines._registry:
            engines.register_engine(NAME, _ENGINES, name)
    _register_loader()
    _register_sleep()
    _register_adapters()


def _register_loader() -> None:
    """Registers ``--load-format onecopy``. vLLM needs the class itself, so its loaders are imported here."""
    loaders = need("vllm.model_executor.model_loader", PACKAGE, WHAT, "register_model_loader")
    if NAME not in loaders._LOAD_FORMAT_TO_MODEL_LOADER:
        loaders.register_model_loader(NAME)(need("onecopy.integrations._vllm_loader", PACKAGE, WHAT).OnecopyModelLoader)


def _register_sleep() -> None:
    """Registers ``--sleep-mode-backend onecopy``, which vLLM 0.32 and later have."""
    with contextlib.suppress(ImportError):
        backends = need("vllm.device_allocator.sleep_mode_backend", PACKAGE, WHAT, "SleepModeBackendFactory")
        if NAME not in backends.SleepModeBackendFactory._registry:
            backends.SleepModeBackendFactory.register_backend(NAME, _SLEEP, "OnecopySleepBackend")


def _register_adapters() -> None:
    """Lets the path of a LoRA adapter be ``onecopy:NAME@VERSION``."""
    with contextlib.suppress(ImportError):
        managers = need("vllm.lora.worker_manager", PACKAGE, WHAT, "WorkerLoRAManager")
        need("onecopy.integrations._vllm_lora", PACKAGE, WHAT).install(managers.WorkerLoRAManager)


def sleep_of(model_config: Any) -> Any:
    """Returns the module of the sleep mode backend, or None if the engine does not sleep with it."""
    chosen = getattr(model_config, "enable_sleep_mode", False) and model_config.sleep_mode_backend == NAME
    return need(_SLEEP, PACKAGE, WHAT) if chosen else None


def trainer_init_info(rank: int = 0, store: str | None = None) -> Any:
    """Returns the argument of ``WeightTransferTrainerFactory.trainer_init()`` for this backend.

    Args:
        rank: the rank of this process in the trainer; rank 0 talks to vLLM.
        store: the name of an object of ``onecopy.store``. Each round publishes a copy of the weights as its next
            version, which outlives the trainer. None lets the engine read the trainer's memory, without a copy.

    Raises:
        MissingPackage: vLLM is not installed, or its version lacks weight transfer engines.
    """
    engines = need(_ENGINES, PACKAGE, WHAT)
    return engines.OnecopyTrainerInitInfo(rank=rank, store=store)
