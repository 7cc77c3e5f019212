# SPDX-License-Identifier: Apache-2.0
"""The backends that init_rpc() may use. There is one, under torch's name for its own."""

import collections
import enum

from . import constants
from .api import _start_agent
from .options import TensorPipeRpcBackendOptions

BackendValue = collections.namedtuple("BackendValue", ["construct_rpc_backend_options_handler", "init_backend_handler"])


def _make_type(members):
    made = enum.Enum("BackendType", members)
    made.__repr__ = lambda self: "BackendType." + self.name
    return made


def _construct_options(rpc_timeout, init_method, num_worker_threads=constants.DEFAULT_NUM_WORKER_THREADS, **kwargs):
    return TensorPipeRpcBackendOptions(
        rpc_timeout=rpc_timeout, init_method=init_method, num_worker_threads=num_worker_threads, **kwargs
    )


def _init_backend(store, name, rank, world_size, rpc_backend_options):
    if not isinstance(rpc_backend_options, TensorPipeRpcBackendOptions):
        raise TypeError(
            f"`rpc_backend_options` must be a `TensorPipeRpcBackendOptions`. {rpc_backend_options!r} is not"
        )
    return _start_agent(store, name, rank, world_size, rpc_backend_options)


BackendType = _make_type({"TENSORPIPE": BackendValue(_construct_options, _init_backend)})


def backend_registered(backend_name):
    """Whether there is a backend of that name."""
    return backend_name in BackendType.__members__


def register_backend(backend_name, construct_rpc_backend_options_handler, init_backend_handler):
    """Adds a backend; returns the new BackendType. Throws RuntimeError when the name is taken."""
    global BackendType
    if backend_registered(backend_name):
        raise RuntimeError(f"RPC backend {backend_name}: already registered")
    members = {m.name: m.value for m in BackendType}
    members[backend_name] = BackendValue(construct_rpc_backend_options_handler, init_backend_handler)
    BackendType = _make_type(members)
    return BackendType[backend_name]


def construct_rpc_backend_options(
    backend, rpc_timeout=constants.DEFAULT_RPC_TIMEOUT_SEC, init_method=constants.DEFAULT_INIT_METHOD, **kwargs
):
    """Options of that backend."""
    return backend.value.construct_rpc_backend_options_handler(rpc_timeout, init_method, **kwargs)


def init_backend(backend, *args, **kwargs):
    """Starts that backend in this process."""
    return backend.value.init_backend_handler(*args, **kwargs)
