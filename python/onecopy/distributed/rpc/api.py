# SPDX-License-Identifier: Apache-2.0
"""Calls, references and groups, under the names of torch.distributed.rpc.api."""

import atexit
import contextlib
import functools
import logging
import threading
import time
import typing

import torch

from ...rpc import _agent, _calls, _device_maps, _dynamic, _group, _ranges
from ...rpc._references import PyRRef
from . import constants
from .internal import _internal_rpc_pickler as _default_pickler

WorkerInfo = _group.WorkerInfo
_thread_local_var = _calls.local
_ignore_rref_leak = True
_log = logging.getLogger("onecopy.rpc")
_timeout = constants.DEFAULT_RPC_TIMEOUT_SEC
T = typing.TypeVar("T")
_is_profiled = torch.autograd._profiler_enabled  # then calls are ranges, and none is plain


class RRef(PyRRef, typing.Generic[T]):
    __doc__ = PyRRef.__doc__


_agent.Agent.rref_class = RRef


class RpcAgent:
    """The base class of agents, for isinstance()."""


class TensorPipeAgent(_agent.Agent, RpcAgent):
    """The agent of this process, under the name that programs ask for."""

    def __init__(self, store, name, rank, world_size, options):
        super().__init__(
            store, name, rank, world_size, options.rpc_timeout, options.device_maps, options.num_worker_threads
        )
        self.store, self._options, self.maps_itself = store, options, options.maps_itself

    def _get_backend_options(self):
        return self._options

    def _get_device_map(self, worker):
        return self._options.device_maps.get(worker.name, {})


def _refuse_uninitialized():
    if _agent.is_forked():
        raise RuntimeError(_agent.FORKED)
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
    return _agent._current is not None


def _get_current_rpc_agent():
    return _agent.current()


def _set_and_start_rpc_agent(agent):
    _agent.set_current(agent)


def _reset_current_rpc_agent():
    _agent.set_current(None)


def _start_agent(store, name, rank, world_size, options):
    agent = TensorPipeAgent(store, name, rank, world_size, options)
    _agent.set_current(agent)
    try:
        agent.start()
        if agent.is_static_group:
            _check_maps(agent, options)
    except BaseException:
        _agent.set_current(None)
        agent.stop()
        raise
    return agent


def _check_maps(agent, options):
    """Throws in all members, or in none."""
    maps = _all_gather(_device_maps.own(options), timeout=options.rpc_timeout or None)
    try:
        _device_maps.check(maps)
    except BaseException:
        agent.finish_answers()
        raise


@atexit.register
def _end_without_shutdown():
    if _is_current_rpc_agent_set():
        agent = _agent.current()
        _agent.set_current(None)
        agent.stop()


def get_rpc_timeout():
    """Seconds that a call may take when it says nothing else."""
    return _agent.current().timeout if _is_current_rpc_agent_set() else _timeout


def _set_rpc_timeout(seconds):
    global _timeout
    _timeout = float(seconds)
    if _is_current_rpc_agent_set():
        _agent.current().timeout = _timeout


def enable_gil_profiling(flag):
    """Whether the debug info has the key for the time that waiting for the interpreter takes; it is not measured, and 0."""
    _agent.current().has_gil_profiling = bool(flag)


# --- calls


def rpc_sync(to, func, args=None, kwargs=None, timeout=constants.UNSET_RPC_TIMEOUT):
    """The result of func(*args, **kwargs), run in the member `to` (a name, rank or WorkerInfo).

    Throws what func throws, as its own type and with its stack in the text; RuntimeError after `timeout` seconds or when
    the member has ended; TypeError before anything is sent when a value cannot cross."""
    agent = _agent._current
    if agent is None:
        _refuse_uninitialized()
    if not _is_profiled():
        result = agent.node.call_plain(agent, to, func, args, kwargs, timeout)
        if result is not NotImplemented:
            return result
    to = _to_worker_info(to)
    with _ranges.of_call("sync", func, agent, to):
        return _calls.call_and_wait(to, func, args, kwargs, timeout)


def rpc_async(to, func, args=None, kwargs=None, timeout=constants.UNSET_RPC_TIMEOUT):
    """A torch.futures.Future of what rpc_sync() returns or throws."""
    agent = _agent._current
    if agent is None:
        _refuse_uninitialized()
    future = NotImplemented if _is_profiled() else agent.begin_plain(to, func, args, kwargs, timeout)
    if future is NotImplemented:
        to = _to_worker_info(to)
        with _ranges.of_call("async", func, agent, to):
            future = _calls.call(to, func, args, kwargs, timeout)
    if hasattr(_thread_local_var, "future_list"):
        _thread_local_var.future_list.append(future)
    return future


@_require_initialized
def remote(to, func, args=None, kwargs=None, timeout=constants.UNSET_RPC_TIMEOUT):
    """A reference, at once, to the result of func(*args, **kwargs), which is kept in the member `to`."""
    to = _to_worker_info(to)
    with _ranges.of_call("remote", func, _agent.current(), to):
        return _calls.remote(to, func, args, kwargs, timeout)


@_require_initialized
def get_worker_info(worker_name=None):
    """The WorkerInfo of that member, or of this process."""
    return _agent.current().get_worker_info(worker_name)


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


class AllGatherStates:
    """One gathering, in its leader or a follower."""

    def __init__(self):
        self.gathered_objects = {}
        self.proceed_signal = threading.Event()
        self.error = None


_gather_lock = threading.RLock()
_gather_numbers = {}
_gatherings = {}


def _gathering(number):
    with _gather_lock:
        return _gatherings.setdefault(number, AllGatherStates())


def _gather_to_leader(sequence_id, worker_name, obj, worker_names):
    state = _gathering(sequence_id)
    with _gather_lock:
        if worker_name in state.gathered_objects:
            raise AssertionError(f"{worker_name} reported intent sequence id {sequence_id} twice. ")
        state.gathered_objects[worker_name] = obj
        if set(worker_names) == set(state.gathered_objects):
            state.proceed_signal.set()


def _broadcast_to_followers(sequence_id, objects_map, error=None):
    state = _gathering(sequence_id)
    if state.proceed_signal.is_set():
        raise AssertionError(f"Termination signal sequence id {sequence_id} got set twice.")
    state.gathered_objects, state.error = objects_map, error
    state.proceed_signal.set()


@_require_initialized
def _all_gather(obj, worker_names=None, timeout=constants.UNSET_RPC_TIMEOUT):
    """{name: object} of all the members named, or of all. Returns when each has called it. Throws RuntimeError that names
    a member that has ended, or has not come within `timeout` seconds."""
    agent = _agent.current()
    names = set(worker_names or (i.name for i in agent.get_worker_infos()))
    me, leader = agent.info.name, min(names)
    with _gather_lock:
        key = "".join(sorted(names))
        number = _gather_numbers[key] = _gather_numbers.get(key, -1) + 1
        key += str(number)
    seconds = None if not timeout or timeout < 0 else timeout
    of_calls = get_rpc_timeout() if timeout == constants.UNSET_RPC_TIMEOUT else seconds or 0
    try:
        if me == leader:
            return _lead(agent, key, obj, names, seconds, of_calls)
        return _follow(agent, key, obj, names, leader, seconds, of_calls)
    finally:
        with _gather_lock:
            _gatherings.pop(key, None)


def _lead(agent, key, obj, names, seconds, of_calls):
    """Waits for all, and tells all the gathered objects, or why there are none."""
    _gather_to_leader(key, agent.info.name, obj, names)
    failure = _wait_for(agent, key, names, seconds)
    gathered = _gathering(key).gathered_objects
    told = (key, gathered) if failure is None else (key, gathered, failure)
    futures = {n: rpc_async(n, _broadcast_to_followers, args=told, timeout=of_calls) for n in names - {agent.info.name}}
    errors = []
    for name, future in futures.items():
        try:
            future.wait()
        except RuntimeError as error:
            errors.append((name, error))
    if failure is not None:
        raise RuntimeError(failure)
    if errors:
        raise RuntimeError(
            f"Followers {[n for n, _ in errors]} timed out in _all_gather after "
            f"{of_calls:.2f} seconds. The first exception is {errors[0][1]}"
        )
    return gathered


def _follow(agent, key, obj, names, leader, seconds, of_calls):
    state = _gathering(key)
    if not state.proceed_signal.is_set():  # else the leader has given up already, and may have left
        try:
            rpc_sync(leader, _gather_to_leader, args=(key, agent.info.name, obj, sorted(names)), timeout=of_calls)
        except RuntimeError:
            if not state.proceed_signal.is_set():
                raise
        failure = _wait_for(agent, key, {leader}, seconds)
        if failure is not None:
            raise RuntimeError(failure)
    if state.error is not None:
        raise RuntimeError(state.error)
    return state.gathered_objects


def _wait_for(agent, key, names, seconds):
    """Until the gathering is complete. Else why it is not: a member that has ended will not come."""
    state, step = _gathering(key), 0.1
    end = None if seconds is None else time.monotonic() + seconds
    while not state.proceed_signal.wait(step):
        missing = sorted(names - set(state.gathered_objects)) or sorted(names)
        ended = [agent.member(n).why_ended for n in missing if agent.member(n).has_ended]
        if state.proceed_signal.is_set():
            break
        if ended:
            return f"not all members have met: {', '.join(ended)}"
        if end is not None and time.monotonic() >= end:
            return f"not all members have met: {', '.join(missing)} did not come within {seconds:g} s"
    return None


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
    return _agent.current().references.debug_info()


def _delete_all_user_and_unforked_owner_rrefs(timeout=None):
    agent = _agent.current()
    agent.references.delete_all(60.0 if timeout is None else timeout.total_seconds())


@_require_initialized
def shutdown(graceful=True, timeout=constants.DEFAULT_SHUTDOWN_TIMEOUT):
    """Leaves the group and ends all threads of RPC.

    Graceful: waits until no call is pending and, in a group of fixed size, until all members are here; a member that has
    ended is not waited for, and neither is any after `timeout` seconds (0: no limit)."""
    leaks = {}
    try:
        if graceful and not _agent.current().is_static_group:
            _leave_dynamic_group(_agent.current())
        elif graceful:
            _wait_all_workers(timeout)
            _delete_all_user_and_unforked_owner_rrefs()
            _settle(_agent.current())
            leaks = _agent.current().references.owned.held()  # before others leave, and let go of what they hold
            _all_gather(None, timeout=timeout)
            _agent.current().finish_answers()
    finally:
        _finalize_shutdown(leaks)


def _leave_dynamic_group(agent):
    """Others stay: their references to values of this process become errors."""
    _settle(agent)
    agent.references.delete_all(0.0)
    _dynamic.leave(agent)


def _settle(agent):
    """Waits for the answers to all calls of this process: each comes, or has a deadline, or its member ends."""
    settled = threading.Event()
    while agent.pending_count() and not settled.wait(0.001):
        agent.node.look()  # answers that no thread waits for stay in the lanes


def _finalize_shutdown(leaks):
    agent = _agent.current()
    _agent.set_current(None)
    agent.stop()
    if leaks and not _ignore_rref_leak:
        raise RuntimeError(
            "Leaking RRefs detected during RPC shutdown: Leaking RRefs: "
            + "; ".join(
                f"GloballyUniqueId(created_on={r[0]}, local_id={r[1]}) held by workers {sorted(h)}"
                for r, h in leaks.items()
            )
        )
