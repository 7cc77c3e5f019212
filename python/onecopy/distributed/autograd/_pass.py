# SPDX-License-Identifier: Apache-2.0
"""One worker's part of one backward pass, and its messages.

_core._Evaluation holds the received gradients, and evaluates each output whose gradients are complete. A gradient
message is answered when all its consequences are done, so the root's backward() returns after the whole pass. The
thread that took the message waits, so that no other thread must run. If all resulting gradients go to the sender of the
message, the answer carries them. Answers also carry changes of the number of blocked components, which have begun and
wait for a source. While components are blocked, the root lets them mark the sources that will still get gradients; all
other sources are dead, and the blocked components continue without them.
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
from ._leaf_hooks import Hooked

Gradients: TypeAlias = list[torch.Tensor | None]
Arrived: TypeAlias = list[tuple[int | None, Gradients]]  # (message id, or None for the roots, gradients)
Changes: TypeAlias = dict[int, int]  # worker -> change in its number of blocked components
Answer: TypeAlias = tuple[list[tuple[int, int]], Arrived]  # changes as pairs, and gradients for the sender


class PassKey(NamedTuple):
    """The identity of a pass in messages.

    Attributes:
        id: an id that is unique in the group and grows from one pass of a root to the next.
        retain: whether the graph is kept.
        first_open: the smallest id of a pass with the same root that has not ended in all workers."""

    id: int
    retain: bool
    first_open: int


class Transport(Protocol):
    """Sends gradients and marks to other workers."""

    def send_gradients(self, to: int, *arguments: Any) -> Any:
        """Calls Engine.on_gradients(this worker, *arguments) in another worker. Returns a Future of the Answer, whose
        wait() may be called once."""

    def call_gradients(self, to: int, *arguments: Any) -> Answer:
        """Returns send_gradients(...).wait()."""

    def ask(self, to: int, *arguments: Any) -> Future:
        """Calls Engine.on_ask(*arguments) in another worker. Returns a Future."""

    def release_context(self, to: int, context_id: int) -> None:
        """Sends a call of Engine.on_release(this worker, context_id), without waiting."""


class LocalPass:
    """A worker's part of a pass. Thread safety: all members may be called concurrently."""

    def __init__(
        self, worker: Any, context: Any, key: PassKey, sent: list[SentTensors], roots: Sequence[GradientEdge]
    ) -> None:
        self._worker, self._context, self._key = worker, context, tuple(key)
        self._evaluation: Any = _core._Evaluation(
            context, worker.worker_id, sent, roots, context.run_engine, key.retain
        )

    # --- gradients arrive

    def arrive(self, arrived: Arrived, sender: int | None = None) -> tuple[Changes, Arrived]:
        """Takes gradients. Returns, after all their consequences in all workers, the changes and the gradients for
        `sender`."""
        fired, blocked, hooked = self._evaluation.take(arrived)
        return self._finish(fired, blocked, hooked, sender)

    def resolve(self) -> list[tuple[int, int]]:
        """Continues without the gradients that have neither arrived nor a mark. Returns the changes, as pairs, after
        all consequences."""
        return list(self._finish(*self._evaluation.resolve())[0].items())

    def _finish(
        self,
        fired: list[tuple[ReceivedTensors, Gradients]],
        blocked: int,
        hooked: Hooked,
        sender: int | None = None,
    ) -> tuple[Changes, Arrived]:
        """Sends the gradients of outputs that have fired, and of outputs that fire when the answers arrive. `blocked`
        is the change of the number of blocked components. Raises the first failure after all calls have ended."""
        change: Changes = {self._worker.worker_id: blocked} if blocked else {}
        while len(fired) == 1 and not hooked:
            ((received, gradients),) = fired
            if received.peer == sender:
                return change, [(received.message_id, gradients)]
            counts, arrived = self._worker.transport.call_gradients(
                received.peer, received.context_id, self._key, received.message_id, gradients
            )
            fired, blocked, hooked = self._evaluation.take(arrived)
            if counts or blocked:
                self._count(change, counts, blocked)
        return change, self._send_all(fired, hooked, sender, change) if fired or hooked else []

    def _send_all(
        self, fired: list[tuple[ReceivedTensors, Gradients]], hooked: Hooked, sender: int | None, change: Changes
    ) -> Arrived:
        """Sends the gradients of outputs that have fired, and then runs the hooks of leaves, which may wait for other
        workers. Returns the gradients for `sender`."""
        back: Arrived = []
        failure: Exception | None = None
        call: Any = None
        under_way = self._send(fired, sender, back, has_hooks=bool(hooked))
        while under_way or hooked:
            try:
                if hooked:
                    leaves, hooked = hooked, []
                    self._context.accumulate_hooked(leaves)
                    continue
                call = next((c for c in under_way if c.done()), under_way[0])
                under_way.remove(call)
                counts, arrived = call.wait()
                fired, blocked, hooked = self._evaluation.take(arrived)
                self._count(change, counts, blocked)
                under_way += self._send(fired, sender, back, has_hooks=bool(hooked))
            except Exception as error:
                failure = failure or error
        try:
            if failure is not None:
                raise failure
        finally:
            failure = call = None  # the traceback of `failure` holds this frame
        return back

    def _send(
        self,
        fired: list[tuple[ReceivedTensors, Gradients]],
        sender: int | None,
        back: Arrived,
        has_hooks: bool,
    ) -> list[Any]:
        """Sends gradients, and returns the pending calls. If all gradients are for `sender`, adds them to `back`
        instead; otherwise the sender gets its gradients at once, so that it need not wait for the other workers or for
        hooks."""
        if not has_hooks and all(r.peer == sender for r, _ in fired):
            back += [(r.message_id, g) for r, g in fired]
            return []
        return [
            self._worker.transport.send_gradients(r.peer, r.context_id, self._key, r.message_id, g) for r, g in fired
        ]

    def _count(self, change: Changes, counts: Iterable[tuple[int, int]], blocked: int) -> None:
        """Adds the changes of an answer and of this worker to `change`."""
        for worker, number in [*counts, (self._worker.worker_id, blocked)]:
            change[worker] = change.get(worker, 0) + number

    # --- marks

    def mark_blocked(self) -> Future:
        """Marks the gradients that the blocked components will still send. Returns a Future of None."""
        return self._mark(self._evaluation.owed())

    def mark(self, message_id: int) -> Future:
        """Marks a source that will get gradients, and all sources that it reaches in other workers. Marks are
        permanent."""
        return self._mark(self._evaluation.mark(message_id))

    def _mark(self, received: Iterable[ReceivedTensors]) -> Future:
        transport = self._worker.transport
        return _all([transport.ask(r.peer, "mark", r.context_id, self._key, r.message_id) for r in received])


def _all(futures: Sequence[Future]) -> Future:
    """Returns a Future of None, which completes after all futures and raises the first error in their order."""
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
