# SPDX-License-Identifier: Apache-2.0
"""The backend "onecopy" of vLLM's weight transfer, with which an engine reads the trainer's weights in place.

vLLM calls ``register()`` in each of its processes, through its entry point ``vllm.general_plugins``. A trainer calls it
before ``WeightTransferTrainerFactory.trainer_init(onecopy.integrations.vllm.trainer_init_info(), ...)``.
"""

from __future__ import annotations

import logging
from typing import Any

from ._packages import need

__all__ = ["register", "trainer_init_info"]

NAME = "onecopy"
PACKAGE = "'vllm>=0.32'"
WHAT = "onecopy.integrations.vllm"
_ENGINES = "onecopy.integrations._vllm_engines"


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


def _register_loader() -> None:
    """Registers ``--load-format onecopy``. vLLM needs the class itself, so its loaders are imported here."""
    loaders = need("vllm.model_executor.model_loader", PACKAGE, WHAT, "register_model_loader")
    if NAME not in loaders._LOAD_FORMAT_TO_MODEL_LOADER:
        loaders.register_model_loader(NAME)(need("onecopy.integrations._vllm_loader", PACKAGE, WHAT).OnecopyModelLoader)


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
