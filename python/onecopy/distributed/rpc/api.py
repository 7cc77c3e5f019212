# SPDX-License-Identifier: Apache-2.0
"""Calls, references and groups, under the names of torch.distributed.rpc.api."""

from __future__ import annotations

import contextlib
import datetime
import functools
import importlib
import logging
import threading
from collections.abc import Callable, Collection, Iterator
from typing import Any, Generic, TypeVar

import torch

from ...rpc import calling, group, registry, rendezvous, rref, telemetry, values
from ...rpc.errors import RefusedValue
from ...rpc.futures import CallFuture
from ...rpc.peers import Options, WorkerInfo
from ...rpc.rref import PyRRef
from . import constants
from .options import RpcBackendOptions

AllGatherStates = rendezvous.AllGatherStates
_thread_local_var = threading.local()  # .future_list: the futures that _wait_all() collects
_ignore_rref_leak = True
_log = logging.getLogger("onecopy.rpc")
_timeout = constants.DEFAULT_RPC_TIMEOUT_SEC
T = TypeVar("T")
To = str | int | WorkerInfo


class RRef(PyRRef, Generic[T]):
    __doc__ = PyRRef.__doc__


rref.use(RRef)


def _make_remote_module(*parts: Any) -> Any:
    above = importlib.import_module("onecopy.distributed.nn.api.remote_module")
    return above.RemoteModule.init_from_module_rref(*parts)


# The class lies above this package, and is imported by its name when the first RemoteModule arrives.
values.register("remote module", (), iter, _make_remote_module)


class RpcAgent:
    """The base class of agents, for isinstance()."""


class TensorPipeAgent(group.Agent, RpcAgent):
    """The agent of this process, under torch's name."""

    has_gil_profiling = False

    def _get_backend_options(self) -> Options:
        return self.options

    def _get_device_map(self, worker: WorkerInfo) -> dict[torch.device, torch.device]:
        return self.options.device_maps.get(worker.name, {})

    def get_debug_info(self) -> dict[str, str]:
        """Returns {name: number as text}."""
        pending, answering = str(self.endpoint.calls_under_way), str(self.endpoint.serving)
        info = {
            "agent.num_pending_requests": pending,
            "agent.thread_pool_size": str(self.options.num_worker_threads),
            "agent.num_idle_threads": str(self.endpoint.idle_workers),
            "agent.client_active_calls": pending,
            "agent.server_active_calls": answering,
            "agent.server_active_async_calls": "0",
        }
        return {**info, "agent.gil_average_wait_time_us": "0"} if self.has_gil_profiling else info


def _agent() -> Any:
    """Returns the agent of this process, or raises torch's error."""
    return registry.current("RPC has not been initialized. Call torch.distributed.rpc.init_rpc first.")


# --- the agent


_get_current_rpc_agent, _set_and_start_rpc_agent = registry.current, registry.set_current
_reset_current_rpc_agent = functools.partial(registry.set_current, None)


def _is_current_rpc_agent_set() -> bool:
    return registry.this_agent is not None


def _start_agent(
    store: Any, name: str, rank: int, world_size: int | None, options: RpcBackendOptions
) -> TensorPipeAgent:
    agent = TensorPipeAgent(store, name, rank, world_size, options)
    rendezvous.start(agent)
    return agent


def get_rpc_timeout() -> float:
    """Returns the default timeout of calls in seconds."""
    return registry.current().endpoint.timeout if _is_current_rpc_agent_set() else _timeout


def _set_rpc_timeout(seconds: float) -> None:
    global _timeout
    _timeout = float(seconds)
    if _is_current_rpc_agent_set():
        registry.current().endpoint.timeout = _timeout


def enable_gil_profiling(flag: bool) -> None:
    """Sets whether the debug info contains the time spent waiting for the GIL, which is always 0."""
    registry.current().has_gil_profiling = bool(flag)


# --- calls


def rpc_sync(
    to: To, func: Callable[..., Any], args: Any = None, kwargs: Any = None, timeout: float = constants.UNSET_RPC_TIMEOUT
) -> Any:
    """Returns the result of func(*args, **kwargs), run in the member `to` (a name, rank or WorkerInfo).

    Raises the exception of func, as its own type and with its traceback in the text; RuntimeError after `timeout`
    seconds or if the member has ended; TypeError, before anything is sent, if a value cannot be sent."""
    agent = registry.this_agent or _agent()
    if telemetry.is_profiled():
        return calling.call(to, func, args, kwargs, timeout)
    try:  # does what calling.call() does, without its frame
        return agent.endpoint.call(to, func, args, kwargs, timeout)
    except RefusedValue as refused:
        raise refused.located(func=func, args=args, kwargs=kwargs) from None


def rpc_async(
    to: To, func: Callable[..., Any], args: Any = None, kwargs: Any = None, timeout: float = constants.UNSET_RPC_TIMEOUT
) -> CallFuture:
    """Returns a torch.futures.Future of the result or error of rpc_sync()."""
    _agent()
    future = calling.begin(to, func, args, kwargs, timeout)
    if telemetry.is_profiled():
        future.want()  # torch's profiler waits for the future in C++
    if hasattr(_thread_local_var, "future_list"):
        _thread_local_var.future_list.append(future)
    return future


def remote(
    to: To, func: Callable[..., Any], args: Any = None, kwargs: Any = None, timeout: float = constants.UNSET_RPC_TIMEOUT
) -> PyRRef:
    """Returns at once a reference to the result of func(*args, **kwargs), which stays in the member `to`."""
    _agent()
    return calling.remote(to, func, args, kwargs, timeout)


def get_worker_info(worker_name: To | None = None) -> WorkerInfo:
    """Returns the WorkerInfo of a member, or of this process without a name."""
    return _agent().get_worker_info(worker_name)


@contextlib.contextmanager
def _use_rpc_pickler(rpc_pickler: object) -> Iterator[None]:
    """Raises NotImplementedError, since values are sent without pickle and no pickler can be exchanged."""
    raise NotImplementedError(
        "onecopy's rpc has no pickler: make the value a dataclass, or call onecopy.rpc.allow_pickle()"
    )
    yield


@contextlib.contextmanager
def _wait_all() -> Iterator[None]:
    """Waits at the end of the block for all Futures that rpc_async() has returned to this thread in the block."""
    _thread_local_var.future_list = []
    try:
        yield
    finally:
        futures = _thread_local_var.future_list
        del _thread_local_var.future_list
        for future in futures:
            future.wait()


# --- all members together


_gather_to_leader = rendezvous.gather_to_leader


def _broadcast_to_followers(sequence_id: str, objects_map: dict[str, Any], error: str | None = None) -> None:
    """Takes the message of the leader of a gathering to a follower."""
    rendezvous.broadcast_to_followers(sequence_id, objects_map, error)


rendezvous.take_broadcast = lambda *args: _broadcast_to_followers(*args)  # noqa: PLW0108 - a program may replace it


def _all_gather(
    obj: Any, worker_names: Collection[str] | None = None, timeout: float = constants.UNSET_RPC_TIMEOUT
) -> dict[str, Any]:
    """Returns {name: object} of the named members, or of all members, once each of them has called _all_gather()."""
    _agent()
    return rendezvous.all_gather(obj, worker_names, timeout)


def _barrier(worker_names: Collection[str]) -> None:
    """Returns when all named members have called _barrier()."""
    _agent()
    try:
        _all_gather(None, set(worker_names))
    except RuntimeError:
        _log.exception("Failed to complete barrier")


def _wait_all_workers(timeout: float = constants.DEFAULT_SHUTDOWN_TIMEOUT) -> None:
    """Returns when all members have called it. Raises RuntimeError if a member has ended."""
    _agent()
    try:
        _all_gather(None, timeout=timeout)
    except RuntimeError:
        _log.exception("Failed to respond to 'Shutdown Proceed' in time")
        raise


# --- the end


def _rref_context_get_debug_info() -> dict[str, str]:
    return registry.current().references.debug_info()


def _delete_all_user_and_unforked_owner_rrefs(timeout: datetime.timedelta | None = None) -> None:
    agent = registry.current()
    agent.references.delete_all(60.0 if timeout is None else timeout.total_seconds())


def shutdown(graceful: bool = True, timeout: float = constants.DEFAULT_SHUTDOWN_TIMEOUT) -> None:
    """Leaves the group and ends all threads of RPC.

    A graceful shutdown waits until no call is pending and, in a group of fixed size, until all members have called it.
    Raises RuntimeError if a member has ended or `timeout` seconds have passed (0 for no limit)."""
    _agent()
    leaks = rendezvous.shutdown(
        graceful,
        timeout,
        lambda seconds: _wait_all_workers(seconds),  # noqa: PLW0108 - a program may replace it
        lambda: _delete_all_user_and_unforked_owner_rrefs(),  # noqa: PLW0108
    )
    if leaks and not _ignore_rref_leak:
        raise RuntimeError(
            "Leaking RRefs detected during RPC shutdown: Leaking RRefs: "
            + "; ".join(
                f"GloballyUniqueId(created_on={r[0]}, local_id={r[1]}) held by workers {sorted(h)}"
                for r, h in leaks.items()
            )
        )
