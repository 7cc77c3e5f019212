# SPDX-License-Identifier: Apache-2.0
"""The shape of one worker's part of a backward pass.

A source is where gradients come in: the loss, or tensors that were sent. An output is where they leave: a leaf, or
tensors that were received. Sources whose graphs share a node other than a plain leaf make one component, whose
gradients have to be evaluated together.
"""
import threading

from ._edges import LeafNode, ReceiveNode


def bits(mask):
    """The lowest bits of a mask one after another, as numbers."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


class Output:
    """A leaf or received tensors, as one component's gradients reach it."""

    __slots__ = ("bit", "node", "leaf", "received", "need", "fired")

    def __init__(self, bit, node, need):
        self.bit, self.node, self.need, self.fired = bit, node, need, False
        self.leaf = node.variable if type(node) is LeafNode else None
        self.received = None if self.leaf is not None else node.received

    @property
    def count(self):
        return 1 if self.received is None else self.received.count


class Component:
    """Sources that are evaluated together.

    Invariant: evaluating from `items`, (node, number, gradient) each, gives what its outputs that have not fired lack.
    Thread safety: with `lock` held.
    """

    __slots__ = ("mask", "outputs", "items", "lock", "is_blocked")

    def __init__(self):
        self.mask, self.outputs, self.items, self.is_blocked = 0, [], [], False
        self.lock = threading.Lock()


class Structure:
    """`reach[n]`: the sources, as bits, that reach node n; `leads[n]`: the outputs that it leads to; `after[n]`: its
    edges. Never changes once made."""

    def __init__(self, sources):
        self.bit_of = {key: 1 << i for i, (key, _) in enumerate(sources)}
        self.edges_of = dict(sources)
        self.after, order = _walk(sources)
        self.reach = self._reach(sources, order)
        self.components = self._components(len(sources), order)
        self.leads = self._leads(order)

    def component_of(self, key):
        return next(c for c in self.components if c.mask & self.bit_of[key])

    def everything(self):
        return (1 << len(self.bit_of)) - 1

    def leads_from(self, nodes):
        mask = 0
        for node in nodes:
            mask |= self.leads[node]
        return mask

    def _reach(self, sources, order):
        reach = dict.fromkeys(order, 0)
        for key, edges in sources:
            for edge in edges:
                reach[edge.node] |= self.bit_of[key]
        for node in reversed(order):
            for target, _ in self.after[node]:
                reach[target] |= reach[node]
        return reach

    def _components(self, count, order):
        parent = list(range(count))

        def find(i):
            while parent[i] != i:
                parent[i] = parent[parent[i]]
                i = parent[i]
            return i

        for node in order:
            if not _is_plain_leaf(node):
                first, *others = bits(self.reach[node])
                for other in others:
                    parent[find(other)] = find(first)
        found = {}
        for i in range(count):
            found.setdefault(find(i), Component()).mask |= 1 << i
        return list(found.values())

    def _leads(self, order):
        leads, bit = dict.fromkeys(order, 0), 1
        for node in order:
            if not _is_end(node):
                leads[node] = 0
                for target, _ in self.after[node]:
                    leads[node] |= leads[target]
                continue
            for component in self.components:
                if need := self.reach[node] & component.mask:
                    component.outputs.append(Output(bit, node, need))
            leads[node] = bit
            bit <<= 1
        return leads


def _is_end(node):
    return type(node) is LeafNode or type(node) is ReceiveNode


def _is_plain_leaf(node):
    """Its gradient may come in parts: no hook sees it."""
    return type(node) is LeafNode and not node.variable._backward_hooks


def _walk(sources):
    """The edges of every node, and the nodes in an order that has their successors first."""
    after, order = {}, []
    for _, edges in sources:
        for edge in edges:
            _walk_from(edge.node, after, order)
    return after, order


def _walk_from(start, after, order):
    stack = [(start, None)]
    while stack:
        node, rest = stack.pop()
        if rest is None:
            if node in after:
                continue
            after[node] = () if _is_end(node) else tuple((n, k) for n, k in node.next_functions if n is not None)
            rest = iter(after[node])
        for target, _ in rest:
            if target not in after:
                stack += [(node, rest), (target, None)]
                break
        else:
            order.append(node)
