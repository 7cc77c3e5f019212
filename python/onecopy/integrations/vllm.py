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
_ENGINES = "onecopy.integrations._vllm_engines"
_PACKAGE = "'vllm>=0.33'"


def register() -> None:
    """
    Makes the backend known to vLLM in this process; calling it again changes nothing.

    A vLLM without weight transfer engines is left as it is, with a warning in the log of ``onecopy``: this is called
    in all of its processes wherever both packages are installed.
    """
    try:
        factory = need("vllm.distributed.weight_transfer.factory", _PACKAGE, "onecopy.integrations.vllm.register()")
    except ImportError as error:
        logging.getLogger("onecopy").warning("vLLM gets no weight transfer by onecopy: %s", error)
        return
    for registry, name in (
        (factory.WeightTransferEngineFactory, "OnecopyWeightTransferEngine"),
        (factory.WeightTransferTrainerFactory, "OnecopyTrainerWeightTransferEngine"),
    ):
        if NAME not in registry._registry:
            registry.register_engine(NAME, _ENGINES, name)


def trainer_init_info(rank: int = 0) -> Any:
    """
    The argument of ``WeightTransferTrainerFactory.trainer_init()`` for this backend.

    Args:
        rank: of this process among the trainer's; rank 0 talks to vLLM.

    Raises:
        MissingPackage: vLLM is not installed, or has no weight transfer engines.
    """
    engines = need(_ENGINES, _PACKAGE, "onecopy.integrations.vllm")
    return engines.OnecopyTrainerInitInfo(rank=rank)
