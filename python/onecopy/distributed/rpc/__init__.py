# SPDX-License-Identifier: Apache-2.0
"""Calls between processes: the names of ``torch.distributed.rpc``, over shared memory and without pickle.

Programs import it with ``import onecopy.distributed.rpc as rpc`` instead of ``import torch.distributed.rpc as rpc``.
docs/guides/rpc.md lists the differences.
"""

from __future__ import annotations

from typing import Any

from ...rpc import rendezvous
from ...rpc.peers import WorkerInfo
from ...rpc.rref import PyRRef as PyRRef
from .. import autograd as _autograd
from . import (  # noqa: F401 - torch's names
    _torch_futures,
    api,
    backend_registry,
    constants,
    functions,
    internal,
    options,
    rref_proxy,
)
from .api import (  # noqa: F401
    AllGatherStates,
    RpcAgent,
    RRef,
    TensorPipeAgent,
    _all_gather,
    _barrier,
    _delete_all_user_and_unforked_owner_rrefs,
    _get_current_rpc_agent,
    _is_current_rpc_agent_set,
    _reset_current_rpc_agent,
    _rref_context_get_debug_info,
    _set_and_start_rpc_agent,
    _set_rpc_timeout,
    _wait_all,
    _wait_all_workers,
    enable_gil_profiling,
    get_rpc_timeout,
    get_worker_info,
    remote,
    rpc_async,
    rpc_sync,
    shutdown,
)
from .backend_registry import (
    BackendType,
    BackendValue,
    backend_registered,
    construct_rpc_backend_options,
    init_backend,
    register_backend,
)
from .constants import (  # noqa: F401
    DEFAULT_INIT_METHOD as _DEFAULT_INIT_METHOD,
    DEFAULT_NUM_WORKER_THREADS as _DEFAULT_NUM_WORKER_THREADS,
    DEFAULT_RPC_TIMEOUT_SEC as _DEFAULT_RPC_TIMEOUT_SEC,
    UNSET_RPC_TIMEOUT as _UNSET_RPC_TIMEOUT,
)
from .options import RpcBackendOptions, TensorPipeRpcBackendOptions

__all__ = [
    "BackendType",
    "BackendValue",
    "RRef",
    "RpcAgent",
    "RpcBackendOptions",
    "TensorPipeAgent",
    "TensorPipeRpcBackendOptions",
    "WorkerInfo",
    "api",
    "backend_registered",
    "backend_registry",
    "constants",
    "construct_rpc_backend_options",
    "enable_gil_profiling",
    "functions",
    "get_rpc_timeout",
    "get_worker_info",
    "init_backend",
    "init_rpc",
    "internal",
    "is_available",
    "options",
    "register_backend",
    "remote",
    "rpc_async",
    "rpc_sync",
    "shutdown",
]

_torch_futures.install()


def is_available() -> bool:
    """Returns True, since no support of torch's own is needed."""
    return True


def init_rpc(
    name: str,
    backend: Any = None,
    rank: int = -1,
    world_size: int | None = None,
    rpc_backend_options: RpcBackendOptions | None = None,
) -> None:
    """Joins a group of processes of this user, and returns when all members have joined. Without a world size, members
    join and leave at any time, and the call returns when the present members know this process.

    Args:
        name: the name of this member, unique in the group; letters, digits and ``-_:``.
        rank, world_size: the number of this member and the number of members; by default from the environment.
        rpc_backend_options: a TensorPipeRpcBackendOptions.
    Raises RuntimeError if the name is taken, this process is a member already, or a member does not join in time."""
    if (
        backend is not None
        and not isinstance(backend, type(BackendType.TENSORPIPE))
        and not isinstance(backend, backend_registry.BackendType)
    ):
        raise TypeError("Argument backend must be a member of BackendType")
    if rpc_backend_options is not None and not isinstance(rpc_backend_options, RpcBackendOptions):
        raise TypeError("Argument rpc_backend_options must be an instance of RpcBackendOptions")
    if (
        backend is None
        and rpc_backend_options is not None
        and not isinstance(rpc_backend_options, TensorPipeRpcBackendOptions)
    ):
        raise TypeError(f"Could not infer backend for options {rpc_backend_options}")
    backend = backend or BackendType.TENSORPIPE
    given = rpc_backend_options or construct_rpc_backend_options(backend)
    if _is_current_rpc_agent_set():
        raise RuntimeError("RPC is already initialized")
    store, name, rank, world_size = rendezvous.open_store(given, name, rank, world_size)
    _autograd._init(rank)
    _set_rpc_timeout(given.rpc_timeout)
    _init_rpc_backend(backend, store, name, rank, world_size or None, given)


def _init_rpc_backend(
    backend: Any = BackendType.TENSORPIPE,
    store: Any = None,
    name: str | None = None,
    rank: int = -1,
    world_size: int | None = None,
    rpc_backend_options: RpcBackendOptions | None = None,
) -> None:
    init_backend(
        backend, store=store, name=name, rank=rank, world_size=world_size, rpc_backend_options=rpc_backend_options
    )


def _get_debug_info() -> dict[str, str]:
    info = _rref_context_get_debug_info()
    info.update(api._get_current_rpc_agent().get_debug_info())
    info.update(_autograd._get_debug_info())
    return info
