# SPDX-License-Identifier: Apache-2.0
"""The checkpoint engine "onecopy" of verl, with which rollout workers get each round's weights from the store::

    actor_rollout_ref.rollout.checkpoint_engine.backend=onecopy
    actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=onecopy.integrations.verl
    +actor_rollout_ref.rollout.checkpoint_engine.engine_kwargs.onecopy.store=actor

verl imports this module in each of its workers.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._verl_engine import OnecopyCheckpointEngine

__all__ = ["OnecopyCheckpointEngine"]


def __getattr__(name: str) -> Any:
    if name != "OnecopyCheckpointEngine":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ._verl_engine import OnecopyCheckpointEngine

    return OnecopyCheckpointEngine


if "verl" in sys.modules:
    from . import _verl_engine  # registers the engine  # noqa: F401
