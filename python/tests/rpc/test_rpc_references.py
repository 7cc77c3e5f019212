# SPDX-License-Identifier: Apache-2.0
"""References: counts, and their end when a process is killed."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time

import pytest

torch = pytest.importorskip("torch")

from onecopy.distributed import rpc
from onecopy.rpc import rref_table
from support.rpc_group import Group, until

kept = {}


@pytest.fixture
def three(tmp_path):
    with Group(tmp_path, 3) as group:
        yield group


# --- run in members


class Counter:
    def __init__(self, start):
        self.value = start

    def add(self, number):
        self.value += number
        return self.value


def owned():
    gc.collect()
    return int(rpc._rref_context_get_debug_info()["num_owner_rrefs"])


def forks():
    return int(rpc._rref_context_get_debug_info()["num_forks"])


def make(name, to, start=0):
    kept[name] = rpc.remote(to, Counter, args=(start,))


def keep(name, rref, *rest):
    kept[name] = rref


def run_for_a_while():
    kept["runs"] = True
    time.sleep(0.5)
    kept["runs"] = False


def has_a_call_when_all_have_met(to=None):
    """Shuts down after a call to a member began. Returns whether a call ran here when all members had met."""
    seen = []
    rpc.api._delete_all_user_and_unforked_owner_rrefs = lambda *_: seen.append(kept["runs"])
    if to is not None:
        kept["runs"] = rpc.rpc_async(to, run_for_a_while) is None
    rpc.shutdown()
    return seen


def give(name, to):
    rpc.rpc_sync(to, keep, args=(name, kept[name]))


def forget(name):
    kept.pop(name, None)
    gc.collect()


def add(name, number):
    return kept[name].rpc_sync().add(number)


def confirmed(name):
    return kept[name].confirmed_by_owner()


def give_late(to, rref=None, timeout=1e-9, numbers=1):
    """A call whose deadline has passed when it comes: the function does not run."""
    arguments = ["late", rref if rref is not None else rpc.RRef(torch.ones(2)), torch.ones(numbers)]
    with pytest.raises(RuntimeError, match="more than set timeout"):
        rpc.rpc_sync(to, keep, args=arguments, timeout=timeout)


def give_late_by_name(name, to):
    give_late(to, kept[name])


def give_with_what_cannot_cross():
    with pytest.raises(TypeError):
        rpc.rpc_sync("worker1", keep, args=("never", rpc.RRef(torch.ones(2)), threading.Lock()))


def fetch_a_tensor():
    rref = rpc.remote("worker1", torch.ones, args=([3],))
    return rref.to_here().tolist(), rref.is_owner(), rref.owner_name()


def raise_error():
    raise ValueError("no value")


def fetch_a_failure():
    return rpc.remote("worker1", raise_error).to_here()


def fetch(name):
    kept[name].to_here()


def of_a_function_that_is_only_here():
    def only_here():
        return None

    only_here.__qualname__ = only_here.__name__ = "only_here"
    sys.modules[__name__].only_here = only_here
    return rpc.remote("worker1", only_here)


def fetch_what_cannot_be_made():
    of_a_function_that_is_only_here().to_here()


def fetch_for_another(rref):
    rref.to_here()


def give_what_cannot_be_made():
    rpc.rpc_sync("worker2", fetch_for_another, args=(of_a_function_that_is_only_here(),))


def wait_until_made(name):
    """Before and after its owner is known to count it."""
    first = rpc.remote("worker1", Counter, args=(1,))
    return first._get_future().wait(), kept[name].confirmed_by_owner(), kept[name]._get_future().wait()


def wait_for_what_cannot_be_made():
    rref = of_a_function_that_is_only_here()
    until(rref.confirmed_by_owner, "the owner has not answered")
    rref._get_future().wait()


def methods_in_all_ways(name):
    counter = kept[name]
    made = counter.remote().add(1)
    return counter.rpc_sync().add(1), counter.rpc_async().add(1).wait(), made.to_here(), made.rpc_sync().bit_length()


def a_number():
    return 5


def a_list():
    return kept.setdefault("list", [1])


def lengthen():
    kept["list"].append(2)


def make_by(name, to, function):
    kept[name] = rpc.remote(to, function)


def fetch_and_count_calls(name):
    """Returns what to_here() returns, and how many calls it made."""
    agent = rpc._get_current_rpc_agent()
    made = []
    agent.call_verb = lambda *args: made.append(args) or type(agent).call_verb(agent, *args)
    try:
        return kept[name].to_here(), len(made)
    finally:
        del agent.call_verb


def make_and_forget_many(to, number):
    """Makes references while the thread that sends drops does not look again for an hour."""
    rref_table._GATHERING = 3600
    for _ in range(number):
        rpc.remote(to, a_list).to_here()


def has_ended(rank):
    return rpc._get_current_rpc_agent().member(rank).has_ended


def leave_others(group):
    for member in group.members:
        member.process.kill()
        member.process.join()


# --- values and counts


def test_a_reference_brings_its_value(three):
    assert three[0](fetch_a_tensor) == ([1, 1, 1], False, "worker1")


def test_what_making_the_value_threw_comes_when_it_is_fetched(three):
    with pytest.raises(ValueError, match="no value"):
        three[0](fetch_a_failure)


def test_a_value_that_cannot_be_made_is_an_error_at_once(three):
    """Its cell was made by the question for it, and nothing ever came: the caller waited until its deadline."""
    for ask in (fetch_what_cannot_be_made, give_what_cannot_be_made):
        with pytest.raises(RuntimeError, match="has no 'only_here' in this process"):
            three[0](ask)
    for holder in (three[0], three[2]):
        holder(gc.collect)  # the errors that a reference keeps have frames that have it
    until(lambda: three[1](owned) == 0, "worker1 keeps what could not be made")


def test_a_reference_has_a_future_of_its_making_before_and_after_its_confirmation(three):
    three[0](make, "c", "worker1")
    until(lambda: three[0](confirmed, "c"), "the owner has not answered")
    assert three[0](wait_until_made, "c") == (None, True, None)
    with pytest.raises(RuntimeError, match="has no 'only_here' in this process"):
        three[0](wait_for_what_cannot_be_made)


def test_methods_are_called_through_a_reference_in_all_ways(three):
    three[0](make, "c", "worker1", 1)
    assert sorted(three[0](methods_in_all_ways, "c")[:3]) == [2, 3, 4]
    until(lambda: three[1](owned) == 1, "results that no process refers to any more are kept")


def test_a_value_lives_while_any_process_has_a_reference(three):
    three[0](make, "c", "worker1", 5)
    assert three[0](add, "c", 1) == 6
    three[0](give, "c", "worker2")
    assert three[2](confirmed, "c")
    three[0](forget, "c")
    assert three[2](add, "c", 1) == 7
    assert three[1](owned) == 1
    three[2](forget, "c")
    until(lambda: three[1](owned) == 0, "the value has not gone with its last reference")


def test_a_small_constant_comes_with_the_answer_that_it_was_made(three):
    three[0](make_by, "number", "worker1", a_number)
    assert three[0](fetch_and_count_calls, "number") == (5, 0)
    three[0](give, "number", "worker2")
    assert three[2](fetch_and_count_calls, "number") == (5, 1)


def test_a_value_that_can_change_is_fetched_as_it_is_now(three):
    three[0](make_by, "list", "worker1", a_list)
    assert three[0](fetch_and_count_calls, "list") == ([1], 1)
    three[1](lengthen)
    assert three[0](fetch_and_count_calls, "list") == ([1, 2], 1)


def test_a_program_that_deletes_many_references_frees_their_values_by_its_next_calls(three):
    three[0](make_and_forget_many, "worker1", 1000)
    assert three[1](owned) < 1000 // 4
    leave_others(three)


def test_a_reference_goes_home_and_back(three):
    three[0](make, "c", "worker1", 1)
    three[0](give, "c", "worker1")
    three[0](forget, "c")
    assert three[1](add, "c", 2) == 3
    three[1](give, "c", "worker0")
    assert three[0](add, "c", 2) == 5
    three[1](forget, "c")
    assert three[1](owned) == 1
    three[0](forget, "c")
    until(lambda: three[1](owned) == 0, "the value has not gone with its last reference")


# --- deaths


def test_the_references_of_a_killed_process_fall(three):
    three[0](make, "c", "worker1")
    until(lambda: three[0](confirmed, "c"), "the owner has not answered")
    assert three[1](owned) == 1
    three[0].kill()
    until(lambda: three[1](owned) == 0, "a dead process keeps a value")


def test_a_value_whose_owner_was_killed_is_an_error_at_once(three):
    three[0](make, "c", "worker1")
    until(lambda: three[0](confirmed, "c"), "the owner has not answered")
    three[1].kill()
    until(lambda: three[0](has_ended, 1), "worker0 has not seen the end of worker1")
    with pytest.raises(RuntimeError, match="name=worker1.* has ended"):
        three[0](add, "c", 1)
    with pytest.raises(RuntimeError, match="name=worker1.* has ended"):
        three[0](fetch, "c")
    three[0](forget, "c")


def test_a_constant_whose_owner_was_killed_is_an_error_too(three):
    three[0](make_by, "number", "worker1", a_number)
    assert three[0](fetch_and_count_calls, "number") == (5, 0)
    three[1].kill()
    until(lambda: three[0](has_ended, 1), "worker0 has not seen the end of worker1")
    with pytest.raises(RuntimeError, match="name=worker1.* has ended"):
        three[0](fetch, "number")


def test_who_gave_a_reference_may_be_killed(three):
    three[0](make, "c", "worker1", 1)
    three[0](give, "c", "worker2")
    three[0].kill()
    until(lambda: three[1](has_ended, 0), "worker1 has not seen the end of worker0")
    assert three[2](add, "c", 1) == 2
    three[2](forget, "c")
    until(lambda: three[1](owned) == 0, "the value has not gone with its last reference")


def test_references_in_a_call_that_comes_late_are_let_go_of(three):
    three[0](give_late, "worker1")
    until(lambda: three[0](owned) == 0, "worker0 keeps a value that it gave in vain")
    three[0](make, "theirs", "worker1")
    three[0](give_late_by_name, "theirs", "worker2")
    three[0](add, "theirs", 1)  # behind what worker0 has told worker1 of worker2
    until(lambda: three[1](forks) == 1, "worker1 counts a reference that was given on in vain")


def test_references_in_a_call_that_cannot_be_written_are_let_go_of(three):
    three[0](give_with_what_cannot_cross)
    assert three[0](owned) == 0


def test_a_large_call_to_a_member_that_is_stopped_ends_at_its_deadline(three):
    """Seen over TCP: the caller waited until the connection had taken the tensor, or had ended."""
    stopped = three[1].process.pid
    os.kill(stopped, signal.SIGSTOP)
    try:
        three[0](give_late, "worker1", None, 0.2, 16 << 20)
    finally:
        os.kill(stopped, signal.SIGCONT)
    until(lambda: three[0](owned) == 0, "worker0 keeps a value that it gave in vain")
    assert three[0](fetch_a_tensor) == ([1.0, 1.0, 1.0], False, "worker1")


def test_members_that_shut_down_meet_when_their_calls_have_ended(tmp_path):
    """A call may make a reference, which the owner must see before it looks for leaks."""
    with Group(tmp_path, 2) as group:
        group[0].begin(has_a_call_when_all_have_met, "worker1")
        group[1].begin(has_a_call_when_all_have_met)
        assert [member.result() for member in group.members] == [[False], [False]]
        for member in group.members:
            member.process.kill()
            member.process.join()


def shut_down_beside_a_stopped_member(pid):
    os.kill(pid, signal.SIGSTOP)
    rpc.rpc_async("worker1", run_for_a_while, timeout=0)
    rpc.shutdown(timeout=1)


def test_a_shutdown_with_a_limit_ends_although_a_call_to_a_stopped_member_does_not(tmp_path):
    with Group(tmp_path, 2) as group:
        with pytest.raises(RuntimeError, match="worker1"):
            group[0](shut_down_beside_a_stopped_member, group[1].process.pid)
        for member in group.members:
            member.process.kill()
            member.process.join()
