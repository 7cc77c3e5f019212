# SPDX-License-Identifier: Apache-2.0
"""One worker's part of one backward pass, and its messages.

_core._Evaluation has the gradients that have come, and evaluates the outputs that have all of theirs. A gradient
message is answered when everything that it caused is done, so the root's backward() returns at the end of all. The
thread that took it waits: no other has to run. Gradients for the sender of a message alone go with its answer.
Answers add up how many components are blocked: begun, and waiting for a source. While some are, the root has them
mark the sources that still get something; the others are dead, and the blocked components go on.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from torch.autograd.graph import GradientEdge

from ... import _core
from ...rpc.futures import Future, done
from ._edges import ReceivedTensors, SentTensors

Gradients: TypeAlias = list[torch.Tensor | None]
Arrived: TypeAlias = list[tuple[int | None, Gradients]]  # (message id, or None for the roots, gradients)
Changes: TypeAlias = dict[int, int]  # worker -> change in its number of blocked components
Answer: TypeAlias = tuple[list[tuple[int, int]], Arrived]  # changes as pairs, and gradients for the sender


class PassKey(NamedTuple):
    """A pass, as messages name it.

    Attributes:
        id: unique in the group. The ids of passes with the same root grow.
        retain: whether the graph is kept.
        first_open: all passes with the same root and a smaller id have ended, in all workers."""

    id: int
    retain: bool
    first_open: int


class Transport(Protocol):
    """Sends gradients and marks to other workers."""

    def send_gradients(self, to: int, *arguments: Any) -> Any:
        """Begins a call of Engine.on_gradients(this worker, *arguments) in another worker: a Future of the Answer, for
        one call of wait()."""

    def call_gradients(self, to: int, *arguments: Any) -> Answer:
        """Returns send_gradients(...).wait()."""

    def ask(self, to: int, *arguments: Any) -> Future:
        """Calls Engine.on_ask(*arguments)."""

    def release_context(self, to: int, context_id: int) -> None:
        """Calls Engine.on_release(this worker, context_id), and does not wait."""


class LocalPass:
    """A worker's part of a pass. Thread safety: all members may be called concurrently."""

    def __init__(
        self, worker: Any, context: Any, key: PassKey, sent: list[SentTensors], roots: Sequence[GradientEdge]
    ) -> None:
        self._worker, self._key = worker, tuple(key)
        self._evaluation: Any = _core._Evaluation(
            context, worker.worker_id, sent, roots, context.run_engine, key.retain
        )

    # --- gradients arrive

    def arrive(self, arrived: Arrived, sender: int | None = None) -> tuple[Changes, Arrived]:
        """Takes gradients. Returns when all that they cause is done, in all workers: the changes, and the gradients for
        `sender`."""
        fired, blocked = self._evaluation.take(arrived)
        return self._finish(fired, blocked, sender)

    def resolve(self) -> list[tuple[int, int]]:
        """Goes on without the gradients that have not come and are not marked: they never come. Returns the changes,
        as pairs, when all that this causes is done."""
        return list(self._finish(*self._evaluation.resolve())[0].items())

    def _finish(
        self, fired: list[tuple[ReceivedTensors, Gradients]], blocked: int, sender: int | None = None
    ) -> tuple[Changes, Arrived]:
        """Sends the gradients of outputs that have fired, and of outputs that fire when the answers arrive. `blocked`
        is the change of the number of blocked components. Raises the first failure after all calls have ended."""
        change: Changes = {self._worker.worker_id: blocked} if blocked else {}
        while len(fired) == 1:
            ((received, gradients),) = fired
            if received.peer == sender:
                return change, [(received.message_id, gradients)]
            counts, arrived = self._worker.transport.call_gradients(
                received.peer, received.context_id, self._key, received.message_id, gradients
            )
            fired, blocked = self._evaluation.take(arrived)
            if counts or blocked:
                self._count(change, counts, blocked)
        return change, self._send_all(fired, sender, change) if fired else []

    def _send_all(self, fired: list[tuple[ReceivedTensors, Gradients]], sender: int | None, change: Changes) -> Arrived:
        """Returns the gradients for `sender`."""
        back: Arrived = []
        failure: Exception | None = None
        call: Any = None
        under_way = self._send(fired, sender, back)
        while under_way:
            call = next((c for c in under_way if c.done()), under_way[0])
            under_way.remove(call)
            try:
                counts, arrived = call.wait()
                fired, blocked = self._evaluation.take(arrived)
                self._count(change, counts, blocked)
                under_way += self._send(fired, sender, back)
            except Exception as error:
                failure = failure or error
        try:
            if failure is not None:
                raise failure
        finally:
            failure = call = None  # its traceback has this frame
        return back

    def _send(self, fired: list[tuple[ReceivedTensors, Gradients]], sender: int | None, back: Arrived) -> list[Any]:
        """Returns the calls under way. While other workers have something to do, the sender's part does not wait for
        them."""
        if all(r.peer == sender for r, _ in fired):
            back += [(r.message_id, g) for r, g in fired]
            return []
        return [
            self._worker.transport.send_gradients(r.peer, r.context_id, self._key, r.message_id, g) for r, g in fired
        ]

    def _count(self, change: Changes, counts: Iterable[tuple[int, int]], blocked: int) -> None:
        """Adds the changes of an answer, and of this worker."""
        for worker, number in [*counts, (self._worker.worker_id, blocked)]:
            change[worker] = change.get(worker, 0) + number

    # --- marks

    def mark_blocked(self) -> Future:
        """Marks the gradients that the blocked components will still send. Returns a Future of None."""
        return self._mark(self._evaluation.owed())

    def mark(self, message_id: int) -> Future:
        """Marks a source that will get something, and all that it reaches. Marks are never taken back."""
        return self._mark(self._evaluation.mark(message_id))

    def _mark(self, received: Iterable[ReceivedTensors]) -> Future:
        transport = self._worker.transport
        return _all([transport.ask(r.peer, "mark", r.context_id, self._key, r.message_id) for r in received])


def _all(futures: Sequence[Future]) -> Future:
    """Returns a Future of None, which is done when all are, and fails with the first of `futures` that failed."""
    if not futures:
        return done(None)
    out: Future = torch.futures.Future()
    lock, left = threading.Lock(), len(futures)

    def one_is_done(_: Future) -> None:
        nonlocal left
        with lock:
            left -= 1
            if left:
                return
        try:
            out.set_result([f.value() for f in futures] and None)
        except Exception as error:
            out.set_exception(error)

    for future in futures:
        future.add_done_callback(one_is_done)
    return out
