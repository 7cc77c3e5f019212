# SPDX-License-Identifier: Apache-2.0
"""A tensor transport of Ray Direct Transport (Ray 2.56 or newer) that passes tensors between actors without a copy.

>>> onecopy.integrations.ray.register()  # before the classes of actors are defined

Tensors that an actor's method with ``@ray.method(tensor_transport="onecopy")`` returns stay where they are. An actor
that receives them as arguments opens the same memory, and so does ``ray.get()`` in a driver on the same machine.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from .. import Handle, InvalidArgument, open as _open, share as _share
from ._packages import need

_direct = need("ray.experimental.rdt.tensor_transport_manager", "'ray>=2.56'", "onecopy.integrations.ray")

__all__ = ["OnecopyTransport", "register"]

NAME = "ONECOPY"


@dataclasses.dataclass
class _Metadata(_direct.TensorTransportMetadata):  # type: ignore[name-defined]
    """The data that Ray sends to the receiver."""

    handle: str = ""


class OnecopyTransport(_direct.TensorTransportManager):  # type: ignore[name-defined]
    """Sends the tensors of an object as one handle, which another process of this machine opens.

    A handle is kept until Ray calls garbage_collect() for its object. Thread safety: Ray's threads call the methods
    for one object at a time.
    """

    def __init__(self) -> None:
        self._handles: dict[str, Handle] = {}

    def tensor_transport_backend(self) -> str:
        return NAME

    @staticmethod
    def is_one_sided() -> bool:
        return True  # the receiver opens the handle, and the sender does nothing

    @staticmethod
    def can_abort_transport() -> bool:
        return True  # opening does not wait, so there is nothing to interrupt

    def actor_has_tensor_transport(self, actor: Any) -> bool:
        return True

    def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: list[Any]) -> _Metadata:
        """Shares the tensors in place, so that receivers see later writes of this actor."""
        if not rdt_object:
            return _Metadata(tensor_meta=[])
        device = rdt_object[0].device
        if any(tensor.device.type != device.type for tensor in rdt_object):
            raise InvalidArgument("Ray needs all tensors of an object on one type of device: return them one by one")
        handle = _share([tensor.detach() for tensor in rdt_object])
        self._handles[obj_id] = handle
        shapes = [(tensor.shape, tensor.dtype) for tensor in rdt_object]
        return _Metadata(tensor_meta=shapes, tensor_device=device.type, handle=str(handle))

    def get_communicator_metadata(self, src_actor: Any, dst_actor: Any, backend: str | None = None) -> Any:
        return _direct.CommunicatorMetadata()

    def recv_multiple_tensors(self, obj_id: str, tensor_transport_metadata: _Metadata, communicator_metadata: Any,
                              target_buffers: list[Any] | None = None) -> list[Any]:  # fmt: skip
        """
        Opens the tensors of an object, or copies them into ``target_buffers``.

        Raises:
            OwnerDied: the actor that made the tensors has ended, and no other process holds them.
            OtherBoot: the actor is on another machine, which needs another transport.
        """
        if not tensor_transport_metadata.tensor_meta:
            return []
        tensors = _open(tensor_transport_metadata.handle, framework="torch").tree()
        if not target_buffers:
            return tensors
        for buffer, tensor in zip(target_buffers, tensors, strict=True):
            buffer.copy_(tensor)
        return target_buffers

    def send_multiple_tensors(self, tensors: list[Any], tensor_transport_metadata: _Metadata,
                              communicator_metadata: Any) -> None:  # fmt: skip
        raise NotImplementedError("Ray does not call the sender of a one-sided transport")

    def garbage_collect(self, obj_id: str, tensor_transport_meta: _Metadata, tensors: list[Any]) -> None:
        self._handles.pop(obj_id, None)

    def abort_transport(self, obj_id: str, communicator_metadata: Any) -> None:
        pass


def register() -> None:
    """
    Registers ``tensor_transport="onecopy"`` with Ray, in this process and in actors that it creates later.

    A second call has no effect.

    Raises:
        MissingPackage: torch is not installed.
    """
    torch = need("torch", "torch", "onecopy.integrations.ray.register()")
    util = need("ray.experimental.rdt.util", "'ray>=2.56'", "onecopy.integrations.ray")
    if NAME not in util.transport_manager_info:
        util.register_tensor_transport(NAME, ["cpu", "cuda"], OnecopyTransport, torch.Tensor)
