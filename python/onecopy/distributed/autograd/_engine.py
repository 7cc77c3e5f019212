# SPDX-License-Identifier: Apache-2.0
"""Contexts of distributed autograd, and backward passes through all workers."""

import collections
import itertools
import threading
from typing import NamedTuple

import torch

from ...rpc import registry
from ._edges import GradientEdge, ReceivedTensors, SentTensors, torch_engine
from ._pass import LocalPass

_IDS_OF_A_WORKER = 48


class PassKey(NamedTuple):
    """A pass, as messages name it.

    Attributes:
        id: unique in the group. The ids of passes with the same root grow.
        retain: whether the graph is kept.
        first_open: all passes with the same root and a smaller id have ended, in all workers."""

    id: int
    retain: bool
    first_open: int

    def is_behind_end_of(self, other):
        return other < self.first_open and other >> _IDS_OF_A_WORKER == self.id >> _IDS_OF_A_WORKER


class Context:
    """One worker's part of one context: tensors sent and received, and gradients of its leaves.
    Thread safety: all members may be called concurrently."""

    def __init__(self, engine, context_id):
        self.engine, self.id = engine, context_id
        self._lock = threading.Lock()
        self._sent, self._received = collections.OrderedDict(), collections.OrderedDict()
        self._known, self._gradients = set(), {}
        self.run_engine = torch_engine()
        self._passes = {}

    # The names that programs use.
    def _context_id(self):
        return self.id

    def _send_functions(self):
        return dict(sorted(self._sent.items()))

    def _recv_functions(self):
        return {key: received.node for key, received in sorted(self._received.items())}

    def _known_worker_ids(self):
        return set(self._known)

    def know(self, worker):
        """That worker has a part of this context."""
        if worker != self.engine.worker_id:
            self._known.add(worker)

    def record_sent(self, tensors, peer):
        """Before tensors go to `peer`: (message id, which of them require gradients), or None."""
        self.know(peer)
        which = [i for i, t in enumerate(tensors) if t.requires_grad] if torch.is_grad_enabled() else []
        if not which:
            return None
        sent = SentTensors(next(self.engine.message_ids), peer, [tensors[i] for i in which])
        with self._lock:
            self._sent[sent.message_id] = sent
        return sent.message_id, which

    def attach_received(self, recorded, tensors, peer):
        """Makes tensors that came from `peer` part of this worker's graph, in place."""
        message_id, which = recorded
        received = ReceivedTensors(self.id, message_id, peer, [tensors[i] for i in which])
        with self._lock:
            self._received[message_id] = received
        self.know(peer)

    def forget_sent(self, recorded):
        """After record_sent(): nothing was sent."""
        with self._lock:
            self._sent.pop(recorded[0])

    def sent(self):
        with self._lock:
            return list(self._sent.values())

    def clear(self):
        """Called when the context has ended: its passes and nodes refer to it, and would stay until the next collection."""
        with self._lock:
            self._passes.clear()
            for received in self._received.values():
                received.node = None

    def accumulate(self, leaf, gradient):
        with self._lock:
            before = self._gradients.get(id(leaf))
            self._gradients[id(leaf)] = (leaf, gradient if before is None else before[1] + gradient)

    def gradients(self):
        with self._lock:
            return dict(self._gradients.values())

    def local_pass(self, key, roots=()):
        """Returns this worker's part of a pass. `roots` are edges."""
        found = self._passes.get(key.id)
        if found is not None:
            return found
        made = LocalPass(self, key, roots)
        with self._lock:
            for ended in [i for i in self._passes if key.is_behind_end_of(i)]:
                del self._passes[ended]
            return self._passes.setdefault(key.id, made)

    def end_pass(self, pass_id):
        """Called by the root of a pass that has ended in all workers."""
        with self._lock:
            self._passes.pop(pass_id, None)


class Engine:
    """The contexts of this worker. `transport` carries gradients and marks to others (see onecopy.rpc).
    Thread safety: all members may be called concurrently, but for start()."""

    def __init__(self):
        self._lock = threading.Lock()
        self._contexts = {}
        self._under_way = set()  # passes that began here
        self.start(0, None)

    def start(self, worker_id, transport):
        self.worker_id, self.transport = worker_id, transport
        self._context_ids = itertools.count(worker_id << _IDS_OF_A_WORKER)
        self.message_ids = itertools.count(worker_id << _IDS_OF_A_WORKER)
        self._pass_ids = itertools.count(worker_id << _IDS_OF_A_WORKER)
        self.max_id = (1 << _IDS_OF_A_WORKER) - 1 + (worker_id << _IDS_OF_A_WORKER)

    # --- contexts

    def new_context(self):
        if self.current() is not None:
            raise RuntimeError("Already have an autograd context id for this thread")
        context = Context(self, next(self._context_ids))
        with self._lock:
            self._contexts[context.id] = context
        registry.swap_context(context)
        return context

    def current(self):
        """This thread's context, or None."""
        return registry.context()

    def retrieve(self, context_id):
        context = self._contexts.get(context_id)
        if context is None:
            raise RuntimeError(f"Could not find autograd context with id: {context_id}")
        return context

    def find(self, context_id):
        return self._contexts.get(context_id)

    def get_or_create(self, context_id):
        with self._lock:
            if context_id not in self._contexts:
                self._contexts[context_id] = Context(self, context_id)
            return self._contexts[context_id]

    def release(self, context_id):
        """Here and on all workers that have a part of it."""
        context = self._pop(context_id)
        if context is None:
            raise RuntimeError(f"Could not find autograd context with id: {context_id}")
        if self.current() is context:
            registry.swap_context(None)
        self._tell_released(context, context._known_worker_ids())

    def on_release(self, sender, context_id, later):
        """`later` runs a function in another thread: this one takes messages, and does not wait."""
        context = self._pop(context_id)
        others = context._known_worker_ids() - {sender} if context is not None else ()
        if others:
            later(self._tell_released, context, others)

    def _pop(self, context_id):
        with self._lock:
            context = self._contexts.pop(context_id, None)
        if context is not None:
            context.clear()
        return context

    def _tell_released(self, context, workers):
        for worker in workers:
            self.transport.release_context(worker, context.id)

    def count(self):
        with self._lock:
            return len(self._contexts)

    # --- backward

    @property
    def passes(self):
        """How many began here and have not ended."""
        return len(self._under_way)

    def backward(self, context_id, roots, retain_graph=False):
        if not isinstance(context_id, int) or not isinstance(roots, (list, tuple)):
            raise _wrong_arguments()
        context = self.retrieve(context_id)
        edges = list(map(_edge_of_root, roots))
        if not edges:
            raise RuntimeError("No tensors provided for gradient computation.")
        key = self._begin_pass(bool(retain_graph))
        try:
            before = registry.swap_context(context)
            try:
                arrived = [(None, list(map(torch.ones_like, roots)))]
                blocked, _ = context.local_pass(key, edges).arrive(arrived)
            finally:
                registry.swap_context(before)
            while any(blocked.values()):
                self._resolve(context_id, key, blocked)
        finally:
            context.end_pass(key.id)
            with self._lock:
                self._under_way.discard(key.id)

    def _begin_pass(self, retain_graph):
        with self._lock:
            pass_id = next(self._pass_ids)
            self._under_way.add(pass_id)
            return PassKey(pass_id, retain_graph, min(self._under_way))

    def _resolve(self, context_id, key, blocked):
        """Lets the blocked workers mark what still comes, and then go on without the rest."""
        workers = [worker for worker, number in blocked.items() if number]
        for future in [self.transport.mark_blocked(w, context_id, key) for w in workers]:
            future.wait()
        for future in [self.transport.resolve(w, context_id, key) for w in workers]:
            for worker, number in future.wait():
                blocked[worker] = blocked.get(worker, 0) + number

    # --- for other workers

    def on_gradients(self, sender, context_id, key, message_id, gradients):
        """Waits. (changes, gradients for the sender) as LocalPass.arrive() has them, as pairs."""
        context = self.retrieve(context_id)
        before = registry.swap_context(context)
        try:
            change, back = context.local_pass(PassKey(*key)).arrive([(message_id, gradients)], sender)
        finally:
            registry.swap_context(before)
        return list(change.items()), back

    def on_resolve(self, context_id, key):
        """Waits. The changes, as pairs."""
        context = self.retrieve(context_id)
        with registry.within(context):
            return list(context.local_pass(PassKey(*key)).resolve().items())

    # These two return a Future.

    def on_mark(self, context_id, key, message_id):
        return self.retrieve(context_id).local_pass(PassKey(*key)).mark(message_id)

    def on_mark_blocked(self, context_id, key):
        return self.retrieve(context_id).local_pass(PassKey(*key)).mark_blocked()


def _wrong_arguments():
    return TypeError("backward(): incompatible function arguments: a context's id and a list of tensors are wanted")


def _edge_of_root(root):
    if not isinstance(root, torch.Tensor):
        raise _wrong_arguments()
    if not root.requires_grad:
        raise RuntimeError("requires_grad not set on root")
    if root.numel() != 1:
        raise RuntimeError(f"root of shape {tuple(root.shape)} is not a scalar, all roots need to be scalar")
    node = root.grad_fn
    if node is None:
        raise RuntimeError("root does not have a valid gradient function.")
    return GradientEdge(node, root.output_nr)


engine_of_this_process = Engine()
