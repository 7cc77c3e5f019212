# SPDX-License-Identifier: Apache-2.0
"""vLLM's weight transfer by the backend "onecopy": an engine reads the trainer's weights where they are.

vLLM calls ``register()`` itself in each of its processes, by its entry point ``vllm.general_plugins``. A trainer calls
it before ``WeightTransferTrainerFactory.trainer_init(onecopy.integrations.vllm.trainer_init_info(), ...)``.
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
    """Makes the backend known to vLLM in this process; calling it again changes nothing.

    A vLLM without weight transfer engines is left as it is, with a warning in the log of ``onecopy``: this is called
    in all of its processes wherever both packages are installed.
    """
    factories = ("WeightTransferEngineFactory", "WeightTransferTrainerFactory")
    try:
        factory = need("vllm.distributed.weight_transfer.factory", PACKAGE, f"{WHAT}.register()", *factories)
    except ImportError as error:
        logging.getLogger("onecopy").warning("vLLM gets no weight transfer by onecopy: %s", error)
        return
    for registry, name in zip(factories, ("OnecopyWeightTransferEngine", "OnecopyTrainerWeightTransferEngine")):
        engines = getattr(factory, registry)
        if NAME not in engines._registry:
            engines.register_engine(NAME, _ENGINES, name)
    _register_loader()


def _register_loader() -> None:
    """Makes ``--load-format onecopy`` known. vLLM takes only classes, so that its loaders are imported here."""
    loaders = need("vllm.model_executor.model_loader", PACKAGE, WHAT, "register_model_loader")
    if NAME not in loaders._LOAD_FORMAT_TO_MODEL_LOADER:
        loaders.register_model_loader(NAME)(need("onecopy.integrations._vllm_loader", PACKAGE, WHAT).OnecopyModelLoader)


def trainer_init_info(rank: int = 0) -> Any:
    """Returns the argument of ``WeightTransferTrainerFactory.trainer_init()`` for this backend.

    Args:
        rank: the rank of this process among the trainer's; rank 0 talks to vLLM.

    Raises:
        MissingPackage: vLLM is not installed, or the installed version has no weight transfer engines.
    """
    engines = need(_ENGINES, PACKAGE, WHAT)
    return engines.OnecopyTrainerInitInfo(rank=rank)
