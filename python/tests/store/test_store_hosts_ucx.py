# SPDX-License-Identifier: Apache-2.0
"""Versions that go from the store of one host to the store of another one over UCX, beside a connection over TLS."""

from __future__ import annotations

import importlib.util
import os
import re
import signal

import pytest

from support.store_hosts import CHUNK, number_in, wait_until, weights

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(importlib.util.find_spec("libucx") is None, reason="wants libucx-cu13")

ANSWERS = 60  # bytes about a chunk that go over TLS, or a few more


@pytest.fixture(autouse=True)
def _over_ucx(monkeypatch):
    monkeypatch.setenv("ONECOPY_STORE_FABRIC", "ucx")


def received(out):
    return float(re.search(r", ([\d.]+) MiB of them received", out).group(1)) * 2**20


def test_a_version_goes_over_ucx_and_not_over_tls(pair):
    there, cable, here = pair
    for number in (1, 2):
        there.connect().publish("llama", weights(number, 3))
        assert received(here.run("pull", cable.address, "llama")) == 3 * CHUNK
        assert number_in(here.connect().open("llama")) == number
    assert cable.came < CHUNK // 16


def test_a_host_that_does_not_allow_ucx_refuses_and_sends_over_tls(hosts):
    there, here = hosts(), hosts()
    there.environment["ONECOPY_STORE_FABRIC"] = "tls"
    there.connect().publish("llama", weights(1, 1))
    address = there.serve()
    assert "over TLS alone" in here.run("pull", address, "llama", status=1)
    assert "must be tls or ucx" in here.run("pull", address, "llama", status=1, ONECOPY_STORE_FABRIC="rdma")
    here.run("pull", address, "llama", ONECOPY_STORE_FABRIC="tls")


@pytest.mark.parametrize("victim", ["puller", "ferry", "cable"])
def test_a_pull_over_ucx_that_is_interrupted_takes_only_what_is_missing(hosts, cable, victim):
    there, here = hosts(), hosts()
    way = cable(there.serve("127.0.0.1:0", "--rate", "400MiB"))
    here.run("serve", "--background")
    chunks = 12
    there.connect().publish("llama", weights(1, chunks))
    here.run("pull", way.address, "llama")
    whole = way.came
    there.connect().publish("llama", weights(2, chunks))

    def strike():
        if victim == "cable":
            way.cut()
        else:
            os.kill({"puller": lambda: puller.pid, "ferry": there.ferry}[victim](), signal.SIGKILL)

    way.when(whole - 5 * ANSWERS, strike)  # with the answers to the last chunks
    puller = here.start("pull", way.address, "llama")
    out, err = puller.communicate(timeout=120)
    assert not way.at
    if victim == "puller":
        assert puller.returncode == -signal.SIGKILL
        assert number_in(here.connect().open("llama")) == 1
        out = here.run("pull", way.address, "llama")
    assert 0 < received(out) < chunks * CHUNK, err  # in the attempt after the strike
    assert number_in(here.connect().open("llama")) == 2


def test_a_host_passes_chunks_on_over_ucx_before_its_version_is_sealed(hosts, cable):
    first, second, third = hosts(), hosts(), hosts()
    source = cable(first.serve("127.0.0.1:0", "--rate", "200MiB"))
    middle = cable(second.serve())
    second.start("pull", source.address, "llama", "--follow")
    third.start("pull", middle.address, "llama", "--follow")

    def bring(number, chunks=12):
        first.connect().publish("llama", weights(number, chunks), keep=1)
        wait_until(lambda: [one["current"] for one in third.connect().list()] == [number])

    bring(1)
    before = [one.came for one in (source, middle)]
    bring(2)
    answers = [one.came - came for one, came in zip((source, middle), before)]
    ferry, goal = first.ferry(), middle.came + answers[1] - 9 * ANSWERS
    source.when(answers[0] - 4 * ANSWERS, lambda: os.kill(ferry, signal.SIGSTOP))
    first.connect().publish("llama", weights(3, 12), keep=1)
    try:
        wait_until(lambda: not source.at and middle.came > goal)
        assert [one["current"] for one in second.connect().list()] == [2]
    finally:
        os.kill(ferry, signal.SIGCONT)
    for host in (second, third):
        wait_until(lambda host=host: [one["current"] for one in host.connect().list()] == [3])
        assert number_in(host.connect().open("llama")) == 3


def test_a_stopped_source_is_left_for_another_one(hosts, cable):
    first, other, here = hosts(), hosts(), hosts()
    first.connect().publish("llama", weights(1, 8))
    way = cable(first.serve("127.0.0.1:0", "--rate", "100MiB"))
    other_address = other.serve()
    other.run("pull", way.address, "llama")
    whole = way.came
    ferry = first.ferry()
    way.when(whole - 5 * ANSWERS, lambda: os.kill(ferry, signal.SIGSTOP))
    try:
        here.run("pull", way.address, "llama", "--also", other_address)
    finally:
        os.kill(ferry, signal.SIGCONT)
    assert not way.at
    assert number_in(here.connect().open("llama")) == 1
