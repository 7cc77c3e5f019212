# SPDX-License-Identifier: Apache-2.0
"""One worker's part of one backward pass, and its messages.

_core._Evaluation has the gradients that have come, and evaluates the outputs that have all of theirs. A gradient message is
answered when everything that it caused is done, so the root's backward() returns at the end of all. The
thread that took it waits: no other has to run. Gradients for the sender of a message alone go with its answer.
Answers add up how many components are blocked: begun, and waiting for a source. While some are, the root has them
mark the sources that still get something; the others are dead, and the blocked components go on.
"""

from ... import _core
from ._futures import gather


class LocalPass:
    """Thread safety: all members may be called concurrently."""

    def __init__(self, context, key, roots=()):
        self._engine, self._key = context.engine, tuple(key)
        self._evaluation = _core._Evaluation(
            context, self._engine.worker_id, context.sent(), roots, context.run_engine, key.retain
        )

    # --- gradients arrive

    def arrive(self, arrived, sender=None):
        """`arrived` is [(message id, or None for the roots, gradients)]. Returns when all that they cause is done, in all
        workers: {worker: change in its number of blocked components}, and as `arrived` the gradients for `sender`."""
        return self._finish(*self._evaluation.take(arrived), sender)

    def resolve(self):
        """Gradients that have not come and are not marked never come. As arrive(): the counts alone."""
        return self._finish(*self._evaluation.resolve())[0]

    def _finish(self, fired, blocked, sender=None):
        """Sends the gradients of outputs that have fired, and of those that fire by the answers. `blocked` components are more
        than before. Throws the first failure, when all calls have ended."""
        change = {self._engine.worker_id: blocked} if blocked else {}
        while len(fired) == 1:
            ((received, gradients),) = fired
            if received.peer == sender:
                return change, [(received.message_id, gradients)]
            counts, arrived = self._engine.transport.call_gradients(
                received.peer, received.context_id, self._key, received.message_id, gradients
            )
            fired, blocked = self._evaluation.take(arrived)
            if counts or blocked:
                self._count(change, counts, blocked)
        return change, self._send_all(fired, sender, change) if fired else []

    def _send_all(self, fired, sender, change):
        """The gradients for `sender`."""
        back, failure, call = [], None, None
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

    def _send(self, fired, sender, back):
        """The calls under way. While other workers have something to do, the sender's part does not wait for them."""
        if all(r.peer == sender for r, _ in fired):
            back += [(r.message_id, g) for r, g in fired]
            return []
        return [
            self._engine.transport.send_gradients(r.peer, r.context_id, self._key, r.message_id, g) for r, g in fired
        ]

    def _count(self, change, counts, blocked):
        """Adds those of an answer, and this worker's."""
        for worker, number in [*counts, (self._engine.worker_id, blocked)]:
            change[worker] = change.get(worker, 0) + number

    # --- marks

    def mark_blocked(self):
        """Marks the gradients that the blocked components will still send. A Future of None."""
        return self._mark(self._evaluation.owed())

    def mark(self, message_id):
        """This source will get something, and so will all that it reaches. Marks are never taken back."""
        return self._mark(self._evaluation.mark(message_id))

    def _mark(self, received):
        futures = [self._engine.transport.mark(r.peer, r.context_id, self._key, r.message_id) for r in received]
        return gather(futures, lambda _: None)
