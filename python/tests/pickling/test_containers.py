# SPDX-License-Identifier: Apache-2.0
"""What works between containers, which are sets of Linux namespaces here: all with one shared directory, none with ptrace.

The page for operators has this as a table.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

# Makes a tensor, a queue and an object of the store, and obeys.
OWNER = """
import json, os, pickle, sys, time
import onecopy

tensor, queue = onecopy.full((1 << 20,), 7, dtype="uint8"), onecopy.Queue(100)
handle = onecopy.share(tensor)
for number in range(100):
    queue.put(number)
if sys.argv[1:2] == ["publish"]:
    store = onecopy.store.connect(framework="numpy")
    store.publish("weights", {"x": onecopy.full((5,), 2.0)})
if sys.argv[1:] == ["publish", "kv_pool"]:
    kv_pool = store.kv_pool("kv", block_bytes=4096, budget=64 * 4096)
print(json.dumps([str(handle), pickle.dumps(queue).hex()]), flush=True)
sys.stdin.readline()
del handle, tensor
until = time.monotonic() + 60
while onecopy.stats()["live_bytes"] + onecopy.stats()["limbo"] > 1 << 19 and time.monotonic() < until:
    onecopy.collect()
    time.sleep(0.01)
print(onecopy.stats()["limbo"], flush=True)
sys.stdin.readline()
"""

USER = """
import json, os, pickle, sys
import onecopy

handle, queue = sys.argv[1:3]


def answer_of(use):
    try:
        return use()
    except (onecopy.Error, OSError) as error:
        return f"{type(error).__name__}: {error}"


kept = []


def kv_pool():
    kept.append(onecopy.store.connect(autostart=False, framework="numpy").kv_pool("kv", block_bytes=4096, budget=64 * 4096))
    return kept[-1]


def first_of_tensor():
    kept.append(onecopy.open(handle))
    return bytes(kept[0])[0]

print(json.dumps({
    "handle": answer_of(first_of_tensor),
    "queue": answer_of(lambda: isinstance(pickle.loads(bytes.fromhex(queue)).get(timeout=30), int)),
    "store": answer_of(lambda: onecopy.store.connect(autostart=False).open("weights")["x"].shape[0]),
    "kv_pool": answer_of(lambda: len(kv_pool().allocate(2))),
}), flush=True)
sys.stdin.readline()
print(bytes(kept[0])[-1] if kept else None, flush=True)
"""

# Leases two blocks of a KV pool and makes two others an entry. Prints how many blocks are free, and how many were idle before.
KV_POOL_USER = """
import json, os, sys
import onecopy

try:
    kv_pool = onecopy.store.connect(autostart=False, framework="numpy").kv_pool("outliving", block_bytes=4096, budget=8 * 4096)
    idle = kv_pool.stats()["idle"]
    leased = kv_pool.allocate(2)
    if not idle:
        entry = kv_pool.allocate(2)
        for number in entry:
            kv_pool.put(b"key %d" % number, number)
        kv_pool.release(entry)
    print(json.dumps([kv_pool.stats()["free"], idle]), flush=True)
except onecopy.Error as error:
    print(json.dumps(type(error).__name__), flush=True)
sys.stdin.readline()
"""

WITHOUT_PTRACE = "setpriv --bounding-set=-all --inh-caps=-all --no-new-privs"
A_PROCESS_NAMESPACE = "unshare --pid --fork --kill-child --mount-proc"
# Its own /dev/shm and /tmp, with the shared directory elsewhere. An interpreter in /tmp needs the host's /tmp.
ITS_OWN_TMP = "" if sys.prefix.startswith("/tmp/") else "mount -t tmpfs none /tmp; "
A_FILE_SYSTEM = (
    "unshare --mount sh -ec 'mount --bind $ONECOPY_RUNTIME_DIR /mnt; mount -t tmpfs none /dev/shm; "
    f'{ITS_OWN_TMP}ONECOPY_STORE_DIR=/mnt/store ONECOPY_RUNTIME_DIR=/mnt exec "$@"\' sh'
)
A_CONTAINER = f"{A_PROCESS_NAMESPACE} --ipc --net --uts --cgroup {WITHOUT_PTRACE}"
EVERYTHING = {"handle": 7, "queue": True, "store": 5, "kv_pool": 2}
OTHER_PROCESSES = EVERYTHING | {
    "queue": "Unsupported: this queue was made in PID namespace",
}

CONTAINERS = {
    "no container": ("", EVERYTHING),
    "no ptrace and no capabilities": (WITHOUT_PTRACE, EVERYTHING),
    "ipc": ("unshare --ipc", EVERYTHING),
    "network": ("unshare --net", EVERYTHING),
    "mount": (A_FILE_SYSTEM, EVERYTHING),
    "user, the same": ("unshare --user --map-current-user", EVERYTHING),
    "user, as root": ("unshare --user --map-root-user", EVERYTHING),
    "pid": (A_PROCESS_NAMESPACE, OTHER_PROCESSES),
    "time": ("unshare --time --boottime 1000 --fork --kill-child", EVERYTHING),
    "all of them": (A_CONTAINER, OTHER_PROCESSES),
    "another user": (
        "setpriv --reuid 65534 --clear-groups",
        {"handle": "OtherUser: ", "queue": "OtherUser: ", "store": "cannot open", "kv_pool": "cannot open"},
    ),
}


def is_possible() -> bool:
    trial = subprocess.run([*A_CONTAINER.split(), "true"], capture_output=True)
    return os.geteuid() == 0 and trial.returncode == 0


if not sys.platform.startswith("linux") or not is_possible():
    pytest.skip("needs root, who may make namespaces", allow_module_level=True)


class Process:
    """A program in a container."""

    def __init__(self, container: str, program: str, *arguments: str) -> None:
        command = f'exec {container} "$@"'
        self.process = subprocess.Popen(
            ["sh", "-c", command, "sh", sys.executable, "-c", program, *arguments], stdin=-1, stdout=-1, text=True
        )

    def read(self):
        line = self.process.stdout.readline()
        assert line, self.process.wait()
        return json.loads(line)

    def obey(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.read()

    def kill(self) -> None:
        """Kills it with all that it started: a process namespace ends with its first process."""
        self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """The one thing that all share. Its keeper is outside of all containers, as one in a container of its own is."""
    import onecopy

    with pytest.MonkeyPatch.context() as patch:
        made = tmp_path_factory.mktemp("run")
        patch.setenv("ONECOPY_RUNTIME_DIR", str(made))
        patch.setenv("ONECOPY_STORE_DIR", str(made / "store"))
        os.chmod(made, 0o700)
        store = onecopy.store.connect()
        yield made
        store.stop()


@pytest.fixture(scope="module")
def owner(directory):
    started = Process("", OWNER, "publish", "kv_pool")
    yield started.read()
    started.kill()


@pytest.fixture
def start(directory):
    started = []

    def start(*arguments):
        started.append(Process(*arguments))
        return started[-1]

    yield start
    for process in started:
        process.kill()


def matches(answer, expected) -> bool:
    return expected in answer if isinstance(expected, str) and isinstance(answer, str) else answer == expected


@pytest.mark.parametrize("name", CONTAINERS)
def test_with_one_shared_directory_these_work_and_those_are_refused(owner, start, name):
    container, expected = CONTAINERS[name]
    if name == "another user" and subprocess.run([*container.split(), sys.executable, "-c", ""]).returncode:
        pytest.skip("the folder of this interpreter is closed to other users")
    answers = start(container, USER, *owner).read()
    assert all(matches(answers[what], expected[what]) for what in expected), answers


def test_two_containers_share_a_tensor_and_each_is_killed(start):
    owner = start(A_CONTAINER, OWNER)
    described = owner.read()
    readers = [start(A_CONTAINER, USER, *described) for _ in range(2)]
    assert [reader.read()["handle"] for reader in readers] == [7, 7]
    readers[0].kill()
    owner.kill()
    assert readers[1].obey() == 7, "the memory lives as long as a reader does"


def test_memory_comes_back_from_containers_that_were_killed(start):
    owner = start(A_CONTAINER, OWNER)
    described = owner.read()
    reader = start(A_CONTAINER, USER, *described)
    assert reader.read()["handle"] == 7
    reader.kill()
    assert owner.obey() == 0, "no block is held for a dead reader"


def test_containers_use_one_kv_pool_at_a_time_and_it_outlives_them(start):
    names = ["unused", "unused"]
    first = start(A_CONTAINER, KV_POOL_USER, *names)
    assert first.read() == [4, 0]
    assert start(A_CONTAINER, KV_POOL_USER, *names).read() == [2, 2], "the leases of both containers are seen"
    first.kill()
    assert start(A_CONTAINER, KV_POOL_USER, *names).read() == [2, 2], "the entry stays, and the leases have ended"


def test_versions_outlive_the_container_of_their_publisher(start):
    publisher = start(A_CONTAINER, OWNER, "publish")
    described = publisher.read()
    publisher.kill()
    answers = start(A_CONTAINER, USER, *described).read()
    assert answers["store"] == 5 and "OwnerDied" in answers["handle"]
