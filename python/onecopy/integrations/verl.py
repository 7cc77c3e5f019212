# SPDX-License-Identifier: Apache-2.0
"""The checkpoint engine "onecopy" of verl, with which rollout workers get each round's weights from the store::

    actor_rollout_ref.rollout.checkpoint_engine.backend=onecopy
    actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=onecopy.integrations.verl
    +actor_rollout_ref.rollout.checkpoint_engine.engine_kwargs.onecopy.store=actor

verl imports this module in each of its workers.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ._packages import Find, at_first_use

if TYPE_CHECKING:
    from ._verl_engine import OnecopyCheckpointEngine

__all__ = ["OnecopyCheckpointEngine"]

__getattr__: Find = at_first_use(__name__, OnecopyCheckpointEngine="._verl_engine")

if "verl" in sys.modules:
    from . import _verl_engine  # registers the engine  # noqa: F401
