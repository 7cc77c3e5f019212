# SPDX-License-Identifier: Apache-2.0
"""Handles: the bytes that travel, the blocks they keep alive, and refusals."""

import copy
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from multiprocessing.reduction import ForkingPickler

import pytest

import onecopy
from support.processes import running

OPENER = """
    import sys, onecopy
    t = onecopy.open(sys.argv[1])
    t[0] = t[0].item() + 1
    print(t.tolist())
"""


def test_another_program_opens_the_same_memory(run_python):
    t = onecopy.full(3, 41, "int32")
    assert run_python(OPENER, str(onecopy.share(t))) == "[42, 41, 41]\n"
    assert t.tolist() == [42, 41, 41]


def test_words_that_are_understood_are_not_described_for_an_error():
    described = []

    class Word(str):
        def __repr__(self):
            described.append(str(self))
            return "a word"

    handle = onecopy.share(onecopy.zeros(1))
    assert not onecopy.open(handle, access=Word("read"), framework=Word("numpy")).flags.writeable
    assert described == []
    with pytest.raises(onecopy.InvalidArgument, match="not a word"):
        onecopy.open(handle, access=Word("write"))


def test_bytes_and_text_and_the_handle_itself_open():
    t = onecopy.full((2, 2), 3, "int8")
    handle = onecopy.share(t[:, 1])
    data = handle.to_bytes()
    for way in (handle, data, bytearray(data), memoryview(data), str(handle), f"  {handle}\n",
                onecopy.Handle.from_bytes(data), onecopy.Handle.from_text(str(handle))):  # fmt: skip
        opened = onecopy.open(way)
        assert (opened.data_ptr, opened.shape, opened.strides) == (t.data_ptr + 1, (2,), (2,))


def test_a_handle_describes_its_tensor():
    t = onecopy.empty((100, 10), "bfloat16")
    handle = onecopy.share(t[5, :3])
    assert (handle.shape, handle.dtype, handle.nbytes, handle.is_bundle) == ((3,), "bfloat16", 6, False)
    assert handle.storage_nbytes == t.nbytes, "the opener can see the whole storage, and this says so"
    assert repr(handle) == "<onecopy.Handle of bfloat16[3]>"
    assert str(handle).startswith("onecopy:") and str(handle).isascii() and " " not in str(handle)
    assert len(handle.to_bytes()) <= 200


def test_handles_are_values():
    t = onecopy.empty(3)
    a, b = onecopy.share(t), onecopy.share(t)
    assert a == b and hash(a) == hash(b) and a != onecopy.share(t[1:]) and a != "a"
    assert onecopy.Handle.from_bytes(a.to_bytes()) == a
    assert copy.copy(a) == copy.deepcopy(a) == a


def test_a_handle_is_not_none():
    handle = onecopy.share(onecopy.empty(3))
    assert handle != None and not handle == None and None not in [handle]  # noqa: E711, SIM201  # noqa: E711


def test_a_handle_keeps_the_memory_and_its_bytes_do_not():
    handle = onecopy.share(onecopy.full(3, 7))
    text = str(handle)
    assert onecopy.open(text).tolist() == [7, 7, 7]
    del handle
    with pytest.raises(
        onecopy.StaleHandle, match="^the tensor was freed before the handle was opened: keep the Handle"
    ):
        onecopy.open(text)


def test_a_handle_of_a_reused_block_is_stale():
    text = str(onecopy.share(onecopy.empty(16)))
    others = [onecopy.empty(16) for _ in range(100)]
    with pytest.raises(onecopy.StaleHandle):
        onecopy.open(text)
    assert len(others) == 100


def test_a_handle_of_a_dead_owner_says_so():
    code = "import onecopy, sys; t = onecopy.empty(3); print(onecopy.share(t), flush=True); sys.stdin.read()"
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
    text = owner.stdout.readline().strip()
    opened = onecopy.open(text)
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    opened[0] = 5.0
    assert onecopy.open(onecopy.share(opened))[0].item() == 5.0, "what is open here can be shared on"
    del opened
    with pytest.raises((onecopy.OwnerDied, onecopy.StaleHandle)):
        for _ in range(3000):  # until the death is noticed
            onecopy.collect()
            onecopy.open(text)
            time.sleep(0.02)


def test_a_tensor_of_a_dead_owner_goes_on_to_a_third_process(run_python):
    code = "import onecopy, sys; t = onecopy.full(3, 41); print(onecopy.share(t), flush=True); sys.stdin.read()"
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
    opened = onecopy.open(owner.stdout.readline().strip())
    owner.kill()
    owner.communicate()
    assert run_python(OPENER, str(onecopy.share(opened))) == "[42.0, 41.0, 41.0]\n"
    assert opened[0].item() == 42.0


def test_read_only_opens_cannot_write_and_lend_for_reading_only(run_python):
    t = onecopy.full(2, 1)
    reader = onecopy.open(onecopy.share(t), access="read")
    lent = onecopy.share(reader)
    assert "read-only" in repr(lent)
    with pytest.raises(onecopy.ReadOnly):
        onecopy.open(lent)
    program = """
        import sys, onecopy
        t = onecopy.open(sys.argv[1], access="read")
        try:
            t[0] = 1
        except onecopy.ReadOnly as error:
            print(error.code, t.tolist())
    """
    assert run_python(program, str(lent)) == "read_only [1.0, 1.0]\n"


def test_read_only_is_enforced_by_the_mapping(tmp_path):
    t = onecopy.full(2, 1)
    code = """
import ctypes, sys, onecopy
t = onecopy.open(sys.argv[1], access="read")
ctypes.c_float.from_address(t.data_ptr).value = 5
"""
    result = subprocess.run([sys.executable, "-c", code, str(onecopy.share(t))], stderr=subprocess.DEVNULL)
    assert result.returncode == -signal.SIGSEGV
    assert t.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("dumps", [pickle.dumps, ForkingPickler.dumps], ids=["pickle", "ForkingPickler"])
def test_a_pickled_handle_keeps_the_memory_until_it_is_opened(dumps):
    data = dumps(onecopy.share(onecopy.full(3, 7)))
    onecopy.collect()
    handle = pickle.loads(data)
    assert onecopy.open(handle).tolist() == [7, 7, 7]
    with pytest.raises(onecopy.StaleHandle):
        onecopy.open(handle)


def test_collect_gives_up_old_pickles():
    data = pickle.dumps(onecopy.share(onecopy.full(3, 7)))
    before = onecopy.stats()["in_transit"]
    onecopy.collect(older_than=3600)
    assert onecopy.stats()["in_transit"] == before
    onecopy.collect(older_than=0)
    assert onecopy.stats()["in_transit"] < before
    with pytest.raises(onecopy.StaleHandle):
        onecopy.open(pickle.loads(data))


def test_bytes_read_from_elsewhere_are_pickled_as_they_are():
    handle = onecopy.Handle.from_bytes(onecopy.share(onecopy.empty(3)).to_bytes())
    assert pickle.loads(pickle.dumps(handle)) == handle


def _write_through(tensor, handle, queue):
    tensor[0] = 1
    onecopy.open(handle)[1] = 2
    queue.put(tensor)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_arguments_of_processes_of_the_standard_library(method):
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    t = onecopy.zeros(3)
    with running(context, _write_through, t, onecopy.share(t), queue):
        again = queue.get()
    queue.close()
    queue.join_thread()
    again[2] = 3
    assert t.tolist() == [1, 2, 3]


# ---- bad input


def test_damage_is_noticed_at_every_byte():
    data = onecopy.share(onecopy.empty((2, 3))).to_bytes()
    for at in range(len(data)):
        for flip in (1, 128):
            damaged = bytearray(data)
            damaged[at] ^= flip
            with pytest.raises((onecopy.BadHandle, onecopy.VersionMismatch)):
                onecopy.open(bytes(damaged))


def test_truncation_is_noticed_at_every_length():
    data = onecopy.share(onecopy.empty((2, 3))).to_bytes()
    for length in range(len(data)):
        with pytest.raises(onecopy.BadHandle):
            onecopy.Handle.from_bytes(data[:length])


def test_noise_is_no_handle():
    noise = random.Random(1)
    for length in (0, 1, 7, 64, 128, 160, 4096, 100_000):
        with pytest.raises((onecopy.BadHandle, onecopy.VersionMismatch)):
            onecopy.open(noise.randbytes(length))
    for text in ("", "onecopy:", "onecopy:AAAA", "http://x", "onecopy:" + "A" * 10_000, "\0"):
        with pytest.raises(onecopy.BadHandle):
            onecopy.open(text)


@pytest.mark.parametrize(
    "keywords, error",
    [
        ({"access": "write"}, onecopy.InvalidArgument),
        ({"access": None}, TypeError),
        ({"framework": "tensorflow"}, onecopy.InvalidArgument),
        ({"framework": 3}, TypeError),
        ({"device": "cuda:0"}, onecopy.Unsupported),
        ({"device": 0}, TypeError),
    ],
    ids=str,
)
def test_wrong_arguments_are_named(keywords, error):
    handle = onecopy.share(onecopy.empty(1))
    with pytest.raises(error, match=next(iter(keywords))):
        onecopy.open(handle, **keywords)
    assert onecopy.open(handle, "cpu", "read", None).access == "read"


def test_a_descriptor_limit_is_a_clean_error(run_python):
    """pytorch#973: with no descriptor left, the error says so, and nothing is lost."""
    program = """
        import os, resource, sys, onecopy
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
        files = []
        try:
            while True:
                files.append(os.dup(0))
        except OSError:
            pass
        try:
            onecopy.open(sys.argv[1])
        except onecopy.OutOfDescriptors as error:
            print(error.code)
        for file in files:
            os.close(file)
        print(onecopy.open(sys.argv[1]).tolist())
    """
    t = onecopy.full(2, 5)
    assert run_python(program, str(onecopy.share(t))) == "out_of_descriptors\n[5.0, 5.0]\n"


def test_forked_children_use_what_they_inherit():
    t = onecopy.zeros(2)
    handle = onecopy.share(t)
    child = os.fork()
    if child == 0:
        try:
            onecopy.open(handle)[0] = 1
            t[1] = 2
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert t.tolist() == [1, 2]
