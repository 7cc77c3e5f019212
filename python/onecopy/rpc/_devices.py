# SPDX-License-Identifier: Apache-2.0
"""Which device a tensor of a message goes to, and how it is made ready to cross."""

import torch

import onecopy

from . import _modes, _routes

CPU = torch.device("cpu")
_SMALL = 8192  # bytes of storage that are sent whole, to keep strides


def of(device):
    """A torch.device for the ways in which maps name one. Throws RuntimeError for other values."""
    if isinstance(device, int) and device < 0:
        raise RuntimeError(f"Device index must not be negative, but got {device}")
    device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if device.type == "cpu":
        return CPU
    return device if device.index is not None else torch.device(device.type, 0)


def parse_map(devices):
    """{device here: device there}."""
    return {of(here): of(there) for here, there in devices.items()}


class Automatic(dict):
    """A map for a member that numbers the host's cards as this process does: a card without an entry is meant itself."""

    def get(self, device, default=None):
        return super().get(device, device if device.type == "cuda" else default)


def inverse(devices):
    return {there: here for here, there in devices.items()}


def numbers(devices):
    """The map of cards by their numbers, and -1 for the CPU, as _core._RpcNode has it."""
    known = [pair for pair in devices.items() if all(d.type in ("cpu", "cuda") for d in pair)]
    return [tuple(-1 if d.type == "cpu" else d.index for d in pair) for pair in known]


def targets(tensors, devices, caller, receiver, what="Request"):
    """Where each tensor goes, as text; `what` is a request or a response. Throws RuntimeError for a device that has no target."""
    found = []
    for tensor in tensors:
        target = devices.get(tensor.device, CPU if tensor.device.type == "cpu" else None)
        if target is None:
            raise RuntimeError(
                f"TensorPipe RPC backend only supports CPU tensors by default, please move your tensors to CPU before "
                f"sending them over RPC, or call `set_device_map` on `TensorPipeRpcBackendOptions` to explicitly "
                f"configure device mapping. {what} device mapping is not available for destination {receiver}: no entry "
                f"for {tensor.device} of {caller}"
            )
        found.append(str(target))
    return found


def pack(tensor, count=lambda route: None, is_far=False):
    """A tensor with the same elements that nobody else has, the bytes of a small one with its dtype and shape, the parts of a
    sparse one, or the tensor itself where it is lent or given away. Strides stay where the storage is small or mostly used.
    `count` is called with its route.
    """
    route = _route(tensor)
    taken = _routes.TCP if is_far else route
    count(taken)
    if route == _routes.PARTS:
        return _parts(tensor.detach(), count, is_far)
    return _PACK[route](tensor.detach())


def _route(tensor):
    if tensor.layout != torch.strided:
        return _routes.PARTS
    mode = _modes.of(tensor)
    if tensor.device.type != "cpu":
        return _routes.of_mode(mode)
    return _routes.on_the_host(tensor.nbytes, tensor.is_contiguous(), not (tensor.is_conj() or tensor.is_neg()), mode)


def _inline(tensor):
    return str(tensor.dtype).removeprefix("torch."), list(tensor.shape), _bytes_of(tensor)


def _parts(tensor, count, is_far):
    indices, values = (pack(part, count, is_far) for part in (tensor._indices(), tensor._values()))
    return indices, values, tuple(tensor.shape), tensor.is_coalesced()


def _copy(tensor):
    storage = tensor.untyped_storage().nbytes()
    whole = not tensor.is_contiguous() and (storage < _SMALL or 2 * tensor.nbytes >= storage)
    if not whole:
        made = _fresh(tensor.shape, tensor)
        return made.copy_(tensor)
    flat = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage())
    return _fresh(flat.shape, flat).copy_(flat).as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


_PACK = {_routes.INLINE: _inline, _routes.COPY: _copy, _routes.LEASE: lambda t: t, _routes.MOVE: lambda t: t}


def _bytes_of(tensor):
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def _of_bytes(name, shape, data):
    """Throws TypeError, ValueError, RuntimeError for what pack() never made."""
    dtype = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(dtype, torch.dtype) or not isinstance(data, bytes):
        raise TypeError(f"a message holds bytes of a tensor of the unknown dtype {name!r}")
    if not data:
        if 0 not in shape:
            raise ValueError(f"a message holds no bytes for a tensor of the shape {shape}")
        return torch.empty(shape, dtype=dtype)
    return (
        torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape).clone()
    )  # with memory of its own, to be resized


def _fresh(shape, like):
    """In shared memory at once, on the CPU: the copy that is made anyway is the only one."""
    if like.device.type != "cpu" or like.numel() == 0 or like.is_conj() or like.is_neg():
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    return onecopy.empty(tuple(shape), str(like.dtype).removeprefix("torch.")).torch()


def unpack(packed, target):
    """The tensor that pack() was given, on its target. Throws TypeError for what pack() never made."""
    if isinstance(packed, tuple) and len(packed) == 3:
        return unpack(_of_bytes(*packed), target)
    if isinstance(packed, tuple):
        indices, values, shape, is_coalesced = packed
        # On the CPU indices that are out of range would be reads out of range.
        return torch.sparse_coo_tensor(
            unpack(indices, target),
            unpack(values, target),
            shape,
            is_coalesced=is_coalesced,
            check_invariants=target == "cpu",
        )
    if not isinstance(packed, torch.Tensor):
        raise TypeError(f"a message holds a {type(packed).__name__} for a tensor, which no sender puts there")
    if str(packed.device) == target:
        return packed
    _routes.received.add(_routes.STAGED if "cpu" in (packed.device.type, target) else _routes.PULL)
    return packed.to(target)


def points(targets):
    """Events behind all work so far in this thread's streams of those devices; () for the CPU alone."""
    cards = {target for target in targets if target != "cpu"}
    return [torch.cuda.current_stream(torch.device(card)).record_event() for card in cards]


def points_of_plain(value):
    """points() for the cards of a value of lists, tuples, dicts and tensors."""
    found, left, seen = set(), [value], set()
    while left:
        one = left.pop()
        if id(one) in seen:  # a list may be in itself
            continue
        seen.add(id(one))
        if isinstance(one, torch.Tensor):
            found.add(str(one.device))
        elif isinstance(one, (list, tuple)):
            left.extend(one)
        elif isinstance(one, dict):
            left.extend((*one, *one.values()))
    return points(found)


def wait_for(points):
    """Makes this thread's streams wait for those events; the host does not wait."""
    for event in points:
        torch.cuda.current_stream(event.device).wait_event(event)
