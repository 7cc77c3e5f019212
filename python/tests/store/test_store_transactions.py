# SPDX-License-Identifier: Apache-2.0
"""Drafts of several processes, and versions of several objects that become current together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import onecopy
from support.devices import eventually
from support.processes import interpret as run

ONE = {"x": torch.ones(3)}

WRITER = """
import os, signal, sys, time
import torch, onecopy
handle, how = sys.argv[1:]
store = onecopy.store.connect()
"""
PART = (
    WRITER
    + """
with store.join(handle) as part:
    part.publish("b", {"x": torch.full((3,), 2.0)})
    print("published", flush=True)
    if how == "die": os.kill(os.getpid(), signal.SIGKILL)
    if how == "raise": raise KeyError("a mistake")
    if how == "wait": sys.stdin.read()
"""
)
ITEM = (
    WRITER
    + """
with store.join_draft(handle) as draft:
    draft["b"].fill_(2)
    if how == "die": os.kill(os.getpid(), signal.SIGKILL)
    if how == "raise": raise KeyError("a mistake")
"""
)

FORKS = """
import os, signal
import torch, onecopy
both = onecopy.store.connect().transaction()
both.publish("a", {"x": torch.ones(3)})
child = os.fork()
if child == 0:
    os.closerange(0, 3)
    signal.pause()
print(both.handle, child, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def began(program, *arguments):
    """Starts a program, and waits until it has said something."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    child = subprocess.Popen([sys.executable, "-c", program, *arguments], **pipes)
    assert child.stdout.readline() == "published\n"
    return child


def names(store):
    return {entry["name"] for entry in store.list()}


# --- drafts with a layout


def test_a_draft_with_a_layout_needs_no_version_before_it(store):
    layout = {"w": ((2, 3), torch.bfloat16), "n": ((), "int64"), "none": ((0, 4), "float32")}
    with store.draft("a", layout, keep=1, key={"k": "1"}, attributes={"step": "7"}, checksums=True) as draft:
        draft["w"].copy_(torch.arange(6).reshape(2, 3))
        draft["n"].fill_(5)
    assert draft.version == 1
    found = store.open("a", key={"k": "1"})
    assert (found["w"].tolist(), found["n"].item(), found["none"].shape) == ([[0, 1, 2], [3, 4, 5]], 5, (0, 4))
    assert found.attributes == {"step": "7"}
    found.verify()


def test_a_draft_may_change_the_layout(store):
    store.publish("a", ONE)
    with store.draft("a", {"y": ((5,), "int8")}) as draft:
        draft["y"].fill_(1)
    assert list(store.open("a")) == ["y"]
    assert store.open("a", 1)["x"].tolist() == [1, 1, 1]


def test_a_layout_that_does_not_fit_is_refused_with_its_name(store):
    with pytest.raises(TypeError, match=r"layout\['w'\] must be \(shape, dtype\), not 3"):
        store.draft("a", {"w": 3})
    with pytest.raises(TypeError, match="layout must be a mapping"):
        store.draft("a", [("w", 3)])
    with pytest.raises(onecopy.InvalidArgument, match="w"):
        store.draft("a", {"w": ((2,), "float33")})
    with pytest.raises(onecopy.InvalidArgument, match="need a layout"):
        store.draft("a", key={"k": "1"})


# --- drafts of several processes


def test_several_processes_write_one_draft(store):
    with store.draft("a", {"a": ((3,), "float32"), "b": ((3,), "float32")}) as draft:
        handle = draft.handle
        assert run(ITEM, handle, "end").returncode == 0
        draft["a"].fill_(1)
        with pytest.raises(onecopy.StaleHandle):
            store.open("a")
    assert draft.version == 1
    found = store.open("a")
    assert (found["a"].tolist(), found["b"].tolist()) == ([1, 1, 1], [2, 2, 2])
    with pytest.raises(onecopy.StaleHandle, match="committed already"):
        store.join_draft(handle)


@pytest.mark.parametrize("how", ["die", "raise"])
def test_a_draft_is_not_published_after_one_of_its_writers_ended_too_soon(store, how):
    store.publish("a", ONE)
    draft = store.draft("a", {"a": ((3,), "float32"), "b": ((3,), "float32")})
    assert run(ITEM, draft.handle, how).returncode != 0
    with pytest.raises(onecopy.StaleHandle, match="the transaction was aborted"):
        draft.publish()
    assert store.open("a").version == 1


def test_a_joined_draft_is_published_where_it_was_made(store):
    draft = store.draft("a", {"a": ((3,), "float32")})
    joined = onecopy.store.connect().join_draft(draft.handle)
    joined["a"].fill_(4)
    with pytest.raises(onecopy.InvalidArgument, match="published by the process that made it"):
        joined.publish()
    with pytest.raises(onecopy.InvalidArgument, match="this process made the draft"):
        draft.done()
    joined.done()
    draft.publish()
    assert store.open("a")["a"].tolist() == [4, 4, 4]


def test_a_draft_that_nobody_has_any_longer_takes_no_memory(store):
    draft = store.draft("a", {"a": ((1 << 20,), "uint8")})
    handle = draft.handle
    del draft
    assert eventually(lambda: raises_stale(lambda: store.join_draft(handle)))
    assert names(store) == set()


def raises_stale(call):
    try:
        call()
    except onecopy.StaleHandle:
        return True
    return False


def test_a_process_that_comes_too_late_for_a_draft_disturbs_nobody(store):
    with store.transaction() as both:
        draft = both.draft("a", {"a": ((3,), "float32")})
        handle = draft.handle
        draft.publish()
        with pytest.raises(onecopy.StaleHandle, match="the draft was published already"):
            store.join_draft(handle)
    assert store.open("a").version == 1


# --- transactions


def test_all_versions_of_a_transaction_become_current_together_with_one_number(store):
    for _ in range(3):
        store.publish("a", ONE)
    with store.transaction() as both:
        both.publish("a", {"x": torch.zeros(3)})
        assert run(PART, both.handle, "end").returncode == 0
        assert store.open("a").version == 3
        assert names(store) == {"a"}
    assert both.number == store.open("a").version == store.open("b").version == 4
    assert store.open("b")["x"].tolist() == [2, 2, 2]


def test_a_draft_may_be_a_part_of_a_transaction(store):
    with store.transaction() as both:
        both.publish("a", ONE)
        with both.draft("b", {"a": ((3,), "float32"), "b": ((3,), "float32")}) as draft:
            assert run(ITEM, draft.handle, "end").returncode == 0
        with pytest.raises(onecopy.StaleHandle):
            store.open("b")
    assert store.open("b")["b"].tolist() == [2, 2, 2]


@pytest.mark.parametrize("how", ["die", "raise"])
def test_nothing_is_left_of_a_transaction_if_one_of_its_writers_ends_too_soon(store, how):
    store.publish("b", ONE, keep=1)
    both = store.transaction()
    both.publish("a", ONE)
    assert run(PART, both.handle, how).returncode != 0
    with pytest.raises(onecopy.StaleHandle, match="the transaction was aborted"):
        both.commit()
    assert names(store) == {"b"}
    assert store.open("b").version == 1


def test_nothing_is_left_of_a_transaction_if_its_first_process_ends(store, store_place):
    first = "import os, signal, sys, onecopy; both = onecopy.store.connect().transaction()\n"
    first += "print(both.handle, flush=True); sys.stdin.read()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", first], **pipes) as child:
        part = store.join(child.stdout.readline().strip())
        part.publish("b", ONE)
        child.kill()
    assert eventually(lambda: raises_stale(part.leave))
    with pytest.raises(onecopy.StaleHandle):
        store.open("b")
    assert names(store) == set()


def test_an_exception_or_a_forgotten_transaction_leaves_nothing(store):
    with pytest.raises(KeyError), store.transaction() as both:
        both.publish("a", ONE)
        raise KeyError("a mistake")
    both = store.transaction()
    both.publish("a", ONE)
    handle = both.handle
    del both
    assert eventually(lambda: raises_stale(lambda: store.join(handle)))
    assert names(store) == set()


def test_a_failed_transaction_pushes_no_good_version_out(store):
    for number in range(2):
        store.publish("a", {"x": torch.full((3,), float(number))})
    for _ in range(3):
        both = store.transaction()
        both.publish("a", {"x": torch.zeros(3)}, keep=1)
        assert run(PART, both.handle, "die").returncode == -signal.SIGKILL
        with pytest.raises(onecopy.StaleHandle):
            both.commit()
    assert [store.open("a", number)["x"][0].item() for number in (1, 2)] == [0, 1]


@pytest.mark.parametrize("half", ["worker", "guard"])
def test_a_transaction_survives_the_end_of_one_half_of_the_keeper(store, half):
    both = store.transaction()
    both.publish("a", ONE)
    with began(PART, both.handle, "wait") as child:
        os.kill(store.keeper()[half], signal.SIGKILL)
        child.communicate("")
    assert child.returncode == 0
    assert both.commit() == 1
    assert store.open("a").version == store.open("b").version == 1


def test_a_transaction_survives_another_keeper_that_takes_over(store):
    both = store.transaction()
    both.publish("a", ONE)
    command = [sys.executable, "-m", "onecopy", "store", "serve", "--replace", "--background"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    assert both.commit() == 1
    assert store.open("a")["x"].tolist() == [1, 1, 1]


def test_a_transaction_ends_with_both_halves_of_the_keeper(store):
    both = store.transaction()
    both.publish("a", ONE)
    halves = store.keeper()
    os.kill(halves["guard"], signal.SIGSTOP)
    for pid in halves.values():
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(onecopy.StaleHandle, match="both halves of the keeper were killed"):
        both.commit()
    assert names(store) == set()


def test_a_forked_child_keeps_no_transaction_alive(store):
    done = run(FORKS)
    assert done.returncode == -signal.SIGKILL
    handle, child = done.stdout.split()
    assert eventually(lambda: raises_stale(lambda: store.join(handle)))
    os.kill(int(child), signal.SIGKILL)


def test_a_text_that_is_not_a_handle_is_refused(store):
    for text in ("", "no handle", "ab" * 15, "ab" * 17):
        with pytest.raises(onecopy.BadHandle):
            store.join(text)
    with pytest.raises(onecopy.BadHandle):
        store.join_draft("ab" * 16)
    with pytest.raises(onecopy.StaleHandle):
        store.join("ab" * 16)
    with pytest.raises(TypeError, match="handle must be a str"):
        store.join(3)


def test_an_object_has_one_version_in_a_transaction(store):
    with store.transaction() as both:
        both.publish("a", ONE)
        with pytest.raises(onecopy.InvalidArgument, match='has a version of "a" already'):
            both.publish("a", ONE)
    assert store.open("a").version == 1


# --- bytes beside tensors


def test_bytes_beside_the_tensors_come_back_as_bytes(store):
    store.publish("a", {"x": torch.ones(3), "meta": b"\x00text", "empty": b""}, key={"k": "1"})
    found = store.open("a")
    assert (found["meta"], found["empty"]) == (b"\x00text", b"")
    assert (list(found), len(found)) == (["x", "empty", "meta"], 3)
    assert dict(found)["x"].tolist() == [1, 1, 1]
    with pytest.raises(KeyError, match="other"):
        found["other"]


def test_a_follower_shows_the_bytes_of_the_version_though_their_size_changes(store):
    store.publish("a", {"x": torch.ones(3), "meta": b"1"})
    live = store.follow("a")
    store.publish("a", {"x": torch.zeros(3), "meta": b"22", "more": b"3"})
    live.update()
    assert (live["meta"], live["more"], live["x"].tolist()) == (b"22", b"3", [0, 0, 0])


def test_a_draft_and_a_transaction_take_bytes(store):
    with store.transaction() as both, both.draft("a", {"x": ((2,), "float32")}) as draft:
        draft["meta"] = b"of a"
        both.publish("b", {"meta": b"of b"})
    assert (store.open("a")["meta"], store.open("b")["meta"]) == (b"of a", b"of b")
    with pytest.raises(TypeError, match="only bytes are added to a draft, not Tensor"):
        store.draft("a")["x"] = torch.ones(2)


@pytest.mark.parametrize("place", ["slot", "as_is"])
def test_bytes_survive_with_the_version_in_both_places(store, place):
    store.publish("a", {"x": torch.ones(3), "meta": b"text"}, place=place)
    assert store.open("a")["meta"] == b"text"


def test_bytes_do_not_hide_a_tensor_and_count_in_limits(store):
    draft = store.draft("a", {"x": ((2,), "float32")})
    draft["x"] = b"bytes"
    with pytest.raises(onecopy.InvalidArgument, match='"x" is the name of a tensor and of bytes'):
        draft.publish()
    store.publish("b", {"x": torch.ones(1), "meta": bytes(5000)})
    assert store.list()[0]["versions"][0]["bytes"] == 4096 + 5000


def test_a_module_is_loaded_from_a_version_with_bytes(store):
    model = torch.nn.Linear(2, 2)
    store.publish("a", {**model.state_dict(), "meta": b"text"})
    other = torch.nn.Linear(2, 2)
    store.open("a").load_into(other)
    assert torch.equal(other.weight, model.weight)
