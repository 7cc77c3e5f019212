# SPDX-License-Identifier: Apache-2.0
"""The descriptors of a member: how many it needs, and that shutdown() gives them back without a garbage collection."""

from __future__ import annotations

import contextlib
import gc
import os

import pytest

torch = pytest.importorskip("torch")

from onecopy.distributed import rpc
from support.rpc_group import Member, init, shutdown, together, until

MEMBERS = 6
OF_THE_PROCESS = 6  # what the first share() of a process keeps: see docs/reference/limits.md
OF_THE_GROUP = 2  # the event loop of the transport to other hosts, which ends with the agent
OF_ITS_OWN_RINGS = 4  # a member's door, and the ring of its messages to itself

_held = []


def count():
    return len(os.listdir("/proc/self/fd"))


def links():
    """Returns what the descriptors stand for. One of them is of the folder itself, and is closed by then."""
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            yield os.readlink(f"/proc/self/fd/{number}")


def nothing():
    return None


def call_nothing():
    for rank in range(MEMBERS):
        rpc.rpc_sync(f"worker{rank}", nothing)


def count_kinds():
    found = list(links())
    return len(found), sum("[pidfd]" in link for link in found), sum("onecopy-blocks" in link for link in found)


def count_alone():
    gc.collect()
    gc.disable()
    return count()


def numbers(size):
    return torch.arange(float(size))


def total(tensor):
    return float(tensor.sum())


def call_all():
    """Calls every member with a message, a small tensor and a large one, which the ring and the memory of both carry."""
    for rank in range(MEMBERS):
        for size in (4, 300_000):
            assert rpc.rpc_sync(f"worker{rank}", total, args=(numbers(size),)) == total(numbers(size))
        assert rpc.remote(f"worker{rank}", numbers, args=(4,)).to_here().tolist() == [0, 1, 2, 3]
    return count()


def hold():
    _held.append(rpc.rpc_sync("worker1", numbers, args=(300_000,)))


def total_of_held():
    return total(_held.pop())


@pytest.fixture
def members():
    made = [Member() for _ in range(MEMBERS)]
    yield made
    for member in made:
        member.end()


def test_shutdown_gives_the_descriptors_back_while_the_collector_is_disabled(members, tmp_path):
    before = together(members, count_alone)
    for rank, member in enumerate(members):
        member.begin(init, f"{tmp_path}/meeting", rank, MEMBERS, f"worker{rank}", {})
    for member in members:
        member.result()
    assert min(together(members, call_all)) > max(before) + OF_THE_PROCESS + OF_THE_GROUP
    members[0](hold)
    together(members, shutdown)
    most = max(before) + OF_THE_PROCESS + OF_THE_GROUP
    until(lambda: max(together(members[2:], count)) <= most, "the descriptors of members that neither hold nor lend")
    assert members[0](total_of_held) == total(numbers(300_000))
    until(lambda: max(together(members[:2], count)) <= most, "the descriptors of the borrower and the owner")


def test_a_member_needs_ten_descriptors_for_each_other_member_and_one_of_them_is_of_its_process(members, tmp_path):
    of_each = 10  # a pidfd, two sockets, the block table, a segment, and five for the rings each way and the door
    before = together(members, count_alone)
    for rank, member in enumerate(members):
        member.begin(init, f"{tmp_path}/meeting", rank, MEMBERS, f"worker{rank}", {})
    for member in members:
        member.result()
    together(members, call_nothing)
    others = MEMBERS - 1
    for at_first, (now, processes, tables) in zip(before, together(members, count_kinds), strict=True):
        assert processes == others
        assert tables == others + 1
        assert now - at_first <= of_each * others + OF_THE_PROCESS + OF_THE_GROUP + OF_ITS_OWN_RINGS
    together(members, shutdown)
