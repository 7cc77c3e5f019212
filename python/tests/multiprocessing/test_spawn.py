# SPDX-License-Identifier: Apache-2.0
"""spawn() and start_processes(): arguments by handle, failures reported, nothing held for the dead."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from multiprocessing.context import set_spawning_popen

import pytest
import torch

import onecopy
import onecopy.multiprocessing as mp
from conftest import handles_in_transit, has_ended
from onecopy.pickling.children import child_being_started
from onecopy.pickling.holds import held
from support.devices import eventually
from support.processes import running

pytestmark = pytest.mark.fresh_interpreters


def fill_row(index, tensor):
    tensor[index] = index + 1


def test_the_child_that_is_being_started_is_the_standard_librarys():
    assert child_being_started() is None
    popen = object()
    set_spawning_popen(popen)
    try:
        assert child_being_started() is popen
        seen = []
        thread = threading.Thread(target=lambda: seen.append(child_being_started()))
        thread.start()
        thread.join()
        assert seen == [None]
    finally:
        set_spawning_popen(None)
    assert child_being_started() is None


def fail(index):
    if index == 1:
        raise ValueError("process 1 does not like it")


def die(index):
    os.kill(os.getpid(), signal.SIGKILL)


def test_spawn_runs_every_index_on_one_tensor():
    tensor = torch.zeros(2, 3)
    mp.spawn(fill_row, args=(tensor,), nprocs=2)
    assert tensor.tolist() == [[1, 1, 1], [2, 2, 2]]


def test_start_processes_by_fork_shares_what_is_shared():
    tensor = torch.zeros(3, 2).share_memory_()
    mp.start_processes(fill_row, args=(tensor,), nprocs=3, start_method="fork")
    assert tensor.tolist() == [[1, 1], [2, 2], [3, 3]]


def test_an_exception_in_a_child_is_raised_with_its_traceback():
    with pytest.raises(mp.ProcessRaisedException, match="process 1 does not like it") as info:
        mp.start_processes(fail, nprocs=2, start_method="fork")
    assert info.value.error_index == 1


def test_a_killed_child_is_reported_by_its_signal():
    with pytest.raises(mp.ProcessExitedException, match="SIGKILL") as info:
        mp.start_processes(die, nprocs=1, start_method="fork")
    assert info.value.signal_name == "SIGKILL" and info.value.exit_code == -signal.SIGKILL


def test_join_can_be_asked_and_asked_again():
    context = mp.start_processes(fail, nprocs=1, join=False, start_method="fork")
    while not context.join(timeout=0.1):
        pass
    assert context.join()
    assert all(process.exitcode == 0 for process in context.processes)


def put_index(index, q):
    q.put((index, torch.full((2,), index)))


@pytest.mark.parametrize("kind", ["Queue", "SimpleQueue"])
def test_the_first_argument_is_the_index_and_queues_are_arguments(kind):
    q = getattr(mp.get_context("fork"), kind)()
    mp.start_processes(put_index, args=(q,), nprocs=2, start_method="fork")
    answers = dict(sorted(q.get() for _ in range(2)))
    assert {index: tensor.tolist() for index, tensor in answers.items()} == {0: [0, 0], 1: [1, 1]}
    q.close()


def fail_all(index):
    raise ValueError(f"process {index} fails")


def fail_last(index):
    if index == 1:
        raise ValueError("the last one fails")


def abort(index):
    faulthandler.disable()  # pytest has it on; no stacks for what is meant
    if index == 0:
        os.kill(os.getpid(), signal.SIGABRT)
    signal.pause()


def leave_by_sys_exit(index, code):
    if index == 0:
        sys.exit(code)
    signal.pause()


FAILURES = {
    "all raise": (fail_all, (), r"\nValueError: process (0|1) fails$"),
    "one raises after another ended well": (fail_last, (), r"\nValueError: the last one fails$"),
    "one aborts": (abort, (), "process 0 terminated with signal (SIGABRT|SIGIOT)"),
    "one leaves": (leave_by_sys_exit, (123,), "process 0 terminated with exit code 123"),
}


@pytest.mark.parametrize("how", FAILURES)
def test_failures_are_reported_in_torchs_words_and_end_the_others(how):
    function, arguments, words = FAILURES[how]
    context = mp.start_processes(function, args=arguments, nprocs=2, join=False, start_method="fork")
    with pytest.raises((mp.ProcessRaisedException, mp.ProcessExitedException), match=words):
        while not context.join():
            pass
    assert not any(process.is_alive() for process in context.processes)


def wait_below(index, ready):
    ready.put(os.getpid())
    signal.pause()


def start_below_and_die(index, pids):
    ready = mp.get_context("fork").Queue()
    mp.start_processes(wait_below, args=(ready,), nprocs=2, join=False, daemon=False, start_method="fork")
    for _ in range(2):  # they have asked to be told of our end by now
        pids.put(ready.get())
    os.kill(os.getpid(), signal.SIGTERM)


def test_processes_below_a_killed_one_end_with_it():
    pids = mp.get_context("fork").Queue()
    context = mp.start_processes(
        start_below_and_die, args=(pids,), nprocs=1, join=False, daemon=False, start_method="fork"
    )
    for _ in range(2):
        pid = pids.get()
        while not has_ended(pid):
            time.sleep(0.02)
    with pytest.raises(mp.ProcessExitedException, match="SIGTERM"):
        context.join()
    pids.close()


# --- holds of arguments -----------------------------------------------------------------------------


def held_for_handles() -> int:
    return sum(transit["blocks"] for transit in handles_in_transit())


class DiesWhenUnpickled:
    """An argument that kills the child before it reaches the next arguments."""

    def __reduce__(self):
        return os._exit, (5,)


def ignore(*arguments):
    pass


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_what_a_dead_child_never_opened_is_let_go_when_it_is_joined(method):
    before = held_for_handles()
    tensor = torch.zeros(1000)
    process = mp.get_context(method).Process(target=ignore, args=(DiesWhenUnpickled(), tensor))
    process.start()
    process.join()
    assert process.exitcode == 5
    assert held_for_handles() == before
    process.close()


def test_the_same_for_processes_of_torchs_spawn():
    before = held_for_handles()
    with pytest.raises(mp.ProcessExitedException):
        mp.spawn(ignore, args=(DiesWhenUnpickled(), torch.zeros(1000)), nprocs=1)
    assert held_for_handles() == before


class Unpicklable:
    def __reduce__(self):
        raise TypeError("this stays at home")


def test_what_a_child_that_was_never_started_was_to_have_is_let_go():
    before = held_for_handles()
    process = mp.get_context("spawn").Process(target=ignore, args=(torch.zeros(10), Unpicklable()))
    with pytest.raises(TypeError, match="stays at home"):
        process.start()
    del process
    assert held_for_handles() == before


class EndedChild:
    def poll(self, flag):
        return 0


@pytest.fixture
def ended_child():
    """One that a hold is tied to."""
    child = EndedChild()
    set_spawning_popen(child)
    held(onecopy.zeros((1,)))
    set_spawning_popen(None)
    return child


def ask_while_another_does(child, step):
    """Asks for the child; another thread does the same after `step` instructions of ours."""

    def trace(frame, event, argument):
        nonlocal step
        frame.f_trace_opcodes = True
        step -= 1
        if step == 0:
            other = threading.Thread(target=child.poll)
            other.start()
            other.join()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        child.poll()
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("step", range(1, 60))
def test_two_threads_may_ask_for_one_child_at_the_same_time(ended_child, step):
    before = held_for_handles()
    ask_while_another_does(ended_child, step)
    assert held_for_handles() == before - 1


def keep_and_tell(tensor, pipe):
    pipe.send(float(tensor.sum()))
    pipe.recv()


def test_a_living_child_keeps_its_arguments_after_the_parent_let_go():
    ours, theirs = mp.Pipe()
    before = held_for_handles()
    tensor = torch.ones(1000)
    with running(mp.get_context("spawn"), keep_and_tell, tensor, theirs):
        del tensor
        assert ours.recv() == 1000
        ours.send("go")
    assert eventually(lambda: onecopy.collect() or held_for_handles() == before)
