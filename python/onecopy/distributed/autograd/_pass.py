# SPDX-License-Identifier: Apache-2.0
"""One worker's part of one backward pass.

An output fires once, with its complete gradient: when all sources that reach it have theirs, or are known to get none. A
gradient message is answered when everything that it caused is done, so the root's backward() returns at the end of all. The
thread that took it waits: no other has to run. Gradients for the sender of a message alone go with its answer.
Answers add up how many components are blocked: begun, and waiting for a source. While some are, the root has them
mark the sources that still get something; the others are dead, and the blocked components go on.
"""
import threading

import torch
from torch.autograd.graph import GradientEdge

from ._edges import edge_of
from ._futures import done, gather
from ._structure import Structure

ROOT = "root"
_run_engine = getattr(torch.autograd.graph, "_engine_run_backward", None)  # since torch 2.1


class LocalPass:
    """Thread safety: all members may be called concurrently."""

    def __init__(self, context, pass_id, retain, roots=()):
        self._context, self._id, self._retain = context, pass_id, bool(retain)
        self._engine = context.engine
        self._lock = threading.Lock()
        self._arrived = self._dead = self._live = 0  # sources, as bits
        sources = [(ROOT, [edge_of(r) for r in roots])] if roots else []
        sources += [(sent.message_id, sent.edges) for sent in context.sent()]
        self._roots = [torch.ones_like(r, memory_format=torch.contiguous_format) for r in roots]
        self._shape = Structure(sources)

    # --- gradients arrive

    def root_arrives(self):
        """As arrive(): the counts alone."""
        return self.arrive(ROOT, self._roots)[0]

    def arrive(self, key, gradients, sender=None):
        """Returns when all that the gradients cause is done, in all workers: {worker: change in its number of blocked
        components}, and the gradients for `sender`, [(message id, gradients)]."""
        return self._finish(*self._take(key, gradients), sender)

    def _take(self, key, gradients):
        if key not in self._shape.bit_of:
            raise RuntimeError(f"gradients came for message {key}, which this worker has not sent in this pass")
        component = self._shape.component_of(key)
        with component.lock:
            with self._lock:
                self._arrived |= self._shape.bit_of[key]
            for edge, gradient in zip(self._shape.edges_of[key], gradients):
                if gradient is not None:
                    component.items.append((edge.node, edge.output_nr, gradient))
            return self._advance(component)

    def resolve(self):
        """Gradients that have not come and are not marked never come. As root_arrives()."""
        with self._lock:
            self._dead = self._shape.everything() & ~self._arrived & ~self._live
        all_fired, change = [], {}
        for component in self._shape.components:
            with component.lock:
                fired, more = self._advance(component)
            all_fired += fired
            _add(change, more.items())
        return self._finish(all_fired, change)[0]

    def _finish(self, fired, change, sender=None):
        """Sends the gradients of outputs that have fired, and of those that fire by the answers. Throws the first
        failure, when all calls have ended."""
        back, failure, call = [], None, None
        under_way = self._send(fired, sender, back)
        while under_way:
            call = next((c for c in under_way if c.done()), under_way[0])
            under_way.remove(call)
            try:
                counts, returned = call.wait()
                _add(change, counts)
                for key, gradients in returned:
                    fired, more = self._take(key, gradients)
                    _add(change, more.items())
                    under_way += self._send(fired, sender, back)
            except Exception as error:
                failure = failure or error
        try:
            if failure is not None:
                raise failure
        finally:
            failure = call = None  # its traceback has this frame
        return change, back

    def _send(self, fired, sender, back):
        """The calls under way. While other workers have something to do, the sender's part does not wait for them."""
        if all(r.peer == sender for r, _ in fired):
            back += [(r.message_id, g) for r, g in fired]
            return []
        return [self._engine.transport.send_gradients(r.peer, r.context_id, self._id, self._retain, r.message_id, g)
                for r, g in fired]

    def _advance(self, component):
        """Fires the outputs that can fire: [(received, gradients)], {worker: change}. REQUIRES: the component's lock."""
        here = self._arrived | self._dead
        fired = self._evaluate(component, here) if component.items else []
        fired += self._tombstones(component, here)
        waiting = component.mask & ~here
        is_blocked = bool(waiting and self._owed(component, waiting))
        change = int(is_blocked) - int(component.is_blocked)
        component.is_blocked = is_blocked
        return fired, ({self._engine.worker_id: change} if change else {})

    def _owed(self, component, waiting):
        """Outputs that have begun and wait for more: leaves that a gradient reaches, and everything received, since its
        sender may have been told that something comes."""
        reached = self._shape.leads_from(n for n, _, _ in component.items)
        return [o for o in component.outputs if not o.fired and o.need & waiting and o.need & self._arrived and
                (o.received is not None or o.bit & reached)]

    def _tombstones(self, component, here):
        """Received tensors that no gradient reaches although all are there that could: their sender must not wait."""
        late = [o for o in component.outputs
                if o.received is not None and not o.fired and not o.need & ~here and o.need & self._arrived]
        reached = self._shape.leads_from(n for n, _, _ in component.items) if late else 0
        gone = [o for o in late if not o.bit & reached]
        for output in gone:
            output.fired = True
        return [(o.received, [None] * o.received.count) for o in gone]

    # --- evaluation

    def _evaluate(self, component, here):
        leads = self._shape.leads
        reached = self._shape.leads_from(n for n, _, _ in component.items)
        outputs = [o for o in component.outputs if not o.fired and o.bit & reached and not o.need & ~here]
        if not outputs:
            return []
        for output in outputs:
            output.fired = True
        wanted = sum(o.bit for o in outputs)
        remaining = sum(o.bit for o in component.outputs if not o.fired and o.bit & reached)
        roots = [item for item in component.items if leads[item[0]] & wanted]
        cut = self._find_cut(roots, wanted, remaining) if remaining else []
        gradients, of_cut = self._grad(roots, outputs, cut or [], bool(remaining and cut != []))
        if not remaining:
            component.items = []
        elif cut is not None:
            rest = [i for i in component.items if not leads[i[0]] & wanted and leads[i[0]] & remaining]
            component.items = rest + of_cut
        self._accumulate(outputs, gradients, roots)
        return [(o.received, [_row_major(g) for g in part]) for o, part in zip(outputs, gradients) if o.received is not None]

    def _grad(self, roots, outputs, cut, keep):
        """The gradients of each output, and the items that capturing the nodes of `cut` gives."""
        targets = [(o.node, o.count) for o in outputs] + [(n, len(n._input_metadata)) for n in cut]
        inputs = [GradientEdge(node, i) for node, count in targets for i in range(count)]
        try:
            got = _gradients([GradientEdge(n, k) for n, k, _ in roots], inputs, [g for _, _, g in roots],
                             self._retain or keep)
        except Exception as error:
            raise RuntimeError(f"Error on Node {self._engine.worker_id}: {error}") from error
        parts, at = [], 0
        for _, count in targets:
            parts.append(list(got[at:at + count]))
            at += count
        of_cut = [(n, i, g) for n, part in zip(cut, parts[len(outputs):]) for i, g in enumerate(part) if g is not None]
        return parts[:len(outputs)], of_cut

    def _accumulate(self, outputs, gradients, roots):
        """Into the context. A gradient that something else has, too, is copied first."""
        users = {}
        for part in gradients:
            for g in part:
                if g is not None:
                    users[_memory(g)] = users.get(_memory(g), 0) + 1
        given = {_memory(g) for _, _, g in roots}
        for output, part in zip(outputs, gradients):
            g = part[0] if output.leaf is not None else None
            if g is None:
                continue
            if users[_memory(g)] > 1 or _memory(g) in given or not _is_plain(g):
                g = g.clone(memory_format=torch.contiguous_format) if g.layout == torch.strided else g.clone()
            self._context.accumulate(output.leaf, g.detach())

    def _find_cut(self, roots, wanted, remaining):
        """The nodes that run now and have an edge to a later node, if the later stage can begin at them. That is so
        if none of them leads to another through nodes that run now. Else None, and the nodes above run again."""
        leads, after = self._shape.leads, self._shape.after
        running = self._running(roots, wanted)
        cut = {n for n in running if any(m not in running and leads[m] & remaining for m, _ in after[n])}
        for node in cut:
            seen, stack = set(), [m for m, _ in after[node] if m in running]
            while stack:
                other = stack.pop()
                if other in cut:
                    return None
                if other not in seen:
                    seen.add(other)
                    stack += [m for m, _ in after[other] if m in running]
        return list(cut)

    def _running(self, roots, wanted):
        leads, after = self._shape.leads, self._shape.after
        running, stack = set(), [n for n, _, _ in roots]
        while stack:
            node = stack.pop()
            if node not in running and after[node] and leads[node] & wanted:
                running.add(node)
                stack += [m for m, _ in after[node]]
        return running

    # --- marks

    def mark_blocked(self):
        """Marks the gradients that the blocked components will still send. A Future of None."""
        futures = []
        for component in self._shape.components:
            with component.lock:
                if not component.is_blocked:
                    continue
                waiting = component.mask & ~(self._arrived | self._dead)
                owed = [o.received for o in self._owed(component, waiting) if o.received is not None]
            futures += self._mark(owed)
        return gather(futures, lambda _: None)

    def mark(self, message_id):
        """This source will get something, and so will all that it reaches. Marks are never taken back."""
        bit = self._shape.bit_of[message_id]
        with self._lock:
            if (self._live | self._arrived) & bit:
                return done(None)
            self._live |= bit
        reached = self._shape.leads_from(e.node for e in self._shape.edges_of[message_id])
        outputs = self._shape.component_of(message_id).outputs
        owed = [o.received for o in outputs if o.received is not None and not o.fired and o.bit & reached]
        return gather(self._mark(owed), lambda _: None)

    def _mark(self, received):
        return [self._engine.transport.mark(r.peer, r.context_id, self._id, self._retain, r.message_id) for r in received]


def _gradients(outputs, inputs, given, keep):
    """As torch.autograd.grad(), without its own look at shapes: that imports sympy, two seconds in each worker at the first
    pass. The engine checks them, too."""
    if _run_engine is None:
        return torch.autograd.grad(outputs, inputs, given, retain_graph=keep, allow_unused=True)
    return _run_engine(tuple(outputs), tuple(given), keep, False, tuple(inputs), True, accumulate_grad=False)


def _memory(gradient):
    if gradient.layout == torch.strided:
        return gradient.untyped_storage().data_ptr()
    return gradient._values().untyped_storage().data_ptr() if gradient.layout == torch.sparse_coo else id(gradient)


def _row_major(gradient):
    """As it crosses by the shortest way: gradients of sums are expanded, without memory of their own."""
    return gradient if gradient is None or gradient.layout != torch.strided else gradient.contiguous()


def _is_plain(gradient):
    if gradient.layout == torch.sparse_coo:
        return gradient._values().is_contiguous() and gradient._indices().is_contiguous()
    return gradient.is_contiguous() and gradient.untyped_storage().nbytes() == gradient.nbytes


def _add(counts, more):
    """`more` are pairs."""
    for worker, number in more:
        counts[worker] = counts.get(worker, 0) + number
