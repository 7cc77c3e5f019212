# SPDX-License-Identifier: Apache-2.0
"""Nobody waits for a value that is never made, or for a drop that is never sent."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import onecopy.rpc as native
from onecopy.distributed import rpc
from onecopy.rpc import registry, values
from support.rpc_group import Group, shared_group, until

three = shared_group(3)

ENDS = {"KeyboardInterrupt": KeyboardInterrupt, "SystemExit": SystemExit, "GeneratorExit": GeneratorExit}


def end(kind):
    raise ENDS[kind](kind)


class Ending:
    def end(self, kind):
        end(kind)


@rpc.functions.async_execution
def end_later(kind):
    future = torch.futures.Future()
    threading.Thread(target=lambda: future.set_result(None)).start()
    return future.then(lambda _: end(kind))


def fetch(reference):
    return reference.to_here(timeout=20)


def text_of(call):
    try:
        return f"no error: {call()}"
    except RuntimeError as error:
        return str(error)


WAYS = {
    "to_here": lambda to, kind: rpc.remote(to, end, args=(kind,)).to_here(timeout=20),
    "to_here elsewhere": lambda to, kind: rpc.rpc_sync("worker2", fetch, args=(rpc.remote(to, end, args=(kind,)),)),
    "method": lambda to, kind: rpc.remote(to, Ending).rpc_sync(timeout=20).end(kind),
    "to_here of a method": lambda to, kind: rpc.remote(to, Ending).remote().end(kind).to_here(timeout=20),
    "sync": lambda to, kind: rpc.rpc_sync(to, end, args=(kind,), timeout=20),
    "async": lambda to, kind: rpc.rpc_async(to, end, args=(kind,), timeout=20).wait(),
    "asynchronous function": lambda to, kind: rpc.rpc_sync(to, end_later, args=(kind,), timeout=20),
    "to_here of an asynchronous function": lambda to, kind: rpc.remote(to, end_later, args=(kind,)).to_here(timeout=20),
}


def text_of_way(way, to, kind):
    return text_of(lambda: WAYS[way](to, kind))


@pytest.mark.parametrize("to", ["worker1", "worker0"])
@pytest.mark.parametrize("kind", ENDS)
@pytest.mark.parametrize("way", WAYS)
def test_a_function_that_raises_what_ends_a_process_fails_its_call(three, way, kind, to):
    text = three[0](text_of_way, way, to, kind)
    assert kind in text and "more than set timeout" not in text and "no error" not in text


# --- arguments that cannot be read


class Key:
    """A key of a dict that arrives as a list, which is none."""


values.register("a key that becomes a list", Key, lambda key: [], list)


def unread(to):
    made = rpc.remote(to, len, args=({Key(): 1},))
    elsewhere = text_of(lambda: rpc.rpc_sync("worker2", fetch, args=(made,)))
    return elsewhere, text_of(lambda: made.to_here(timeout=20))


@pytest.mark.parametrize("to", ["worker1", "worker0"])
def test_to_here_raises_everywhere_if_the_arguments_could_not_be_read(three, to):
    for text in three[0](unread, to):
        assert "a key of a dict is a list or dict" in text


def read_by_call():
    return text_of(lambda: rpc.rpc_sync("worker1", len, args=({Key(): 1},), timeout=20))


def test_a_call_raises_if_its_arguments_could_not_be_read(three):
    assert "a key of a dict is a list or dict" in three[0](read_by_call)


# --- calls that arrive after their timeout


def make_late(owner):
    """The owner is stopped until the call that makes a value has timed out; another member waits for the value."""
    os.kill(owner, signal.SIGSTOP)
    until(lambda: ") T " in Path(f"/proc/{owner}/stat").read_text(), "the owner goes on")
    try:
        made = rpc.remote("worker1", len, args=("abc",), timeout=0.05)
        elsewhere = rpc.rpc_async("worker2", fetch, args=(made,))
        text_of(made._get_future().wait)
    finally:
        os.kill(owner, signal.SIGCONT)
    del made
    return text_of(elsewhere.wait)


def test_a_member_that_was_passed_a_reference_learns_that_its_value_was_not_made_in_time(three):
    before = three[1](owned)
    text = three[0](make_late, three[1].process.pid)
    assert "arrived after its timeout" in text
    three[1](until_owned, before)


# --- the thread that sends drops


def owned():
    return int(rpc._rref_context_get_debug_info()["num_owner_rrefs"])


def until_owned(number):
    until(lambda: owned() == number, "a value stays")


def fail_in_the_drop_thread():
    """Lets a queued function and the sending of a drop fail, and then drops a reference as usual."""
    agent = registry.current()
    send, failed = agent.note, []

    def fail(*_):
        failed.append(1)
        raise MemoryError

    agent.references.later(fail)
    agent.note = fail
    reference = rpc.remote("worker1", Key)
    reference._get_future().wait()
    del reference
    until(lambda: len(failed) == 2, "the drop was not sent")
    agent.note = send
    before = rpc.rpc_sync("worker1", owned)
    reference = rpc.remote("worker1", Key)
    reference._get_future().wait()
    during = rpc.rpc_sync("worker1", owned)
    del reference
    until(lambda: rpc.rpc_sync("worker1", owned) == before, "the next drop was not sent")
    return during - before


def test_an_error_while_a_drop_is_sent_does_not_keep_later_drops_or_shutdown(tmp_path):
    with Group(tmp_path, 2) as group:
        assert group[0](fail_in_the_drop_thread) == 1


# --- who a member is


def change_infos():
    for info in (rpc.get_worker_info(), rpc.get_worker_info("worker1")):
        for name, value in (("id", 3), ("name", "other")):
            with pytest.raises(AttributeError, match="cannot be changed"):
                setattr(info, name, value)
            with pytest.raises(AttributeError, match="cannot be deleted"):
                delattr(info, name)
    return str(rpc.get_worker_info("worker1")), rpc.rpc_sync("worker1", rpc.get_worker_info) == rpc.get_worker_info(1)


def test_the_info_of_a_member_cannot_be_changed(three):
    assert three[0](change_infos) == ("WorkerInfo(id=1, name=worker1)", True)
    assert native.WorkerInfo("a", 1) != native.WorkerInfo("a", 2)
