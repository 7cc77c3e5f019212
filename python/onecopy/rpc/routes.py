# SPDX-License-Identifier: Apache-2.0
"""The route that a tensor takes to another member, and the reason for it."""

from __future__ import annotations

import dataclasses
import importlib.util
from typing import Any

import torch

from . import devices, registry
from .devices import BORROW, COPY
from .peers import WorkerInfo
from .registry import verb

# The maximum size of a tensor that is sent as bytes of the message, where shared memory of its own would cost more.
# Reading the bytes needs numpy.
INLINE_BYTES = 4096 if importlib.util.find_spec("numpy") is not None else 0


@dataclasses.dataclass(frozen=True)
class Route:
    """The name of a route, and the reason for the choice."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


def explain(to: str | int | WorkerInfo, tensor: torch.Tensor | devices.MarkedTensor) -> Route:
    """Returns the Route that `tensor`, borrow(tensor) or move(tensor) takes as an argument of a call to the member
    `to`. Sends no tensor; for a tensor on a card, asks the member about its cards.

    Raises RuntimeError for a tensor on a card without a target in the device maps."""
    agent = registry.current()
    member = agent.member(to)
    mode = tensor.mode if isinstance(tensor, devices.MarkedTensor) else COPY
    tensor = devices.unmarked(tensor)
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"explain() takes a tensor, not a {type(tensor).__name__}")
    if member.info.id == agent.info.id:
        return Route("here", "the callee is this process: it gets the tensor itself")
    if member.is_far:
        if mode == BORROW:
            devices.check_far(member.info)
        return _between_hosts(agent.endpoint, member.info.id, tensor.device.type != "cpu")
    target = agent.target_of(tensor, member.info.id, False)
    if tensor.layout != torch.strided:
        return Route("parts", "a sparse tensor crosses as its indices and its values, each by its own route")
    is_plain = tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
    if mode == COPY and tensor.device.type == target == "cpu" and tensor.nbytes <= INLINE_BYTES and is_plain:
        reason = f"{tensor.nbytes} bytes go in the message: up to {INLINE_BYTES} that is less than a block"
        return Route("inline", reason)
    here = _uuid(tensor.device)
    there, can_reach = (target, True) if target == "cpu" else agent.call_verb(member.info.id, ".card", (target, here))
    return between(here, there, mode, can_reach)


def _between_hosts(endpoint: Any, to: int, is_on_card: bool) -> Route:
    name = endpoint.transport(to)
    reason = f"the callee is on another host: the bytes go over {'TLS' if name == 'tls' else 'UCX, unencrypted'}"
    if is_on_card:
        reason += ", from the card" if endpoint.takes_cards(to) else ", by way of the host's memory"
    return Route(name, reason)


_LENT = {
    BORROW: Route("lease", "borrow(): the receiver maps the sender's memory, and no byte is copied"),
    devices.MOVE: Route("move", "move(): the receiver maps memory that the sender has no more, and no byte is copied"),
}


def between(here: str, there: str, mode: str = COPY, can_reach: bool = True) -> Route:
    """Returns the route of a dense tensor between two devices, which are "cpu" or UUIDs of cards. `can_reach` is
    whether the receiver's card can read the memory of the sender's card."""
    if here == there and mode != COPY:
        return _LENT[mode]
    if here == there == "cpu":
        return Route("copy", "copied once, by its sender, into shared memory that the receiver then has alone")
    if here == there:
        return Route("copy", "copied once on its card, by its sender, and the copy is the receiver's")
    if "cpu" in (here, there):
        return Route("staged", "between the host and a card the receiver copies, out of memory that the sender shares")
    if not can_reach:
        return Route("staged", "neither card reads the other's memory: the receiver copies by way of the host")
    return Route("pull", "the receiver's card copies it out of the sender's card, in stream order")


def _uuid(device: torch.device) -> str:
    """Returns the UUID of a card, which is the same in all processes, or "cpu"."""
    return "cpu" if device.type == "cpu" else str(torch.cuda.get_device_properties(device).uuid)


@verb(".card")
def _about_card(agent: object, caller: int, target: str, card: str) -> tuple[str, bool]:
    """Returns (UUID of the card `target` of this process, whether it can read the memory of the card with the UUID
    `card`)."""
    here = torch.device(target)
    there = [i for i in range(torch.cuda.device_count()) if _uuid(torch.device("cuda", i)) == card]
    can_reach = bool(there) and (there[0] == here.index or torch.cuda.can_device_access_peer(here.index, there[0]))
    return _uuid(here), can_reach
