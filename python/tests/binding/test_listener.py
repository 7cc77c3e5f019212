# SPDX-License-Identifier: Apache-2.0
"""onecopy.Listener and connect: programs that were started on their own find each other."""

import contextlib
import socket
import threading
import uuid

import pytest

import onecopy
from onecopy import _core
from support.processes import beside, errors_of_waits, interrupted

CLIENT = """
    import sys
    import onecopy
    from onecopy import _core

    pipe = _core.connect(sys.argv[1], b"key")
    tensor = pipe.recv(timeout=30)
    tensor.numpy()[:] += 1
    pipe.send(("done", {1, 2}))
    assert pipe.recv(timeout=30) == "bye"
"""


@pytest.fixture(params=["unix:@{}", "unix:{}", "tcp:127.0.0.1:0"])
def address(request, tmp_path):
    """A free address of each kind."""
    name = tmp_path / "socket" if request.param == "unix:{}" else f"onecopy-test-{uuid.uuid4()}"
    return request.param.format(name)


def test_two_programs_share_a_tensor(address, run_python):
    tensor = onecopy.zeros((4,), dtype="float32")
    with _core.Listener(address, b"key") as listener:
        outputs = []
        thread = threading.Thread(target=lambda: outputs.append(run_python(CLIENT, listener.address)))
        thread.start()
        with listener.accept(timeout=60) as pipe:
            pipe.send(tensor)
            assert pipe.recv(timeout=60) == ("done", {1, 2})
            pipe.send("bye")
            thread.join()
    assert outputs == [""] and tensor.numpy().tolist() == [1, 1, 1, 1]


def test_accept_gives_up_after_its_timeout(address):
    with _core.Listener(address, b"key") as listener:
        with pytest.raises(onecopy.errors.Timeout, match="0.1"):
            listener.accept(timeout=0.1)
        with pytest.raises(TimeoutError):
            listener.accept(timeout=0)


def test_another_key_is_refused_counted_and_does_not_end_the_wait(address):
    errors = []

    def clients(to):
        for _ in range(2):
            try:
                _core.connect(to, b"wrong", timeout=60)
            except onecopy.errors.BadSecret as error:
                errors.append(error)
        _core.connect(to, b"key", timeout=60)

    listener = _core.Listener(address, b"key")
    assert listener.refused == 0
    with beside(clients, (listener.address,)):
        assert not listener.accept(timeout=60).closed
    assert len(errors) == 2 and listener.refused == 2
    listener.close()
    assert listener.refused == 2


@pytest.mark.parametrize(
    ("bad", "key"), [("nowhere", b"key"), ("unix:@x", b""), ("tcp:example.org:1", b"key"), ("", b"key")]
)
def test_bad_addresses_and_keys_are_refused(bad, key):
    with pytest.raises(onecopy.errors.InvalidArgument):
        _core.Listener(bad, key)


def test_nobody_listens(address):
    with pytest.raises((onecopy.errors.PeerDied, onecopy.errors.InvalidArgument)):
        _core.connect(address.replace(":0", ":1"), b"key", timeout=1)


def test_closing_ends_an_accept_of_another_thread(address):
    listener = _core.Listener(address, b"key")
    errors = errors_of_waits(listener.accept, listener.close, onecopy.errors.Closed)
    assert len(errors) == 1 and listener.closed
    with pytest.raises(onecopy.errors.Closed):
        listener.accept()


def test_one_thread_accepts_at_a_time(address):
    listener = _core.Listener(address, b"key")

    def accept():
        while not listener.closed:
            with contextlib.suppress(onecopy.InvalidArgument, onecopy.errors.Closed):  # the main thread accepts
                listener.accept()

    with beside(accept, ()), contextlib.closing(listener):
        with pytest.raises(onecopy.InvalidArgument):
            while True:  # until that thread is in there
                with contextlib.suppress(onecopy.errors.Timeout):
                    listener.accept(timeout=0)


def test_keyboard_interrupt_ends_accept(address):
    with _core.Listener(address, b"key") as listener:
        with interrupted():
            listener.accept()


@pytest.fixture(params=["unix", "tcp"])
def silent_address(request, tmp_path):
    """Where a process listens that never says a word."""
    with socket.socket(socket.AF_UNIX if request.param == "unix" else socket.AF_INET) as listener:
        listener.bind(str(tmp_path / "socket") if request.param == "unix" else ("127.0.0.1", 0))
        listener.listen()
        name = listener.getsockname()
        yield f"unix:{name}" if request.param == "unix" else f"tcp:127.0.0.1:{name[1]}"


@pytest.mark.parametrize("timeout", [5.0, None])
def test_keyboard_interrupt_ends_connect(silent_address, timeout):
    with interrupted() as interrupt:
        _core.connect(silent_address, b"key", timeout=timeout)
    assert interrupt.value.__context__ is None, "it came after the timeout only"


@pytest.mark.parametrize("timeout", [0, 0.0001, 0.3])
def test_connect_gives_up_after_its_timeout(silent_address, timeout):
    with pytest.raises(onecopy.errors.Timeout, match=silent_address):
        _core.connect(silent_address, b"key", timeout=timeout)


def test_a_listener_that_hangs_up_half_way_is_gone(tmp_path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()

        def say_half():
            with listener.accept()[0] as connection:
                connection.send(b"1COPYL01half a nonce")

        with beside(say_half, ()), pytest.raises(onecopy.errors.PeerDied):
            _core.connect(f"unix:{tmp_path}/socket", b"key")


@pytest.mark.parametrize(
    "address, key, error, argument",
    [
        (None, b"key", TypeError, "address must be a str"),
        ("\ud800", b"key", onecopy.InvalidArgument, "address is"),
        ("unix:@x", None, TypeError, "key must be bytes"),
        ("unix:@x", "key", TypeError, "key must be bytes"),
    ],
)
def test_what_is_no_address_or_key_is_refused_by_its_name(address, key, error, argument):
    with pytest.raises(error, match=f"^{argument}"):
        _core.connect(address, key)
