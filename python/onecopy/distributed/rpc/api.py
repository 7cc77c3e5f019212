# SPDX-License-Identifier: Apache-2.0
"""Calls, references and groups, under the names of torch.distributed.rpc.api."""

import contextlib
import functools
import logging
import typing

import torch

from ...rpc import group, meeting, registry, telemetry, torch_calls
from ...rpc.peers import WorkerInfo
from ...rpc.references import PyRRef
from ...rpc.values import RefusedValue
from . import constants
from .internal import _internal_rpc_pickler as _default_pickler

AllGatherStates = meeting.AllGatherStates
_thread_local_var = torch_calls.local
_ignore_rref_leak = True
_log = logging.getLogger("onecopy.rpc")
_timeout = constants.DEFAULT_RPC_TIMEOUT_SEC
T = typing.TypeVar("T")
_is_profiled = telemetry.is_profiled  # then calls are ranges, and none is plain


class RRef(PyRRef, typing.Generic[T]):
    __doc__ = PyRRef.__doc__


group.Agent.rref_class = RRef


class RpcAgent:
    """The base class of agents, for isinstance()."""


class TensorPipeAgent(group.Agent, RpcAgent):
    """The agent of this process, under the name that programs ask for."""

    def __init__(self, store, name, rank, world_size, options):
        super().__init__(store, name, rank, world_size, options)
        self._options = options

    def _get_backend_options(self):
        return self._options

    def _get_device_map(self, worker):
        return self._options.device_maps.get(worker.name, {})


def _refuse_uninitialized():
    if registry.is_forked():
        raise RuntimeError(registry.FORKED)
    raise RuntimeError("RPC has not been initialized. Call torch.distributed.rpc.init_rpc first.")


def _require_initialized(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        if not _is_current_rpc_agent_set():
            _refuse_uninitialized()
        return function(*args, **kwargs)

    return wrapper


# --- the agent


def _is_current_rpc_agent_set():
    return registry.find() is not None


def _get_current_rpc_agent():
    return registry.current()


def _set_and_start_rpc_agent(agent):
    registry.set_current(agent)


def _reset_current_rpc_agent():
    registry.set_current(None)


def _start_agent(store, name, rank, world_size, options):
    agent = TensorPipeAgent(store, name, rank, world_size, options)
    meeting.start(agent, options)
    return agent


def get_rpc_timeout():
    """Seconds that a call may take when it says nothing else."""
    return registry.current().timeout if _is_current_rpc_agent_set() else _timeout


def _set_rpc_timeout(seconds):
    global _timeout
    _timeout = float(seconds)
    if _is_current_rpc_agent_set():
        registry.current().timeout = _timeout


def enable_gil_profiling(flag):
    """Whether the debug info has the key for the time that waiting for the interpreter takes; it is not measured, and 0."""
    registry.current().has_gil_profiling = bool(flag)


# --- calls


def rpc_sync(to, func, args=None, kwargs=None, timeout=constants.UNSET_RPC_TIMEOUT):
    """The result of func(*args, **kwargs), run in the member `to` (a name, rank or WorkerInfo).

    Throws what func throws, as its own type and with its stack in the text; RuntimeError after `timeout` seconds or when
    the member has ended; TypeError before anything is sent when a value cannot cross."""
    agent = registry.find()
    if agent is None:
        _refuse_uninitialized()
    if _is_profiled():
        to = _to_worker_info(to)
        with telemetry.range_of_call("sync", func, agent, to):
            return torch_calls.call(to, func, args, kwargs, timeout)
    try:
        return agent.endpoint.call(to, func, args, kwargs, timeout)
    except RefusedValue as refused:
        raise refused.located(func=func, args=args, kwargs=kwargs) from None


def rpc_async(to, func, args=None, kwargs=None, timeout=constants.UNSET_RPC_TIMEOUT):
    """A torch.futures.Future of what rpc_sync() returns or throws."""
    agent = registry.find()
    if agent is None:
        _refuse_uninitialized()
    if _is_profiled():
        to = _to_worker_info(to)
        with telemetry.range_of_call("async", func, agent, to):
            future = torch_calls.begin(to, func, args, kwargs, timeout)
            future.want()  # torch's profiler waits for it in C++
    else:
        future = torch_calls.begin(to, func, args, kwargs, timeout)
    if hasattr(_thread_local_var, "future_list"):
        _thread_local_var.future_list.append(future)
    return future


@_require_initialized
def remote(to, func, args=None, kwargs=None, timeout=constants.UNSET_RPC_TIMEOUT):
    """A reference, at once, to the result of func(*args, **kwargs), which is kept in the member `to`."""
    to = _to_worker_info(to)
    with telemetry.range_of_call("remote", func, registry.current(), to):
        return torch_calls.remote(to, func, args, kwargs, timeout)


@_require_initialized
def get_worker_info(worker_name=None):
    """The WorkerInfo of that member, or of this process."""
    return registry.current().get_worker_info(worker_name)


def _to_worker_info(to):
    if isinstance(to, WorkerInfo):
        return to
    if isinstance(to, (str, int)):
        return get_worker_info(to)
    raise ValueError(f"Cannot get WorkerInfo from name {to}")


@contextlib.contextmanager
def _use_rpc_pickler(rpc_pickler):
    """Refused: values cross without pickle, so there is no pickler to exchange."""
    raise NotImplementedError(
        "onecopy's rpc has no pickler: make the value a dataclass, or call onecopy.rpc.allow_pickle()"
    )
    yield


@contextlib.contextmanager
def _wait_all():
    """Waits, at its end, for all Futures that rpc_async() has given this thread within it."""
    _thread_local_var.future_list = []
    try:
        yield
    finally:
        futures = _thread_local_var.future_list
        del _thread_local_var.future_list
        for future in futures:
            future.wait()


def method_factory(method_name, docstring):
    def method(self, *args, **kwargs):
        return getattr(super(RRef, self), method_name)(*args, **kwargs)

    method.__doc__ = docstring
    return method


def new_method(method_name):
    return method_factory(method_name, None)


# --- all members together


def _gather_to_leader(sequence_id, worker_name, obj, worker_names):
    """Called in the leader of a gathering by each follower."""
    meeting.gather_to_leader(sequence_id, worker_name, obj, worker_names)


def _broadcast_to_followers(sequence_id, objects_map, error=None):
    """Called in each follower by the leader of a gathering."""
    meeting.broadcast_to_followers(sequence_id, objects_map, error)


_VERBS = (_gather_to_leader, _broadcast_to_followers)  # members call them by these names


@_require_initialized
def _all_gather(obj, worker_names=None, timeout=constants.UNSET_RPC_TIMEOUT):
    """Returns {name: object} of all the members named, or of all, once each of them has called it."""
    return meeting.all_gather(obj, worker_names, timeout, _VERBS)


@_require_initialized
def _barrier(worker_names):
    """Returns when all the members named have called it."""
    try:
        _all_gather(None, set(worker_names))
    except RuntimeError:
        _log.exception("Failed to complete barrier")


@_require_initialized
def _wait_all_workers(timeout=constants.DEFAULT_SHUTDOWN_TIMEOUT):
    """Returns when all members have called it. Throws RuntimeError when one cannot."""
    try:
        _all_gather(None, timeout=timeout)
    except RuntimeError:
        _log.exception("Failed to respond to 'Shutdown Proceed' in time")
        raise


# --- the end


def _rref_context_get_debug_info():
    return registry.current().references.debug_info()


def _delete_all_user_and_unforked_owner_rrefs(timeout=None):
    agent = registry.current()
    agent.references.delete_all(60.0 if timeout is None else timeout.total_seconds())


@_require_initialized
def shutdown(graceful=True, timeout=constants.DEFAULT_SHUTDOWN_TIMEOUT):
    """Leaves the group and ends all threads of RPC.

    Graceful: waits until no call is pending and, in a group of fixed size, until all members are here; a member that has
    ended is not waited for, and neither is any after `timeout` seconds (0: no limit)."""
    leaks = meeting.shutdown(
        graceful,
        timeout,
        lambda seconds: _wait_all_workers(seconds),
        lambda: _delete_all_user_and_unforked_owner_rrefs(),
        _all_gather,
    )
    if leaks and not _ignore_rref_leak:
        raise RuntimeError(
            "Leaking RRefs detected during RPC shutdown: Leaking RRefs: "
            + "; ".join(
                f"GloballyUniqueId(created_on={r[0]}, local_id={r[1]}) held by workers {sorted(h)}"
                for r, h in leaks.items()
            )
        )
