# SPDX-License-Identifier: Apache-2.0
"""A checkpoint engine for NeMo-RL, with which vLLM's workers get each refit's weights from the store::

policy:
  generation:
    refit_transport: onecopy.integrations.nemo_rl:Engine
    refit_cfg:
      onecopy.integrations.nemo_rl:Engine: {store: policy}
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._packages import Find, at_first_use

if TYPE_CHECKING:
    from ._nemo_rl_engine import Engine

__all__ = ["Engine"]

__getattr__: Find = at_first_use(__name__, Engine="._nemo_rl_engine")
