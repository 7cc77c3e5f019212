# SPDX-License-Identifier: Apache-2.0
"""NeMo-RL's checkpoint engine over the store."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterable
from typing import Any

from ._packages import need
from ._rounds import Rounds, on_the_card

_base = need(
    "nemo_rl.utils.checkpoint_engines.base", "nemo-rl", "onecopy.integrations.nemo_rl", "CheckpointEngine"
)  # fmt: skip


class Engine(_base.CheckpointEngine):  # type: ignore[name-defined]
    """Publishes the weights of a refit by the policy's rank 0, and opens them in each rollout worker.

    NeMo-RL runs sender and receivers of a refit at the same time, and tells neither which step it is. The policy
    therefore names the current version in ``prepare()``, and a rollout worker takes a version with a number above that
    and above the number of its last refit.

    Args:
        bucket_size: the max bytes of a batch.
        store: the name of an object of the store.
        keep: the number of versions to keep.
        timeout: how many seconds a rollout worker waits for the policy.
        release_after_refit: ignored, since nothing is kept between refits.
    """

    def __init__(
        self, bucket_size: int, store: str = "", keep: int = 2, timeout: float = 600, release_after_refit: bool = False
    ) -> None:
        self._bucket_size = bucket_size
        self._rounds = Rounds(store, keep, timeout, "onecopy.integrations.nemo_rl:Engine")
        self._is_sender = False
        self._after: int | None = None

    def prepare(self) -> dict[str, Any]:
        """Returns the number of the current version."""
        return {"version": self._rounds.current()}

    def init_policy_process_group(
        self, *, worker_rank: int, train_world_size: int, rollout_world_size: int, metadata: list[Any]
    ) -> None:
        """Makes rank 0 the sender."""
        self._is_sender = worker_rank == 0

    def init_rollout_process_group(
        self, *, rollout_rank: int, train_world_size: int, rollout_world_size: int, metadata: list[Any]
    ) -> None:
        """Takes the number of the version that the policy's rank 0 found."""
        self._after = metadata[0]["version"]

    async def send_weights(self, weights: Iterable[tuple[str, Any]]) -> None:
        """Publishes the weights in rank 0. The other ranks take part in making them."""
        if self._is_sender:
            self._rounds.send(weights, {})
            return
        for _ in weights:
            pass

    async def receive_weight_batches(self) -> AsyncGenerator[list[tuple[str, Any]], None]:
        """Yields the names and tensors of a version, in batches.

        Raises:
            Timeout: the policy has published no version.
        """
        version = await self._rounds.receive(self._after)
        self._after = version.version
        logging.getLogger("onecopy").info("loading version %d", version.version)
        batch: list[tuple[str, Any]] = []
        for each in on_the_card(version):
            if batch and sum(tensor.nbytes for _, tensor in batch) + each[1].nbytes > self._bucket_size:
                yield batch
                batch = []
            batch.append(each)
        yield batch
