# SPDX-License-Identifier: Apache-2.0
"""The backends of init_rpc(). The only backend has the name of torch's own."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, NamedTuple

from . import constants
from .api import TensorPipeAgent, _start_agent
from .options import RpcBackendOptions, TensorPipeRpcBackendOptions


class BackendValue(NamedTuple):
    """The functions of a backend."""

    construct_rpc_backend_options_handler: Callable[..., Any]
    init_backend_handler: Callable[..., Any]


class _Backend(enum.Enum):
    def __repr__(self) -> str:
        return f"BackendType.{self.name}"


def _make_type(members: dict[str, BackendValue]) -> Any:
    return _Backend("BackendType", members)  # type: ignore[call-arg]


def _construct_options(
    rpc_timeout: float, init_method: str, num_worker_threads: int = constants.DEFAULT_NUM_WORKER_THREADS, **kwargs: Any
) -> TensorPipeRpcBackendOptions:
    return TensorPipeRpcBackendOptions(
        rpc_timeout=rpc_timeout, init_method=init_method, num_worker_threads=num_worker_threads, **kwargs
    )


def _init_backend(
    store: Any, name: str, rank: int, world_size: int | None, rpc_backend_options: RpcBackendOptions
) -> TensorPipeAgent:
    if not isinstance(rpc_backend_options, TensorPipeRpcBackendOptions):
        raise TypeError(
            f"`rpc_backend_options` must be a `TensorPipeRpcBackendOptions`. {rpc_backend_options!r} is not"
        )
    return _start_agent(store, name, rank, world_size, rpc_backend_options)


BackendType = _make_type({"TENSORPIPE": BackendValue(_construct_options, _init_backend)})


def backend_registered(backend_name: str) -> bool:
    """Returns whether there is a backend of that name."""
    return backend_name in BackendType.__members__


def register_backend(
    backend_name: str,
    construct_rpc_backend_options_handler: Callable[..., Any],
    init_backend_handler: Callable[..., Any],
) -> Any:
    """Adds a backend, and returns the new BackendType. Raises RuntimeError if the name is taken."""
    global BackendType
    if backend_registered(backend_name):
        raise RuntimeError(f"RPC backend {backend_name}: already registered")
    members = {m.name: m.value for m in BackendType}
    members[backend_name] = BackendValue(construct_rpc_backend_options_handler, init_backend_handler)
    BackendType = _make_type(members)
    return BackendType[backend_name]


def construct_rpc_backend_options(
    backend: Any,
    rpc_timeout: float = constants.DEFAULT_RPC_TIMEOUT_SEC,
    init_method: str = constants.DEFAULT_INIT_METHOD,
    **kwargs: Any,
) -> Any:
    """Returns the options of a backend."""
    return backend.value.construct_rpc_backend_options_handler(rpc_timeout, init_method, **kwargs)


def init_backend(backend: Any, *args: Any, **kwargs: Any) -> Any:
    """Starts a backend in this process."""
    return backend.value.init_backend_handler(*args, **kwargs)
