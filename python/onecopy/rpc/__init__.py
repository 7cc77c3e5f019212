# SPDX-License-Identifier: Apache-2.0
"""Calls between the processes of one host, with tensors as arguments and results, and without pickle.

    import onecopy.rpc as rpc

    @rpc.export                      # others may call this, and nothing that is not marked
    def scale(tensor, by):
        return tensor * by

    rpc.init("worker0", rank=0, world_size=2, rendezvous="file:///tmp/meeting")
    rpc.call("worker1", scale, args=(torch.ones(3), 2))
    rpc.shutdown()

``onecopy.distributed.rpc`` has the names of ``torch.distributed.rpc`` over the same engine.
"""

from ..errors import PeerDied, Timeout
from ..torch import _required as _required
from .api import (
    address,
    call,
    current_call,
    enter,
    init,
    members,
    remote,
    shutdown,
)
from .calling import Call, call_async, wait_all
from .devices import borrow, move
from .errors import Busy, Cancelled, RemoteError
from .functions import export
from .peers import WorkerInfo
from .routes import Route, explain
from .rref import PyRRef as Reference
from .streams import Stream, stream
from .telemetry import calls, stats
from .values import allow_pickle

__all__ = [
    "Busy",
    "Call",
    "Cancelled",
    "PeerDied",
    "Reference",
    "RemoteError",
    "Route",
    "Stream",
    "Timeout",
    "WorkerInfo",
    "address",
    "allow_pickle",
    "borrow",
    "call",
    "call_async",
    "calls",
    "current_call",
    "enter",
    "explain",
    "export",
    "init",
    "members",
    "move",
    "remote",
    "shutdown",
    "stats",
    "stream",
    "wait_all",
]
