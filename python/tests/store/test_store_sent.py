# SPDX-License-Identifier: Apache-2.0
"""Tensors of a stored version that are sent: nothing is copied, a receiver's write is its own, and the version stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

torch = pytest.importorskip("torch")

import onecopy
from onecopy import multiprocessing as mp
from onecopy.multiprocessing.reductions import reduce_storage, reduce_tensor
from support.devices import eventually

SIZE = 4 << 20  # elements of "w", 16 MiB


def values(number):
    return {"w": torch.full((SIZE,), float(number)), "b": torch.arange(6.0) + number}


def versions_mapped(process="self"):
    """The inodes of the memory of versions that a process has mapped."""
    lines = [line.split(maxsplit=5) for line in Path(f"/proc/{process}/maps").read_text().splitlines()]
    return {line[4] for line in lines if len(line) == 6 and "memfd:onecopy-chunk" in line[5]}


class Receiver:
    """A process that gets from a queue and does what it is told."""

    def __init__(self, program, *arguments, modules="torch, onecopy"):
        command = [sys.executable, "-c", f"import sys, {modules}\n" + program, *arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def says(self):
        return self.process.stdout.readline().strip()

    def goes_on(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self):
        self.process.kill()
        self.end()

    def end(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


@pytest.fixture
def receiver(request):
    """Starts processes that are ended with the test."""
    made = []

    def start(program, *arguments, **options):
        made.append(Receiver(program, *arguments, **options))
        return made[-1]

    yield start
    for one in made:
        if one.process.returncode is None:
            one.kill()


GET = """
queue = onecopy.Queue.connect(sys.argv[1])
got = queue.get()
print(got[0].item(), got[-1].item(), flush=True)
"""
WAIT = "sys.stdin.readline()\n"


def test_a_tensor_of_a_version_is_sent_without_a_copy(store, receiver):
    before = versions_mapped()  # of tests before this one
    store.publish("a", values(1))
    version = store.open("a")
    memory, allocated = versions_mapped() - before, onecopy.stats()["bytes_shared"]
    assert len(memory) == 1
    queue = onecopy.Queue()
    child = receiver(GET + WAIT, str(queue.handle()))
    queue.put(version["w"])
    assert child.says() == "1.0 1.0"
    assert versions_mapped(child.process.pid) == memory  # the version's own file
    assert onecopy.stats()["bytes_shared"] - allocated < SIZE


def test_rows_that_begin_at_one_address_arrive_whole(store, receiver):
    store.publish("a", values(1))
    version = store.open("a")
    queue = onecopy.Queue()
    get_two = (
        "first, second = queue.get(), queue.get()\nprint(len(first), len(second), second[-1].item(), flush=True)\n"
    )
    child = receiver("queue = onecopy.Queue.connect(sys.argv[1])\n" + get_two + WAIT, str(queue.handle()))
    queue.put(version["w"][:5])
    queue.put(version["w"])
    assert child.says() == f"5 {SIZE} 1.0"


def test_what_a_receiver_writes_is_seen_by_nobody_else(store, receiver):
    store.publish("a", values(1))
    version = store.open("a")
    queue, answers = onecopy.Queue(), onecopy.Queue()
    write = "got += 1\nanswers = onecopy.Queue.connect(sys.argv[2])\nanswers.put(got)\n"
    child = receiver(GET + write + WAIT, str(queue.handle()), str(answers.handle()))
    queue.put(version["w"])
    assert child.says() == "1.0 1.0"
    answer = answers.get()  # what was written is sent on as a copy
    assert answer[0] == 2
    assert answer[-1] == 2
    assert version["w"][0] == 1
    assert store.open("a")["w"][-1] == 1


def test_the_version_stays_while_a_receiver_has_its_tensor(store, receiver):
    store.publish("a", values(1), keep=1)
    queue = onecopy.Queue()
    send = """
queue = onecopy.Queue.connect(sys.argv[1])
queue.put(onecopy.store.connect().open("a")["w"])
print("put", flush=True)
sys.stdin.readline()
"""
    sender = receiver(send, str(queue.handle()))
    assert sender.says() == "put"
    child = receiver(GET + WAIT, str(queue.handle()))
    assert child.says() == "1.0 1.0"
    sender.kill()
    store.publish("a", values(2), keep=1)
    for half in store.keeper().values():
        os.kill(half, signal.SIGKILL)
        eventually(lambda half=half: not Path(f"/proc/{half}").exists() or store.keeper())
    assert [v["version"] for v in store.list()[0]["versions"]] == [1, 2]
    assert store.open("a", 1)["w"][0] == 1
    child.kill()
    assert eventually(lambda: [v["version"] for v in store.list()[0]["versions"]] == [2])


def test_an_item_outlives_its_putter_and_the_deletion_of_its_version(store, receiver):
    store.publish("a", values(1))
    queue = onecopy.Queue()
    send = """
queue = onecopy.Queue.connect(sys.argv[1])
queue.put(onecopy.store.connect().open("a")["w"])
print("put", flush=True)
"""
    sender = receiver(send, str(queue.handle()))
    assert sender.says() == "put"
    sender.end()
    store.delete("a")
    store.stop()
    child = receiver(GET, str(queue.handle()))
    assert child.says() == "1.0 1.0"


def test_a_tensor_of_a_follower_is_that_of_the_version_that_was_shown(store, receiver):
    store.publish("a", values(1))
    live = store.follow("a")
    queue = onecopy.Queue()
    queue.put(live["w"])
    with store.draft("a") as draft:
        draft["w"].fill_(2)
    assert live.update() == 2
    queue.put(live["w"])
    child = receiver(GET + GET, str(queue.handle()))
    assert child.says() == "1.0 1.0"
    assert child.says() == "2.0 2.0"


class Named(torch.Tensor):
    """A subclass, whose storage torch's reducers send."""


@pytest.mark.parametrize(
    "part",
    [lambda w: w.as_subclass(Named), lambda w: w[:0], lambda w: w.untyped_storage(), lambda w: w.conj()],
    ids=["subclass", "empty", "storage", "conjugated"],
)
def test_what_torchs_reducers_send_of_a_follower_leaves_its_memory_in_place(store, part):
    store.publish("a", {"w": torch.ones(1000, dtype=torch.complex64)})
    follower = store.follow("a")
    sent = part(follower["w"])
    reduce = reduce_storage if isinstance(sent, torch.UntypedStorage) else reduce_tensor
    rebuild, arguments = reduce(sent)
    store.publish("a", {"w": torch.full((1000,), 2.0, dtype=torch.complex64)})
    assert follower.update() == 2
    assert follower["w"][0] == 2
    rebuilt = rebuild(*arguments)
    if isinstance(sent, Named):
        assert rebuilt[0] == 1


def test_the_sender_itself_gets_a_copy(store):
    store.publish("a", values(1))
    version = store.open("a")
    queue = onecopy.Queue()
    queue.put(version["w"])
    got = queue.get()
    got += 1
    assert got[0] == 2
    assert version["w"][0] == 1
    queue.put(got)
    assert queue.get()[0] == 2


def test_handles_and_bundles_lend_too(store, receiver):
    store.publish("a", values(1))
    version = store.open("a")
    handle = onecopy.share(version["b"])
    opened = "print(onecopy.open(sys.argv[1]).numpy().sum(), flush=True)\n"
    assert receiver(opened, str(handle)).says() == "21.0"
    nested = onecopy.share({"layers": [version["w"], version["b"]], "step": 3})
    opened = "o = onecopy.open(sys.argv[1]).tree()\nprint(o['layers'][1][-1].item(), o['step'], flush=True)\n"
    assert receiver(opened, str(nested)).says() == "6.0 3"


def test_a_program_without_torch_lends_too(store, receiver):
    store.publish("a", values(1))
    queue = onecopy.Queue()
    send = """
tensor = onecopy.store.connect().open("a")["b"]
queue = onecopy.Queue.connect(sys.argv[1])
queue.put(tensor)
queue.put({"tensor": tensor, "handle": onecopy.share(tensor)})
print("put", flush=True)
sys.stdin.readline()
"""
    assert receiver(send, str(queue.handle()), modules="onecopy").says() == "put"
    assert numpy.asarray(queue.get()).tolist() == [1, 2, 3, 4, 5, 6]
    got = queue.get()
    assert numpy.asarray(got["tensor"]).tolist() == [1, 2, 3, 4, 5, 6]
    assert numpy.asarray(onecopy.open(got["handle"])).tolist() == [1, 2, 3, 4, 5, 6]


def test_an_array_on_a_received_tensor_is_sent_on_with_what_was_written(store, receiver):
    store.publish("a", values(1))
    queue, answers = onecopy.Queue(), onecopy.Queue()
    queue.put(store.open("a")["b"])
    program = """
got = onecopy.Queue.connect(sys.argv[1]).get().numpy()
got += 1
onecopy.Queue.connect(sys.argv[2]).put({"numpy": got, "handle": onecopy.share(got)})
print("put", flush=True)
sys.stdin.readline()
"""
    assert receiver(program, str(queue.handle()), str(answers.handle())).says() == "put"
    answer = answers.get()
    assert answer["numpy"].tolist() == [2, 3, 4, 5, 6, 7]
    assert numpy.asarray(onecopy.open(answer["handle"])).tolist() == [2, 3, 4, 5, 6, 7]


def test_a_forked_child_sends_what_it_inherited(store, receiver):
    store.publish("a", values(1))
    version = store.open("a")
    queue = onecopy.Queue()
    queue.put(version["b"])  # the parent has lent before
    pid = os.fork()
    if pid == 0:
        try:
            queue.put(version["w"])
        finally:
            os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    child = receiver(GET + GET, str(queue.handle()))
    assert child.says() == "1.0 6.0"
    assert child.says() == "1.0 1.0"


def add_one(tensor, queue):
    tensor += 1
    queue.put(tensor)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_process_gets_a_tensor_of_a_version_as_an_argument(store, method):
    store.publish("a", values(1))
    version = store.open("a")
    context = mp.get_context(method)
    queue = context.Queue()
    process = context.Process(target=add_one, args=(version["b"].clone() if method == "fork" else version["b"], queue))
    process.start()
    got = queue.get()
    process.join()
    assert got.tolist() == [2, 3, 4, 5, 6, 7]
    assert version["b"].tolist() == [1, 2, 3, 4, 5, 6]


def test_a_process_with_few_descriptors_asks_the_keeper_to_send(store, receiver):
    store.publish("a", values(1))
    queue = onecopy.Queue()
    send = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
store = onecopy.store.connect()
kept = [store.open("a") for _ in range(20)]
queue = onecopy.Queue.connect(sys.argv[1])
queue.put(kept[-1]["w"])
print("put", flush=True)
sys.stdin.readline()
"""
    sender = receiver(send, str(queue.handle()))
    assert sender.says() == "put"
    child = receiver(GET, str(queue.handle()))
    assert child.says() == "1.0 1.0"


def test_a_received_tensor_of_a_version_is_not_pinned(store, receiver):
    store.publish("a", values(1))
    queue = onecopy.Queue()
    queue.put(store.open("a")["w"])
    pin = """
try:
    onecopy.pin(got)
except onecopy.Unsupported as error:
    print("pin a copy" in str(error), flush=True)
"""
    child = receiver(GET + pin, str(queue.handle()))
    assert child.says() == "1.0 1.0"
    assert child.says() == "True"


@pytest.mark.parametrize("framework", ["torch", "onecopy"])
def test_pinning_a_tensor_of_a_version_is_refused_with_what_to_do(store, framework):
    store.publish("a", values(1))
    with pytest.raises(onecopy.InvalidArgument, match=r"store.*pin a copy"):
        onecopy.pin(onecopy.store.connect(framework=framework).open("a")["w"])
