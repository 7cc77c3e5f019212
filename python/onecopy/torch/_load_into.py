# SPDX-License-Identifier: Apache-2.0
"""Implements ``Bundle.load_into()``, which makes a module use the bundle's memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import InvalidArgument
from ._modules import other_weights

if TYPE_CHECKING:
    from .. import Bundle

_MAX_NAMED = 8


class LoadedInto(NamedTuple):
    """The names that ``load_into(module, strict=False)`` passed over."""

    missing: list[str]
    unexpected: list[str]


class _Place(NamedTuple):
    """A parameter or buffer of a module."""

    owner: Any
    kind: str  # "_parameters" or "_buffers"
    key: str
    tensor: Any


def load_into(bundle: Bundle, module: Any, prefix: str, strict: bool) -> LoadedInto:
    """Implements ``Bundle.load_into()``. The module changes only after everything was checked."""
    import torch

    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"module must be a torch.nn.Module, not {type(module).__name__}")
    names = _names_below(bundle, prefix)
    places = dict(_places(module))
    missing = _missing(places, names) + [name for name in other_weights(module) if not _has(names, name)]
    unexpected = [name for name in names if name not in places]
    if strict and (missing or unexpected):
        raise InvalidArgument(_complaint(bundle, module, missing, unexpected))
    tensors = dict(zip(bundle.keys(), bundle._values("torch")))
    found = {name: tensors[names[name]] for name in places if name in names}
    _check_shapes(places, found)
    _put(places, found)
    _tie(places, found)
    return LoadedInto(missing, unexpected)


def _names_below(bundle: Bundle, prefix: str) -> dict[str, str]:
    """Returns the bundle's names below the prefix, by the name that the module uses."""
    start = prefix if not prefix or prefix.endswith(".") else prefix + "."
    return {name[len(start) :]: name for name in bundle if name.startswith(start)}


def _places(module: Any) -> Iterable[tuple[str, _Place]]:
    for path, owner in module.named_modules(remove_duplicate=False):
        start = f"{path}." if path else ""
        for kind in ("_parameters", "_buffers"):
            for key, tensor in getattr(owner, kind).items():
                if tensor is not None:
                    yield start + key, _Place(owner, kind, key, tensor)


def _missing(places: dict[str, _Place], names: dict[str, str]) -> list[str]:
    """Returns the names of the module's tensors that the bundle does not contain.

    A tied tensor needs only one of its names. A non-persistent buffer that has elements keeps them.
    """
    given = {id(place.tensor) for name, place in places.items() if name in names}
    return [
        name
        for name, place in places.items()
        if name not in names and id(place.tensor) not in given and not _keeps_its_own(place)
    ]


def _has(names: dict[str, str], name: str) -> bool:
    """Returns whether the bundle contains a value of this name, which may have parts."""
    return name in names or any(each.startswith(f"{name}.") for each in names)


def _keeps_its_own(place: _Place) -> bool:
    return place.key in place.owner._non_persistent_buffers_set and place.tensor.device.type != "meta"


def _check_shapes(places: dict[str, _Place], found: dict[str, Any]) -> None:
    from torch.nn.parameter import is_lazy

    wrong = [
        f"{name!r} is {tuple(tensor.shape)} in the bundle and {tuple(places[name].tensor.shape)} in the module"
        for name, tensor in found.items()
        if not is_lazy(places[name].tensor) and tensor.shape != places[name].tensor.shape
    ]
    if wrong:
        raise InvalidArgument(
            f"{len(wrong)} shapes differ: {_some(wrong, '; ')}; make the module with the sharer's sizes"
        )


def _put(places: dict[str, _Place], found: dict[str, Any]) -> None:
    made: dict[tuple[Any, ...], Any] = {}
    for name, tensor in found.items():
        place = places[name]
        memory = (place.kind, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if memory not in made or not tensor.numel():
            made[memory] = _fit(place, tensor)
        getattr(place.owner, place.kind)[place.key] = made[memory]


def _fit(place: _Place, tensor: Any) -> Any:
    """Returns the bundle's tensor as a buffer, or as a parameter that requires a gradient if the module's did."""
    import torch

    if place.kind == "_buffers":
        return tensor.detach()
    wants = place.tensor.requires_grad and (tensor.is_floating_point() or tensor.is_complex())
    return torch.nn.Parameter(tensor.detach(), requires_grad=wants)


def _tie(places: dict[str, _Place], found: dict[str, Any]) -> None:
    """Ties the tensors again that were one object before, whichever of their names the bundle contains."""
    now = {}
    for name in found:
        place = places[name]
        now[id(place.tensor)] = getattr(place.owner, place.kind)[place.key]
    for place in places.values():
        if id(place.tensor) in now:
            getattr(place.owner, place.kind)[place.key] = now[id(place.tensor)]


# --- errors -----------------------------------------------------------------------------------------


def _complaint(bundle: Bundle, module: Any, missing: list[str], unexpected: list[str]) -> str:
    parts = []
    if missing:
        parts.append(f"the bundle lacks {len(missing)} of the module's tensors: {_some(map(repr, missing))}")
    if unexpected:
        parts.append(f"the module lacks {len(unexpected)} of the bundle's: {_some(map(repr, unexpected))}")
    return "; ".join(parts) + "; " + _advice(bundle, module, missing, unexpected)


def _advice(bundle: Bundle, module: Any, missing: list[str], unexpected: list[str]) -> str:
    if missing and (start := _prefix(list(bundle.keys()), missing)):
        return f"prefix={start!r} loads the tensors below {start!r}"
    if missing and set(missing) <= set(other_weights(module)):
        return "these are neither parameters nor buffers, and strict=False leaves them as they are in the module"
    if missing and not unexpected and _are_non_persistent(module, missing):
        return "a state_dict() does not contain these buffers: share the module itself, share(model)"
    return "strict=False loads the tensors that both have"


def _prefix(names: list[str], missing: list[str]) -> str:
    """Returns the shortest prefix below which the bundle contains all missing names, or an empty text."""
    starts = [name[: -len(missing[0]) - 1] for name in names if name.endswith(f".{missing[0]}")]
    known = set(names)
    fit = [start for start in starts if all(f"{start}.{name}" in known for name in missing)]
    return min(fit, key=len, default="")


def _are_non_persistent(module: Any, names: list[str]) -> bool:
    places = dict(_places(module))
    return set(names) <= set(places) and all(
        places[name].key in places[name].owner._non_persistent_buffers_set for name in names
    )


def _some(parts: Iterable[str], between: str = ", ") -> str:
    parts = list(parts)
    more = f"{between}and {len(parts) - _MAX_NAMED} more" if len(parts) > _MAX_NAMED else ""
    return between.join(parts[:_MAX_NAMED]) + more
