# SPDX-License-Identifier: Apache-2.0
"""Contexts of distributed autograd, and backward passes through all workers."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from ...rpc import registry
from ._edges import ReceivedTensors, SentTensors, edge_of_root, torch_engine, wrong_arguments
from ._leaf_hooks import Hooked, run_hooks
from ._pass import Answer, Arrived, LocalPass, PassKey, Transport

_IDS_OF_A_WORKER = 48

Record = tuple[int, list[int]]  # (message id, indices of the tensors that require gradients)


class Context:
    """A worker's part of one context: tensors sent and received, and gradients of its leaves.
    Thread safety: all members may be called concurrently."""

    def __init__(self, engine: Engine, context_id: int) -> None:
        self.engine, self.id = engine, context_id
        self._lock = threading.Lock()
        self._sent: dict[int, SentTensors] = {}
        self._received: dict[int, ReceivedTensors] = {}
        self._known: set[int] = set()
        self._gradients: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # leaf and gradient, by the leaf's id
        self.run_engine = torch_engine()
        self._passes: dict[int, LocalPass] = {}

    # torch's names, which programs use
    def _context_id(self) -> int:
        return self.id

    def _send_functions(self) -> dict[int, SentTensors]:
        return dict(sorted(self._sent.items()))

    def _recv_functions(self) -> dict[int, Any]:
        return {key: received.node for key, received in sorted(self._received.items())}

    def _known_worker_ids(self) -> set[int]:
        return set(self._known)

    def know(self, worker: int) -> None:
        """Records that a worker has a part of this context."""
        if worker != self.engine.worker_id:
            self._known.add(worker)

    def record_sent(self, tensors: Sequence[torch.Tensor], peer: int) -> Record | None:
        """Records tensors that are sent to `peer`. Returns None if no tensor requires gradients. As in torch, a
        Parameter is not recorded, since the receiver gets a Parameter of its own."""
        self.know(peer)
        which = [i for i, t in enumerate(tensors) if t.requires_grad and not isinstance(t, torch.nn.Parameter)]
        if not which:
            return None
        with torch.enable_grad():
            sent = SentTensors(next(self.engine.message_ids), peer, [tensors[i] for i in which])
        with self._lock:
            self._sent[sent.message_id] = sent
        return sent.message_id, which

    def attach_received(self, recorded: Record, tensors: Sequence[torch.Tensor], peer: int) -> None:
        """Makes tensors received from `peer` part of this worker's graph, in place."""
        message_id, which = recorded
        received = ReceivedTensors(self.id, message_id, peer, [tensors[i] for i in which])
        with self._lock:
            self._received[message_id] = received
        self.know(peer)

    def forget_sent(self, recorded: Record) -> None:
        """Undoes record_sent() for a message that was not sent."""
        with self._lock:
            self._sent.pop(recorded[0])

    def sent(self) -> list[SentTensors]:
        """Returns the SentTensors in the order of sending."""
        with self._lock:
            return list(self._sent.values())

    def clear(self) -> None:
        """Breaks the reference cycles between an ended context and its passes and nodes, which would stay until the
        next garbage collection."""
        with self._lock:
            self._passes.clear()
            for received in self._received.values():
                received.node = None

    def accumulate(self, leaf: torch.Tensor, gradient: torch.Tensor) -> None:
        """Adds to the gradient of a leaf."""
        with self._lock:
            before = self._gradients.get(id(leaf))
            self._gradients[id(leaf)] = (leaf, gradient if before is None else before[1] + gradient)

    def accumulate_hooked(self, hooked: Hooked) -> None:
        """Runs the hooks of the leaves' nodes, and adds the resulting gradients."""
        for leaf, gradient in run_hooks(self.engine.worker_id, hooked):
            self.accumulate(leaf, gradient)

    def gradients(self) -> dict[torch.Tensor, torch.Tensor]:
        """Returns {leaf: gradient}."""
        with self._lock:
            return dict(self._gradients.values())

    def local_pass(self, key: PassKey, roots: Sequence[GradientEdge] = ()) -> LocalPass:
        """Returns this worker's part of a pass. `roots` are edges."""
        found = self._passes.get(key.id)
        if found is not None:
            return found
        made = LocalPass(self.engine, self, key, self.sent(), roots)
        with self._lock:
            for other in list(self._passes):
                if other < key.first_open and other >> _IDS_OF_A_WORKER == key.id >> _IDS_OF_A_WORKER:
                    del self._passes[other]  # the pass has ended
            return self._passes.setdefault(key.id, made)

    def end_pass(self, pass_id: int) -> None:
        """Removes a pass. Called by the root after the pass has ended in all workers."""
        with self._lock:
            self._passes.pop(pass_id, None)


class Engine:
    """The contexts of this worker.

    Thread safety: all members except start() may be called concurrently."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._contexts: dict[int, Context] = {}
        self._under_way: set[int] = set()  # passes that began in this worker
        self._transport: Transport | None = None
        self.start(0)

    def start(self, worker_id: int, transport: Transport | None = None) -> None:
        """Makes this object the engine of that worker. `transport` carries gradients and marks to other workers; None
        keeps the previous transport."""
        self.worker_id, self._transport = worker_id, transport or self._transport
        self._context_ids = itertools.count(worker_id << _IDS_OF_A_WORKER)
        self.message_ids = itertools.count(worker_id << _IDS_OF_A_WORKER)
        self._pass_ids = itertools.count(worker_id << _IDS_OF_A_WORKER)
        self.max_id = (1 << _IDS_OF_A_WORKER) - 1 + (worker_id << _IDS_OF_A_WORKER)

    @property
    def transport(self) -> Transport:
        """The transport of start(). REQUIRES: a message was received or is being sent."""
        assert self._transport is not None
        return self._transport

    # --- contexts

    def new_context(self) -> Context:
        """Makes a context and sets it for this thread. Raises RuntimeError if the thread has a context."""
        if self.current() is not None:
            raise RuntimeError("Already have an autograd context id for this thread")
        context = Context(self, next(self._context_ids))
        with self._lock:
            self._contexts[context.id] = context
        registry.swap_context(context)
        return context

    def current(self) -> Context | None:
        """Returns this thread's context, or None."""
        return registry.context()

    def retrieve(self, context_id: int) -> Context:
        """Returns a context. Raises RuntimeError for an unknown id."""
        context = self._contexts.get(context_id)
        if context is None:
            raise RuntimeError(f"Could not find autograd context with id: {context_id}")
        return context

    def find(self, context_id: int) -> Context | None:
        """Returns a context, or None."""
        return self._contexts.get(context_id)

    def get_or_create(self, context_id: int) -> Context:
        """Returns a context, which is made if missing."""
        with self._lock:
            if context_id not in self._contexts:
                self._contexts[context_id] = Context(self, context_id)
            return self._contexts[context_id]

    def release(self, context_id: int) -> None:
        """Ends a context, in this worker and all workers that have a part of the context."""
        context = self._pop(context_id)
        if context is None:
            raise RuntimeError(f"Could not find autograd context with id: {context_id}")
        if self.current() is context:
            registry.swap_context(None)
        self._tell_released(context, context._known_worker_ids())

    def on_release(self, sender: int, context_id: int, later: Callable[..., None]) -> None:
        """Ends a context for another worker. `later` runs a function in another thread, since the calling thread takes
        messages and must not wait."""
        context = self._pop(context_id)
        others = context._known_worker_ids() - {sender} if context is not None else ()
        if others:
            later(self._tell_released, context, others)

    def _pop(self, context_id: int) -> Context | None:
        with self._lock:
            context = self._contexts.pop(context_id, None)
        if context is not None:
            context.clear()
        return context

    def _tell_released(self, context: Context, workers: Iterable[int]) -> None:
        for worker in workers:
            self.transport.release_context(worker, context.id)

    def count(self) -> int:
        """Returns the number of contexts."""
        with self._lock:
            return len(self._contexts)

    # --- backward

    @property
    def passes(self) -> int:
        """The number of pending passes that began in this worker."""
        return len(self._under_way)

    def backward(self, context_id: int, roots: Sequence[torch.Tensor], retain_graph: bool = False) -> None:
        """Runs a pass: see onecopy.distributed.autograd.backward()."""
        if not isinstance(context_id, int) or not isinstance(roots, (list, tuple)):
            raise wrong_arguments()
        context = self.retrieve(context_id)
        edges = list(map(edge_of_root, roots))
        if not edges:
            raise RuntimeError("No tensors provided for gradient computation.")
        key = self._begin_pass(bool(retain_graph))
        try:
            before = registry.swap_context(context)
            try:
                arrived: Arrived = [(None, list(map(torch.ones_like, roots)))]
                blocked, _ = context.local_pass(key, edges).arrive(arrived)
            finally:
                registry.swap_context(before)
            while any(blocked.values()):
                self._resolve(context_id, key, blocked)
        finally:
            context.end_pass(key.id)
            with self._lock:
                self._under_way.discard(key.id)

    def _begin_pass(self, retain_graph: bool) -> PassKey:
        with self._lock:
            pass_id = next(self._pass_ids)
            self._under_way.add(pass_id)
            return PassKey(pass_id, retain_graph, min(self._under_way))

    def _resolve(self, context_id: int, key: PassKey, blocked: dict[int, int]) -> None:
        """Lets the blocked workers mark the gradients that will still arrive, and then continue without the others."""
        workers = [worker for worker, number in blocked.items() if number]
        for future in [self.transport.ask(w, "mark_blocked", context_id, key) for w in workers]:
            future.wait()
        for future in [self.transport.ask(w, "resolve", context_id, key) for w in workers]:
            for worker, number in future.wait():
                blocked[worker] = blocked.get(worker, 0) + number

    # --- for other workers

    def on_gradients(
        self,
        sender: int,
        context_id: int,
        key: tuple[int, bool, int],
        message_id: int,
        gradients: list[torch.Tensor | None],
    ) -> Answer:
        """Takes gradients, and waits for all their consequences: see LocalPass.arrive()."""
        context = self.retrieve(context_id)
        before = registry.swap_context(context)
        try:
            change, back = context.local_pass(PassKey(*key)).arrive([(message_id, gradients)], sender)
        finally:
            registry.swap_context(before)
        return list(change.items()), back

    def on_ask(self, what: str, context_id: int, key: tuple[int, bool, int], *arguments: int) -> Any:
        """Calls mark(), mark_blocked() or resolve() of this worker's LocalPass."""
        context = self.retrieve(context_id)
        with registry.within(context):
            return getattr(context.local_pass(PassKey(*key)), what)(*arguments)


engine_of_this_process = Engine()
