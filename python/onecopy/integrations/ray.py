# SPDX-License-Identifier: Apache-2.0
"""A tensor transport of Ray Direct Transport (Ray 2.56 or newer) that passes tensors between actors without a copy.

>>> onecopy.integrations.ray.register()  # before the classes of actors are defined

Tensors that an actor's method with ``@ray.method(tensor_transport="onecopy")`` returns stay where they are. An actor
of the same node that receives them as arguments opens the same memory, and so does ``ray.get()`` in a driver there.
An actor on another node gets a copy by Ray's own means: by its NIXL transport where both actors have NIXL, and by its
object store otherwise. routes() counts the objects of each way.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from typing import Any

from .. import Handle, InvalidArgument, OtherBoot, open as _open, share as _share
from ._packages import need

_direct = need("ray.experimental.rdt.tensor_transport_manager", "'ray>=2.56'", "onecopy.integrations.ray")

__all__ = ["OnecopyTransport", "register", "routes"]

NAME = "ONECOPY"

_received = collections.Counter[str]()


@dataclasses.dataclass
class _Metadata(_direct.TensorTransportMetadata):  # type: ignore[name-defined]
    """The data that Ray sends to the receiver."""

    handle: str = ""
    node: str = ""


@dataclasses.dataclass
class _Communicator(_direct.CommunicatorMetadata):  # type: ignore[name-defined]
    """The actor that has the tensors; None if the receiver is a driver."""

    source: Any = None


def _node() -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())


def _manager(name: str) -> Any:
    from ray.experimental.rdt.util import get_tensor_transport_manager

    return get_tensor_transport_manager(name)


@functools.cache
def _nixl() -> Any:
    """Returns Ray's NIXL transport, or None where NIXL is not installed or does not start."""
    try:
        transport = _manager("NIXL")
        transport.get_nixl_agent()
        return transport
    except Exception:  # of any library that NIXL loads
        return None


def _offer(actor: Any, obj_id: str, with_nixl: bool) -> Any:
    """Runs in the actor that has the tensors."""
    return _manager(NAME).offer(obj_id, with_nixl)


class OnecopyTransport(_direct.TensorTransportManager):  # type: ignore[name-defined]
    """Sends the tensors of an object as one handle, which another process of the node opens. A receiver on another node
    asks the actor for a copy.

    A handle and its tensors are kept until Ray calls garbage_collect() for their object. Thread safety: Ray's threads
    call the methods for one object at a time.
    """

    def __init__(self) -> None:
        self._shared: dict[str, tuple[Handle, list[Any]]] = {}
        self._offered: dict[str, Any] = {}  # what Ray's NIXL transport knows of an object

    def tensor_transport_backend(self) -> str:
        return NAME

    @staticmethod
    def is_one_sided() -> bool:
        return True  # the receiver opens the handle, and the sender does nothing

    @staticmethod
    def can_abort_transport() -> bool:
        return True  # opening does not wait, and a receiver on another node waits for Ray alone

    def actor_has_tensor_transport(self, actor: Any) -> bool:
        return True

    def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: list[Any]) -> _Metadata:
        """Shares the tensors in place, so that receivers of this node see later writes of this actor."""
        if not rdt_object:
            return _Metadata(tensor_meta=[])
        device = rdt_object[0].device
        if any(tensor.device.type != device.type for tensor in rdt_object):
            raise InvalidArgument("Ray needs all tensors of an object on one type of device: return them one by one")
        tensors = [tensor.detach() for tensor in rdt_object]
        handle = _share(tensors)
        self._shared[obj_id] = handle, tensors
        shapes = [(tensor.shape, tensor.dtype) for tensor in rdt_object]
        return _Metadata(tensor_meta=shapes, tensor_device=device.type, handle=str(handle), node=_node())

    def get_communicator_metadata(self, src_actor: Any, dst_actor: Any, backend: str | None = None) -> Any:
        return _Communicator(source=src_actor)

    def offer(self, obj_id: str, with_nixl: bool) -> Any:
        """Returns what a receiver on another node needs: metadata of Ray's NIXL transport, if the receiver has it, or
        copies of the tensors."""
        tensors = self._shared[obj_id][1]
        if with_nixl and all(tensor.is_contiguous() for tensor in tensors) and (nixl := _nixl()):
            self._offered[obj_id] = nixl.extract_tensor_transport_metadata(obj_id, tensors)
            return self._offered[obj_id]
        return [tensor.cpu().contiguous().flatten().view(_torch().uint8).numpy() for tensor in tensors]

    def recv_multiple_tensors(self, obj_id: str, tensor_transport_metadata: _Metadata, communicator_metadata: Any,
                              target_buffers: list[Any] | None = None) -> list[Any]:  # fmt: skip
        """
        Opens the tensors of an object, or copies them into ``target_buffers``.

        Raises:
            OwnerDied: the actor that made the tensors has ended, and no other process holds them.
            OtherBoot: a driver on another node asks for the object, with ``ray.get()`` in its usual form.
        """
        if not tensor_transport_metadata.tensor_meta:
            return []
        if tensor_transport_metadata.node != _node():
            return self._receive_copies(obj_id, tensor_transport_metadata, communicator_metadata, target_buffers)
        _received["handle"] += 1
        tensors = _open(tensor_transport_metadata.handle, framework="torch").tree()
        return _copied_into(target_buffers, tensors) if target_buffers else tensors

    def _receive_copies(
        self, obj_id: str, metadata: _Metadata, communicator: _Communicator, target_buffers: list[Any] | None
    ) -> list[Any]:
        """Receives copies from another node.

        Runs in a concurrency group of its own, so that two actors that receive from each other do not block each other.
        """
        import ray

        if communicator.source is None:
            raise OtherBoot(
                "the tensors are on another node: get them with ray.get(reference, _use_object_store=True), or in an "
                "actor"
            )
        nixl = _nixl()
        call = communicator.source.__ray_call__.options(concurrency_group="_ray_system_error")
        offer = ray.get(call.remote(_offer, obj_id, nixl is not None))
        if not isinstance(offer, list):
            _received["nixl"] += 1
            communicator = nixl.get_communicator_metadata(None, None)
            return list(nixl.recv_multiple_tensors(obj_id, offer, communicator, target_buffers))
        _received["object store"] += 1
        torch = _torch()
        device = metadata.tensor_device
        tensors = [
            torch.tensor(bytes_, dtype=torch.uint8).view(dtype).view(shape).to(device)
            for bytes_, (shape, dtype) in zip(offer, metadata.tensor_meta, strict=True)
        ]
        return _copied_into(target_buffers, tensors) if target_buffers else tensors

    def send_multiple_tensors(self, tensors: list[Any], tensor_transport_metadata: _Metadata,
                              communicator_metadata: Any) -> None:  # fmt: skip
        raise NotImplementedError("Ray does not call the sender of a one-sided transport")

    def garbage_collect(self, obj_id: str, tensor_transport_meta: _Metadata, tensors: list[Any]) -> None:
        shared = self._shared.pop(obj_id, None)
        if shared and (offered := self._offered.pop(obj_id, None)):
            _manager("NIXL").garbage_collect(obj_id, offered, shared[1])

    def abort_transport(self, obj_id: str, communicator_metadata: Any) -> None:
        pass


def _torch() -> Any:
    return need("torch", "torch", "onecopy.integrations.ray.register()")


def _copied_into(buffers: list[Any], tensors: list[Any]) -> list[Any]:
    for buffer, tensor in zip(buffers, tensors, strict=True):
        buffer.copy_(tensor)
    return buffers


def routes() -> dict[str, int]:
    """
    Returns how many objects this process has received in each way.

    The ways are ``handle`` (without a copy), ``nixl`` and ``object store`` (copies from another node).
    """
    return {way: _received[way] for way in ("handle", "nixl", "object store")}


def register() -> None:
    """
    Registers ``tensor_transport="onecopy"`` with Ray, in this process and in actors that it creates later.

    A second call has no effect.

    Raises:
        MissingPackage: torch is not installed.
    """
    torch = _torch()
    util = need("ray.experimental.rdt.util", "'ray>=2.56'", "onecopy.integrations.ray")
    if NAME not in util.transport_manager_info:
        util.register_tensor_transport(NAME, ["cpu", "cuda"], OnecopyTransport, torch.Tensor)
