# SPDX-License-Identifier: Apache-2.0
"""Processes that are killed and stopped at random while others call them: each call ends, with its result or a typed
error.

A few are killed by default; ONECOPY_TEST_KILLS=1000 kills many, ONECOPY_RPC_SEED repeats a run.
"""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

torch = pytest.importorskip("torch")

import native_rpc_functions as theirs
from onecopy import rpc
from support.rpc_group import PATIENCE, said_in_a_fork, until

KILLS = int(os.environ.get("ONECOPY_TEST_KILLS", "6"))
SEED = int(os.environ.get("ONECOPY_RPC_SEED", time.time_ns() % 10**6))
WORKERS = ["w0", "w1", "w2"]
EXPECTED = (rpc.PeerDied, rpc.Timeout, rpc.Cancelled, rpc.Busy)


# --- in the caller


def plain(to, number, file):
    rpc.call(to, theirs.once, (file, number), timeout=5)


def with_tensor(to, number, file):
    size = random.choice([3, 5000, 100000])
    assert rpc.call(to, theirs.add, (torch.ones(size), 1), timeout=5)[-1] == 2


def lent(to, number, file):
    assert rpc.call(to, theirs.add, (rpc.borrow(torch.ones(5000)), 1), timeout=5)[0] == 2


def nested(to, number, file):
    rpc.call(to, theirs.once_at, (random.choice(WORKERS), file, number), timeout=5)


def streamed(to, number, file):
    assert list(rpc.stream(to, theirs.numbers, (20,), timeout=5, credit=3)) == list(range(20))


def abandoned(to, number, file):
    rpc.call_async(to, theirs.until_cancelled, timeout=5).cancel()


def referred(to, number, file):
    counter = rpc.remote(to, theirs.Counter, (number,), timeout=5)
    assert counter.rpc_sync(timeout=5).add(1) == number + 1


WAYS = [plain, with_tensor, lent, nested, streamed, abandoned, referred]


def is_expected(error):
    """A typed error; of a nested call, in the text of what the middle one threw; a worker that is not back yet."""
    return isinstance(error, EXPECTED) or any(
        text in str(error)
        for text in (
            "could not find destination",
            "has ended",
            "has left the group",
            "more than set timeout",
            "timed out",
        )
    )


def load(file, stop, seed, first):
    """Calls without end, until there is a file `stop`: {outcome: how often}."""
    random.seed(seed)
    outcomes, number = {}, first
    while not os.path.exists(stop):
        way, to, number = random.choice(WAYS), random.choice(WORKERS), number + 1
        try:
            way(to, number, file)
            outcome = "ok"
        except Exception as error:
            outcome = type(error).__name__
            if not is_expected(error):
                raise AssertionError(f"{way.__name__}: {type(error).__name__}: {error}") from error
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    return outcomes


def rest():
    """The rest when all calls have ended: (calls under way, room in use, descriptors, threads)."""
    import threading

    under_way = len([call for call in rpc.calls() if call["direction"] == "made"])
    used = sum(member["under_way"] for member in rpc.stats()["members"].values())
    return under_way, used, len(os.listdir("/proc/self/fd")), threading.active_count()


def hurt(worker, dice):
    """Kills it: at once, or stopped for a moment before, or is merely stopped for a moment. Whether it is dead."""
    pid = worker.process.pid
    if dice.random() < 0.4:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(dice.random() * 0.05)
        if dice.random() < 0.4:
            os.kill(pid, signal.SIGCONT)
            return False
    worker.kill()
    return True


def test_each_call_ends_while_processes_are_killed_and_come_back(meeting, tmp_path, watchdog):
    print(f"ONECOPY_RPC_SEED={SEED}")
    dice, done, stop = random.Random(SEED), tmp_path / "done", tmp_path / "stop"
    workers = {name: meeting.join(name) for name in WORKERS}
    callers = [meeting.join(f"caller{i}") for i in range(2)]
    for i, caller in enumerate(callers):
        caller.begin(load, str(done), str(stop), SEED + i, i * 10**9)
    killed, descriptors = 0, []
    while killed < KILLS:
        time.sleep(dice.random() * 0.05)
        name = dice.choice(WORKERS)
        if hurt(workers[name], dice):
            killed += 1
            workers[name] = meeting.join(name)
            print(killed, end=" ", flush=True)
            watchdog()  # the limit is for one kill: how long all of them take is up to how many are asked for
            descriptors.append(len(os.listdir(f"/proc/{callers[0].process.pid}/fd")))
    stop.touch()
    for caller in callers:
        outcomes = caller.result(PATIENCE)
        assert outcomes.get("ok", 0) > 0, outcomes
    for caller in callers:
        until(lambda: caller(rest)[:2] == (0, 0), "a call has not ended")
    assert max(descriptors[len(descriptors) // 2 :]) <= max(descriptors[: len(descriptors) // 2]) + 40, descriptors
    ran = done.read_text().split()
    assert len(ran) == len(set(ran)), "a call ran twice"


def wait_in(to, seconds):
    rpc.call(to, theirs.sleep, (seconds,), timeout=0)


def call_with_deadline(to):
    try:
        rpc.call(to, theirs.add, (1,), timeout=0.3)
    except rpc.Timeout:
        return "timeout"


def add_at(to):
    return rpc.call(to, theirs.add, (1,))


def test_a_stopped_callee_is_a_timeout_and_answers_when_it_goes_on(meeting):
    caller, callee = meeting.join("caller"), meeting.join("callee")
    os.kill(callee.process.pid, signal.SIGSTOP)
    assert caller(call_with_deadline, "callee") == "timeout"
    caller.begin(add_at, "callee")
    os.kill(callee.process.pid, signal.SIGCONT)
    assert caller.result() == 2


def test_a_stopped_third_member_holds_up_no_call(meeting):
    caller, callee, third = meeting.join("caller"), meeting.join("callee"), meeting.join("third")
    os.kill(third.process.pid, signal.SIGSTOP)
    assert caller(add_at, "callee") == 2
    assert callee(add_at, "caller") == 2
    os.kill(third.process.pid, signal.SIGCONT)
    assert third(add_at, "caller") == 2


def test_a_killed_third_member_is_no_error_of_a_call(meeting):
    caller, callee, third = meeting.join("caller"), meeting.join("callee"), meeting.join("third")
    caller.begin(wait_in, "callee", 0.3)
    third.kill()
    caller.result()
    assert callee(add_at, "caller") == 2


def fork_while_calls_run():
    """Returns what a call says in the child. The parent's calls go on."""
    under_way = [rpc.call_async("callee", theirs.sleep, (0.3,)) for _ in range(5)]
    said = said_in_a_fork(lambda: rpc.call("callee", theirs.add, (1,)))
    rpc.wait_all(under_way)
    return said


def test_a_fork_with_calls_in_flight(meeting):
    caller = meeting.join("caller")
    meeting.join("callee")
    assert "RPC does not survive fork()" in caller(fork_while_calls_run)


def leave_with_calls_in_flight():
    under_way = [rpc.call_async("callee", theirs.until_cancelled) for _ in range(10)]
    rpc.shutdown(graceful=False)
    texts = set()
    for call in under_way:
        try:
            call.wait()
        except RuntimeError as error:
            texts.add(str(error))
    return texts


def is_idle():
    return not [call for call in rpc.calls() if call["direction"] == "served"]


def test_leaving_with_calls_in_flight_fails_them_and_tells_their_functions(meeting):
    caller, callee = meeting.join("caller"), meeting.join("callee")
    assert caller(leave_with_calls_in_flight) == {"RPC agent is shut down"}
    until(lambda: callee(is_idle), "functions run on for a caller that has left")


def ten_thousand():
    calls = [rpc.call_async("callee", theirs.add, (i, i)) for i in range(10_000)]
    return rpc.wait_all(calls) == [2 * i for i in range(10_000)]


def test_ten_thousand_calls_in_flight(meeting):
    caller = meeting.join("caller", max_calls=20_000)
    meeting.join("callee")
    assert caller(ten_thousand)


def have_few_threads():
    from onecopy.rpc import group

    group._MAX_WORKERS = 4


def descend_often():
    calls = [rpc.call_async("callee", theirs.descend, ("callee", "caller", 6)) for _ in range(20)]
    return rpc.wait_all(calls)


def rpc_threads():
    from onecopy.rpc import registry

    return len(registry.current()._threads)


def test_calls_that_wait_for_each_other_do_not_run_out_of_threads(meeting):
    """Four threads in each member, and 20 calls that go back and forth six times."""
    caller, callee = meeting.join("caller"), meeting.join("callee")
    caller(have_few_threads), callee(have_few_threads)
    assert caller(descend_often) == [6] * 20
    assert caller(rpc_threads) <= 4 and callee(rpc_threads) <= 4
