# SPDX-License-Identifier: Apache-2.0
"""Which way a tensor goes, and why: a function of the tensor, of where it goes, and of nothing else."""

from __future__ import annotations

from typing import Any

import dataclasses
import importlib.util

from . import devices

# Of a tensor that crosses as bytes of the message: shared memory of its own would cost more. The bytes are read by numpy.
INLINE_BYTES = 4096 if importlib.util.find_spec("numpy") is not None else 0

INLINE, COPY, LEASE, MOVE, PULL, STAGED, PARTS, HERE, TCP = (
    "inline",
    "copy",
    "lease",
    "move",
    "pull",
    "staged",
    "parts",
    "here",
    "tcp",
)


@dataclasses.dataclass(frozen=True)
class Source:
    """A tensor, as far as its route goes.

    Attributes:
        device: "cpu", or the UUID of the card that it is on.
        layout: "strided" or "sparse_coo"."""

    device: str
    nbytes: int
    layout: str = "strided"
    is_contiguous: bool = True
    is_plain: bool = True  # its bytes are its elements: neither conjugate nor negative by a flag
    mode: str = devices.COPY


@dataclasses.dataclass(frozen=True)
class Target:
    """Where it goes.

    Attributes:
        device: "cpu", or the UUID of a card.
        is_here: this process itself, called without a message.
        is_far: another host.
        can_reach: whether the receiver's card reads the source's memory; None when there is no need."""

    device: str
    is_here: bool = False
    is_far: bool = False  # on another host
    can_reach: "bool | None" = None


@dataclasses.dataclass(frozen=True)
class Route:
    """A way, and its reason."""

    name: str
    reason: str

    def __str__(self) -> Any:
        return f"{self.name}: {self.reason}"


def choose(source: Any, target: Any) -> Any:
    """The Route of one tensor."""
    if target.is_here:
        return Route(HERE, "the callee is this process: it gets the tensor itself")
    if target.is_far:
        return Route(
            TCP,
            "the callee is on another host: the bytes go over a TCP connection, those of a card by way of the "
            "host's memory",
        )
    if source.layout != "strided":
        return Route(PARTS, "a sparse tensor crosses as its indices and its values, each by its own route")
    if source.device == "cpu" and target.device == "cpu":
        return _on_the_host(source)
    if source.device == target.device:
        return _lent(source) or Route(COPY, "copied once on its card, by its sender, and the copy is the receiver's")
    if "cpu" in (source.device, target.device):
        return Route(STAGED, "between the host and a card the receiver copies, out of memory that the sender shares")
    if target.can_reach is False:
        return Route(STAGED, "neither card reads the other's memory: the receiver copies by way of the host")
    return Route(PULL, "the receiver's card copies it out of the sender's card, in stream order")


def _on_the_host(source: Any) -> Any:
    name = on_the_host(source.nbytes, source.is_contiguous, source.is_plain, source.mode)
    return Route(name, _REASONS[name].format(bytes=source.nbytes, most=INLINE_BYTES))


def on_the_host(nbytes: Any, is_contiguous: Any, is_plain: Any, mode: Any) -> Any:
    """The route of a dense tensor of the CPU, by name: made for each tensor that is sent."""
    if mode is not devices.COPY:
        return of_mode(mode)
    return INLINE if nbytes <= INLINE_BYTES and is_contiguous and is_plain else COPY


def of_mode(mode: Any) -> Any:
    """The route of a tensor that does not go as bytes of the message, by name."""
    return {devices.COPY: COPY, devices.BORROW: LEASE, devices.MOVE: MOVE}[mode]


_REASONS = {
    INLINE: "{bytes} bytes go in the message: up to {most} that is less than a block",
    COPY: "copied once, by its sender, into shared memory that the receiver then has alone",
    LEASE: "borrow(): the receiver maps the sender's memory, and no byte is copied",
    MOVE: "move(): the receiver maps memory that the sender has no more, and no byte is copied",
}


def _lent(source: Any) -> Any:
    if source.mode == devices.COPY:
        return None
    name = LEASE if source.mode == devices.BORROW else MOVE
    return Route(name, _REASONS[name])


def source_of(tensor: Any, mode: Any = devices.COPY, device: Any = None) -> Any:
    """The Source of a torch tensor. `device` names a card; the CPU needs none."""
    on_cpu = tensor.device.type == "cpu"
    layout = str(tensor.layout).removeprefix("torch.")
    dense = layout == "strided"
    return Source(
        "cpu" if on_cpu else device or str(tensor.device),
        tensor.nbytes if dense else 0,
        layout,
        dense and tensor.is_contiguous(),
        dense and not tensor.is_conj() and not tensor.is_neg(),
        mode,
    )
