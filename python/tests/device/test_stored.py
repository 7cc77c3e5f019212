# SPDX-License-Identifier: Apache-2.0
"""Versions of the store on a card that are sent to other processes: on the simulated CUDA driver, or on a real card."""

from __future__ import annotations

import gc
import os
import subprocess
from typing import Any

import pytest

import onecopy
from onecopy.__main__ import command_to_start
from support.devices import borrower, eventually, on_device

pytestmark = pytest.mark.usefixtures("device_processes")

ELEMENTS = 1 << 20
kept: dict[str, Any] = {}


def opened(handle: bytes) -> tuple:
    with pytest.raises(onecopy.ReadOnly, match='access="read"'):
        onecopy.open(handle)
    tensor = onecopy.open(handle, access="read")
    return tensor.device, tensor.access, set(tensor.cpu().tolist())


def get_and_keep(queue) -> None:
    kept["tensor"] = queue.get(timeout=60)


def put_kept(queue) -> None:
    queue.put(kept["tensor"])


def first_kept() -> int:
    return kept["tensor"][:1].tolist()[0]


def drop() -> None:
    kept.clear()
    gc.collect()


def numbers_of(store) -> list[int]:
    return [version["version"] for item in store.list() for version in item["versions"]]


def with_store(body):
    """Runs the body with a store of its own, in the process that runs a test's body."""

    def run(tmp_path):
        os.environ["ONECOPY_STORE_DIR"] = str(tmp_path / "store")
        try:
            body(onecopy.store.connect(framework="onecopy"))
        finally:
            subprocess.run([command_to_start(), "store", "stop"], check=True)

    run.__name__, run.__module__ = body.__name__, body.__module__
    return on_device(run)


def publish(store, value: int) -> int:
    return store.publish("weights", {"w": onecopy.full(ELEMENTS, value, "uint8", "cuda:0")}, keep=1)


@with_store
def test_a_receiver_maps_a_cards_version_itself_for_reading(store):
    publish(store, 7)
    version = store.open("weights")
    before = onecopy.stats()["device_bytes"]
    handle = onecopy.share(version["w"])
    assert borrower(opened, handle.to_bytes()) == ("cuda:0", "read", {7})
    queue = onecopy.Queue()
    queue.put(version["w"][5:])
    borrower(get_and_keep, queue)
    assert borrower(first_kept) == 7
    assert onecopy.stats()["device_bytes"] <= before, "memory was made for a copy"
    borrower(drop)


@with_store
def test_a_cards_version_is_copied_to_the_host_and_on_the_card(store):
    publish(store, 7)
    version = store.open("weights")
    for device in ("cpu", "cuda:0"):
        there = onecopy.to_device({"w": version["w"]}, device)["w"]
        assert (str(there.device), set(there.cpu().tolist())) == (device, {7})


@with_store
def test_a_receiver_keeps_a_cards_version_and_sends_it_on(store):
    publish(store, 7)
    version = store.open("weights")
    queue, back = onecopy.Queue(), onecopy.Queue()
    queue.put(version["w"])
    borrower(get_and_keep, queue)
    del version
    publish(store, 8)
    assert numbers_of(store) == [1, 2], "the receiver has the first"
    borrower(put_kept, back)
    borrower(drop)
    received = back.get(timeout=60)
    assert received[:1].tolist() == [7] and numbers_of(store) == [1, 2]
    del received
    gc.collect()
    onecopy.collect()
    assert eventually(lambda: numbers_of(store) == [2])


@with_store
def test_what_a_follower_on_a_card_sent_stays_as_it_was(store):
    publish(store, 7)
    follower = store.follow("weights")
    queue = onecopy.Queue()
    queue.put(follower["w"])
    borrower(get_and_keep, queue)
    publish(store, 8)
    assert follower.update() == 2
    assert (borrower(first_kept), follower["w"][:1].tolist()) == (7, [8])
    borrower(drop)
    assert eventually(lambda: numbers_of(store) == [2])
