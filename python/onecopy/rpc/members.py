# SPDX-License-Identifier: Apache-2.0
"""The members of a group, as this process knows them."""

from __future__ import annotations

from typing import Any

from . import device_maps, peers
from .peers import Member, Options, WorkerInfo
from .references import References


class Members:
    """The other members, and where tensors go in each.

    Attributes:
        info, options: this process's own.
        endpoint: a _core._RpcEndpoint, from the moment on at which this process's id is known.
        references: to values of members.
    Thread safety: all members may be called concurrently."""

    def __init__(self, info: WorkerInfo, options: Options, is_static_group: bool) -> None:
        self.info, self.options, self.is_static_group = info, options, is_static_group
        self.cards = peers.visible_cards()
        self.endpoint: Any = None
        self.references = References(self)
        self._members: dict[int, Member] = {}

    def add_member(self, member: Member) -> None:
        """Enters another member."""
        rank = member.info.id
        self._members = {**self._members, rank: member}  # others iterate over the one before
        self.endpoint.join(member.address)
        member.endpoint = self.endpoint
        member.is_far = self.endpoint.is_far(rank)
        member.has_our_cards = not member.is_far and member.cards == self.cards
        self.endpoint.set_devices(
            rank,
            device_maps.numbers(self.map_to(member)),
            device_maps.numbers(self.map_back(member)),
            member.has_our_cards,
            self.options.maps_itself,
        )

    def add_program(self, address: bytes) -> WorkerInfo:
        """Enters a program in C++ that can be called from now on."""
        name, number, _ = self.endpoint.join(address, True)
        if any(m.info.name == name and not m.is_program for m in self._members.values()):
            raise RuntimeError(f"{name} is a member of this group already: give the program in C++ another name")
        member = Member(WorkerInfo(name, number), address, {})
        member.is_program, member.endpoint = True, self.endpoint
        self._members = {**self._members, number: member}
        return member.info

    def connect_far(self) -> None:
        """Connects to members on other hosts: only the end of a connection tells their end. One of two members
        connects."""
        for rank, member in self._members.items():
            if member.is_far and rank > self.info.id:
                self.endpoint.connect(rank, self.options.join_timeout)

    def get_worker_info(self, to: Any = None) -> WorkerInfo:
        """Returns the WorkerInfo of a member, or of this process."""
        return self.info if to is None else self.member(to).info

    def get_worker_infos(self) -> list[WorkerInfo]:
        """Returns all members of a static group, or the living members of another."""
        known = sorted(self._members.items())
        return [m.info for _, m in known if not m.is_program and (self.is_static_group or not m.has_ended)]

    def member(self, to: Any) -> Member:
        """Returns the member of that name, rank or WorkerInfo. Raises RuntimeError for an unknown one, ValueError for a
        value that names none."""
        if isinstance(to, WorkerInfo):
            to = to.id
        if isinstance(to, str):
            named = [m for m in self._members.values() if m.info.name == to]
            if not named:
                raise RuntimeError(
                    f"could not find destination {to}; the members are "
                    f"{', '.join(i.name for i in self.get_worker_infos())}"
                )
            return next((m for m in named if not m.has_ended), named[-1])
        if not isinstance(to, int):
            raise ValueError(f"Cannot get WorkerInfo from name {to}")
        found = self._members.get(to)
        if found is None:
            raise RuntimeError(f"Unknown destination worker id {to}")
        return found

    def member_ids(self) -> list[int]:
        """Returns the ids of all members and programs that there ever were."""
        return list(self._members)

    # --- where tensors go

    def target_of(self, tensor: Any, receiver: int, is_result: bool) -> str:
        """Returns the device of a member that a tensor goes to. Raises RuntimeError for a device without a target."""
        member = self._members[receiver]
        found = self.map_back(member) if is_result else self.map_to(member)
        what = "Response" if is_result else "Request"
        return device_maps.target(tensor, found, self.info.name, member.info.name, what)

    def map_to(self, member: Member) -> device_maps.DeviceMap:
        """Returns the map of calls."""
        return self._completed(member, device_maps.parse_map(self.options.device_maps.get(member.info.name, {})))

    def map_back(self, member: Member) -> device_maps.DeviceMap:
        """Returns the map of results and gradients: the inverse of the other's map, and this process's own map."""
        theirs = device_maps.inverse(device_maps.parse_map(member.device_maps.get(self.info.name, {})))
        return self._completed(member, {**theirs, **self.map_to(member)})

    def _completed(self, member: Member, known: device_maps.DeviceMap) -> device_maps.DeviceMap:
        return device_maps.Automatic(known) if self.options.maps_itself and member.has_our_cards else known

    # --- how they end

    def take_end(self, rank: int, session: int) -> None:
        """Notes the end of a session with a member, all of whose messages were taken."""
        member = self._members.get(rank)
        if member is None:
            return
        member.ended_session = session
        if member.is_far:  # it may come back
            self.references.lose(rank, session)
        self.references.owned.forget_member(rank)
