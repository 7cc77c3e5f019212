# SPDX-License-Identifier: Apache-2.0
"""Values that cross without an encoding of ours: plain ones with dense tensors, in calls within a context of autograd.

Both sides find the tensors of a value in one order, in which they are recorded as sent and as received."""

import torch

_KINDS = frozenset((type(None), bool, int, float, complex, str, bytes))
_TENSORS = frozenset((torch.Tensor, torch.nn.Parameter))
_DEEPEST = 16


def tensors_in(value):
    """The tensors of a value, each once; None for a value that has something else."""
    found = {}
    return list(found.values()) if _find(value, found, 0) else None


def _find(value, found, depth):
    kind = type(value)
    if kind in _KINDS:
        return True
    if kind in _TENSORS:
        found.setdefault(id(value), value)
        return True
    if depth == _DEEPEST:
        return False
    if kind is tuple or kind is list:
        return all([_find(item, found, depth + 1) for item in value])
    if kind is dict:
        return all([_find(part, found, depth + 1) for item in value.items() for part in item])
    return False


def with_others(value, others):
    """The value with other tensors in place of some: `others` has them by the id of each."""
    kind = type(value)
    if kind in _TENSORS:
        return others.get(id(value), value)
    if kind is tuple:
        return tuple([with_others(item, others) for item in value])
    if kind is list:
        value[:] = [with_others(item, others) for item in value]
    elif kind is dict:
        value.update([(key, with_others(item, others)) for key, item in value.items()])
    return value
