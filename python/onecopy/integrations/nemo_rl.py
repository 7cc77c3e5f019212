# SPDX-License-Identifier: Apache-2.0
"""A checkpoint engine for NeMo-RL, with which vLLM's workers get each refit's weights from the store::

policy:
  generation:
    refit_transport: onecopy.integrations.nemo_rl:Engine
    refit_cfg:
      onecopy.integrations.nemo_rl:Engine: {store: policy}
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._nemo_rl_engine import Engine

__all__ = ["Engine"]


def __getattr__(name: str) -> Any:
    if name != "Engine":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ._nemo_rl_engine import Engine

    return Engine
