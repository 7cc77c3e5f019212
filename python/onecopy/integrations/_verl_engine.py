# SPDX-License-Identifier: Apache-2.0
"""verl's checkpoint engine over the store."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterable
from typing import Any

from ._packages import need
from ._rounds import Rounds, on_the_card

_base = need(
    "verl.checkpoint_engine", "'verl>=0.9'", "onecopy.integrations.verl", "CheckpointEngine", "CheckpointEngineRegistry"
)


@_base.CheckpointEngineRegistry.register("onecopy")
class OnecopyCheckpointEngine(_base.CheckpointEngine):  # type: ignore[name-defined]
    """Publishes the weights of a round by the trainer's rank 0, and opens them in each rollout worker.

    Before a round, rank 0 names the current version, and the rollout workers wait for a newer one. The version has the
    step as its attribute ``global_steps``. Trainer and rollout workers run on one host, or on hosts whose stores follow
    the store of the trainer.

    Args:
        bucket_size: ignored, since the weights are not packed.
        is_master: whether this is the trainer's rank 0.
        store: the name of an object of the store.
        keep: the number of versions to keep.
        timeout: how many seconds a rollout worker waits for the trainer.
    """

    wire_format = "named_tensors"

    def __init__(
        self, bucket_size: int, is_master: bool = False, store: str = "", keep: int = 2, timeout: float = 600
    ) -> None:
        self._is_master = is_master
        self._rounds = Rounds(store, keep, timeout, "the checkpoint engine onecopy")
        self._after: int | None = None

    def prepare(self) -> dict[str, Any]:
        """Returns the number of the current version, in rank 0."""
        return {"version": self._rounds.current() if self._is_master else 0}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Returns the number that the version of this round must exceed, for each worker."""
        after = max(each["version"] for each in metadata)
        return {"after": [after] * actor_wg_world_size}, {"after": [after] * rollout_world_size}

    def init_process_group(self, after: int) -> None:
        """Begins a round."""
        self._after = after

    def finalize(self) -> None:
        """Ends the round: a rollout worker that receives without another one gets the current version."""
        self._after = None

    async def send_weights(self, weights: Iterable[tuple[str, Any]], global_steps: int | None = None) -> None:
        """Publishes the weights in rank 0. The other ranks take part in making them."""
        if self._is_master:
            self._rounds.send(weights, {} if global_steps is None else {"global_steps": str(global_steps)})
            return
        for _ in weights:
            pass

    async def receive_weights(self, global_steps: int | None = None) -> AsyncGenerator[tuple[str, Any], None]:
        """Yields the names and tensors of the round's version.

        Raises:
            Timeout: the trainer has published no version.
        """
        version = await self._rounds.receive(self._after)
        logging.getLogger("onecopy").info("loading version %d of %r", version.version, version.attributes)
        for each in on_the_card(version):
            yield each
