# SPDX-License-Identifier: Apache-2.0
"""Store.pull(): versions of other hosts, brought by a program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

import onecopy
from support.store_hosts import CHUNK, number_in, wait_until, weights

pytest.importorskip("torch")


@pytest.fixture
def puller(pair, monkeypatch):
    """The store of the host that pulls, in this process."""
    for name, value in pair[2].environment.items():
        monkeypatch.setenv(name, value)
    return onecopy.store.connect()


def test_pull_returns_the_number_of_the_version_that_is_current_afterwards(pair, puller):
    there, cable, _ = pair
    for number in (1, 2):
        there.connect().publish("llama", weights(number, 1))
    assert puller.pull(cable.address, "llama") == 2
    assert number_in(puller.open("llama")) == 2
    came = cable.came
    assert puller.pull(cable.address, "llama") == 2
    assert cable.came - came < CHUNK
    assert puller.pull(cable.address, "llama", 1) == 3  # an older version is the next one here
    assert number_in(puller.open("llama")) == 1


def test_pull_asks_the_next_host_if_one_is_away(pair, puller):
    there, cable, _ = pair
    there.connect().publish("llama", weights(1, 1))
    assert puller.pull("127.0.0.1:1", "llama", also=[cable.address]) == 1


def test_pull_follows_another_host(pair, puller):
    there, cable, _ = pair
    store = there.connect()
    numbers = puller.pull(cable.address, "llama", follow=True)
    for number in (1, 2):
        store.publish("llama", weights(number, 1))
        assert next(numbers) == number
        assert number_in(puller.open("llama")) == number
    store.rollback("llama", to=1)
    assert next(numbers) == 1
    with pytest.raises(onecopy.InvalidArgument, match="another process"):
        puller.pull(cable.address, "llama")
    numbers.close()
    del numbers
    assert puller.pull(cable.address, "llama") == 1


def test_errors_of_pull_have_classes(pair, puller, monkeypatch, tmp_path):
    there, cable, _ = pair
    there.connect().publish("llama", weights(1, 1))
    with pytest.raises(onecopy.StaleHandle, match="9"):
        puller.pull(cable.address, "llama", 9)
    with pytest.raises(onecopy.PeerDied):
        puller.pull("127.0.0.1:1", "llama", timeout=0)
    with pytest.raises(onecopy.InvalidArgument, match="is not an address"):
        puller.pull("trainer", "llama")
    with pytest.raises(onecopy.InvalidArgument, match="takes no version"):
        puller.pull(cable.address, "llama", 1, follow=True)
    with pytest.raises(TypeError, match="also"):
        puller.pull(cable.address, "llama", also=cable.address)
    with pytest.raises(TypeError, match="address"):
        puller.pull(7000, "llama")
    other = tmp_path / "other"
    other.write_text("another secret, which has 40 characters, too")
    monkeypatch.setenv("ONECOPY_STORE_KEY_FILE", str(other))
    with pytest.raises(onecopy.BadSecret):
        puller.pull(cable.address, "llama")
    monkeypatch.delenv("ONECOPY_STORE_KEY_FILE")
    with pytest.raises(onecopy.InvalidArgument, match="ONECOPY_STORE_KEY_FILE"):
        puller.pull(cable.address, "llama")


PULLS = """
import sys
import onecopy

print("pulls", flush=True)
try:
    onecopy.store.connect().pull(sys.argv[1], "llama")
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_ctrl_c_ends_a_pull_and_the_next_one_takes_what_is_missing(hosts, cable):
    there, here = hosts(), hosts()
    there.connect().publish("llama", weights(1, 8))
    line = cable(there.serve("127.0.0.1:0", "--rate", "100MiB"))
    here.connect()
    program = subprocess.Popen(
        [sys.executable, "-c", PULLS, line.address],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **here.environment},
    )
    wait_until(lambda: line.came > 3 * CHUNK)
    program.send_signal(signal.SIGINT)
    assert program.communicate(timeout=60)[0] == "pulls\ninterrupted\n"
    here.run("pull", line.address, "llama")
    assert line.came < 14 * CHUNK
    assert number_in(here.connect().open("llama")) == 1
