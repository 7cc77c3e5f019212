# SPDX-License-Identifier: Apache-2.0
"""What ``share()`` does for a ``torch.nn.Module`` beyond sharing its parameters and buffers."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .. import _core
from ..errors import OutOfMappings, OutOfMemory, Unsupported
from . import _pool_ids

if TYPE_CHECKING:
    import torch

_log = logging.getLogger("onecopy")


def prepare(module: torch.nn.Module, place: str, move: bool) -> None:
    """Checks that the parameters and buffers are all of a module's weights, and moves them if ``move``.

    Raises:
        Unsupported: the module has weights that are neither parameters nor buffers, such as packed weights of a
            quantized layer. The message names the weights.
    """
    if names := list(other_weights(module)):
        raise Unsupported(
            f"{place} has weights that are neither parameters nor buffers: {', '.join(map(repr, names[:4]))}"
            f"{' and others' if len(names) > 4 else ''}; share(module.state_dict()) holds those that are tensors and "
            f"plain values, and a module can be shared before it is quantized"
        )
    if move:
        _move(module)


def other_weights(module: torch.nn.Module) -> Iterator[str]:
    """Yields the names in a module's ``state_dict()`` that are neither parameters nor buffers, and have a value."""
    import torch

    usual = torch.nn.Module
    for path, part in module.named_modules():
        kind, start = type(part), f"{path}." if path else ""
        if kind.get_extra_state is not usual.get_extra_state and not _is_empty(part.get_extra_state()):
            yield f"{start}_extra_state"
        if kind._save_to_state_dict is not usual._save_to_state_dict:
            yield from (start + name for name in _saved_beside(part))


def _is_empty(state: Any) -> bool:
    return state is None or (hasattr(state, "numel") and not state.numel())


def _saved_beside(part: torch.nn.Module) -> Iterator[str]:
    saved: OrderedDict[str, Any] = OrderedDict()
    part._save_to_state_dict(saved, "", keep_vars=True)
    known = {**part._parameters, **part._buffers}
    same = {id(tensor) for tensor in known.values()}
    for name, value in saved.items():
        if name not in known and name != "_extra_state" and value is not None and id(value) not in same:
            yield name


# --- memory of cards --------------------------------------------------------------------------------


def _move(module: torch.nn.Module) -> None:
    """Moves parameters and buffers from memory of torch's CUDA allocator, which ends with the process, to memory of
    onecopy. One storage at a time is in both.

    A storage stays where it is if another process or library may have its memory, if tensors outside of the module use
    it, or if a CUDA graph may have captured its address.
    """
    import torch

    storages: dict[int, list[torch.Tensor]] = {}
    for tensor in {id(each): each for each in (*module.parameters(), *module.buffers())}.values():
        if tensor.is_cuda and type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided:
            storages.setdefault(tensor.untyped_storage()._cdata, []).append(tensor)
    movable = [tensors for tensors in storages.values() if _may_move(torch, tensors)]
    if not movable or _has_graphs(torch):
        return
    for tensors in movable:
        try:
            _move_storage(torch, tensors)
        except (OutOfMemory, OutOfMappings, Unsupported) as error:
            _log.warning("memory of torch's allocator is shared where it is, and ends with this process: %s", error)
            return


def _may_move(torch: Any, tensors: list[Any]) -> bool:
    """Returns whether only this process uses the storage, and only through these tensors."""
    from torch.multiprocessing import reductions

    if any(tensor.is_conj() or tensor.is_neg() or tensor.is_inference() for tensor in tensors):
        return False
    storage = tensors[0].untyped_storage()
    sent = {reference.cdata for reference in reductions.shared_cache.values()}
    return (
        storage.resizable()
        and storage._cdata not in sent
        and _core.torch_is_private(storage)
        and _users(torch, storage) == len(tensors)
    )


def _users(torch: Any, storage: Any) -> int:
    """Returns the number of tensors on a storage, of which the caller has an object."""
    one = torch.empty(0)
    own = one.untyped_storage()
    count = torch._C._storage_Use_Count
    return int(count(storage._cdata) - count(own._cdata) + 1)


def _has_graphs(torch: Any) -> bool:
    """Returns whether torch may hold memory of captured graphs, which contain addresses."""
    try:
        segments = torch.cuda.memory_snapshot()
    except RuntimeError:  # torch uses the allocator of the driver
        return True
    known = {(0, 0), *_pool_ids()}
    return any(tuple(segment.get("segment_pool_id", (0, 0))) not in known for segment in segments)


def _move_storage(torch: Any, tensors: list[Any]) -> None:
    storage = tensors[0].untyped_storage()
    device = storage.device
    new = _core.empty(storage.nbytes(), "uint8", str(device)).torch()
    old = torch.empty(0, dtype=torch.uint8, device=device).set_(storage)
    torch.cuda.synchronize(device)  # other streams may still write
    new.copy_(old)
    torch.cuda.synchronize(device)  # and read, before torch reuses the memory
    for tensor in tensors:
        twin = torch.empty(0, dtype=tensor.dtype, device=device)
        tensor.data = twin.set_(new.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())
