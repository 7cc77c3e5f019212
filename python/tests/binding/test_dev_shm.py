# SPDX-License-Identifier: Apache-2.0
"""torch before 2.12 puts storages into /dev/shm, page by page as they are copied: a storage that does not fit there
ended in "Bus error" (pytorch#5040, #1355), and one beyond a control group's limit in a kill. There is an error
before.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import pytest

from conftest import SHARED, is_left

pytest.importorskip("torch", reason="wants torch installed")

# A view, so that torch has to move the storage; a tensor that has its storage to itself needs no file of torch's.
PROGRAM = """
import ctypes, os, sys
import torch
torch.UntypedStorage._swap_data_ptr_ = None  # as before torch 2.12
import onecopy
from onecopy import _core

libc = ctypes.CDLL(None, use_errno=True)

def mount_small_dev_shm():
    NEW_MOUNTS, RECURSIVE, PRIVATE = 0x20000, 0x4000, 1 << 18
    if (libc.unshare(NEW_MOUNTS) or libc.mount(b"none", b"/", None, RECURSIVE | PRIVATE, None)
            or libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=4m")):
        print("skip: wants to mount a tmpfs:", os.strerror(ctypes.get_errno()))
        sys.exit()

def files():  # torch's of this process: others come and go
    return [name for name in os.listdir("/dev/shm") if name.startswith(f"torch_{os.getpid()}_")]

def refusal(tensor):
    before = tensor.data_ptr(), files()
    try:
        onecopy.share(tensor)
    except onecopy.errors.OutOfMemory as error:
        assert (tensor == 1).all() and before == (tensor.data_ptr(), files())
        return str(error)
"""

SMALL = (
    PROGRAM
    + """
mount_small_dev_shm()
large = torch.ones(2 << 20)  # 8 MiB
said = refusal(large[1:])
assert said and "8.0 MiB" in said and "/dev/shm" in said and "4.0 MiB" in said and "clone()" in said, said
handle = onecopy.share(large[1:].clone())  # as it says
assert (onecopy.open(handle, framework="torch") == 1).all()
kept = []
for _ in range(12):  # 6 MiB in all: full at some time
    base = torch.ones(1 << 17)
    if said := refusal(base[1:]):
        break
    kept.append(base)
assert 4 <= len(kept) <= 8 and "/dev/shm" in said, (len(kept), said)
assert _core.torch_counters()["moved_by_torch"] == len(kept)
print("ok")
"""
)

LIMITED = (
    PROGRAM
    + """
with open(sys.argv[1], "w") as group:
    group.write(str(os.getpid()))
large = torch.ones(64 << 20)  # 256 MiB of the 400
said = refusal(large[1:])
assert said and "control group" in said and "256" in said, said
print("ok")
"""
)


def test_a_storage_that_dev_shm_has_no_room_for_is_an_error_and_no_bus_error(run_python):
    said = run_python(SMALL)
    if said.startswith("skip: "):
        pytest.skip(said[6:].strip())
    assert said == "ok\n"


@pytest.fixture
def control_group():
    """The file that takes processes into a group of 400 MiB."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if controllers == "memory":
            parent, limit = Path("/sys/fs/cgroup/memory" + path), "memory.limit_in_bytes"
            break
        if number == "0":
            parent, limit = Path("/sys/fs/cgroup" + path), "memory.max"
    group = parent / f"onecopy-test-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"wants to make a control group: {error}")
    try:
        (group / limit).write_text(str(400 << 20))
    except OSError as error:
        group.rmdir()
        pytest.skip(f"wants to limit the memory of a control group: {error}")
    yield group / "cgroup.procs"
    group.rmdir()


def test_a_storage_that_the_control_group_does_not_allow_is_an_error_and_no_kill(run_python, control_group):
    if not os.access(control_group, os.W_OK):
        pytest.skip(f"wants to write {control_group}")
    assert run_python(LIMITED, str(control_group)) == "ok\n"


# With the strategy file_system, as torch before 2.12: nothing of ours may cost a descriptor for each storage.
BY_NAME = """
import gc, os, resource, time
import torch
torch.UntypedStorage._swap_data_ptr_ = None  # as before torch 2.12
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
import onecopy
import onecopy.multiprocessing as mp

COUNT = 400

def descriptors():
    return len(os.listdir("/proc/self/fd"))

def names():
    ours = [name for name in os.listdir(os.environ["ONECOPY_SHM_DIR"]) if name.startswith("onecopy-")]
    return len(ours) + len([name for name in os.listdir("/dev/shm") if name.startswith(f"torch_{os.getpid()}_")])

def add_one(there, back, go):
    got = [there.get() for _ in range(COUNT)]
    for tensor in got:
        tensor.add_(1)
    back.put(descriptors())
    go.get()

if __name__ == "__main__":
    mp.set_sharing_strategy("file_system")
    context = mp.get_context("fork")
    there, back, go = context.Queue(), context.Queue(), context.Queue()
    process = context.Process(target=add_one, args=(there, back, go))
    process.start()
    bases = [torch.ones(4) for _ in range(COUNT)]
    for base in bases:
        there.put(base[1:])
    most = max(back.get(), descriptors())
    assert all(base.tolist() == [1, 2, 2, 2] for base in bases)
    assert onecopy._core.torch_counters()["moved_by_torch"] == COUNT
    go.put("end")
    process.join()
    del base, bases
    gc.collect()
    deadline = time.monotonic() + 60
    while names() and time.monotonic() < deadline:
        onecopy.collect(older_than=0)
        time.sleep(0.01)
    print(most < 100, names())
"""


@pytest.fixture
def directory():
    """Of this test alone, on the file system where torch has its files."""
    path = Path("/dev/shm") / f"tests-{uuid.uuid4()}"
    path.mkdir()
    yield path
    shutil.rmtree(path)


def test_with_file_system_a_storage_that_torch_moved_costs_a_name_and_no_descriptor(run_python, directory):
    assert run_python(BY_NAME, env={"ONECOPY_SHM_DIR": str(directory)}) == "True 0\n"


ELSEWHERE = """
import os, sys
import torch
torch.UntypedStorage._swap_data_ptr_ = None  # as before torch 2.12
import onecopy
import onecopy.multiprocessing as mp
mp.set_sharing_strategy("file_system")
for _ in range(2):
    base = torch.ones(4)
    onecopy.open(onecopy.share(base[1:]), framework="torch").add_(1)
    print(base.tolist())
"""


def test_names_that_cannot_be_beside_torchs_are_a_line_in_the_log(tmp_path):
    if os.stat(tmp_path).st_dev == os.stat("/dev/shm").st_dev:
        pytest.skip("wants a directory on another file system than /dev/shm")
    environment = {**os.environ, "ONECOPY_SHM_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE], capture_output=True, text=True, timeout=120, env=environment
    )
    assert done.stdout == "[1.0, 2.0, 2.0, 2.0]\n" * 2, done.stderr
    assert done.stderr.count("each storage that torch shares by name costs a descriptor") == 1


ONE_OF_EACH = """
import onecopy
print(onecopy.open(onecopy.share(onecopy.zeros(3))).shape)
onecopy.set_strategy("file_system")
try:
    onecopy.zeros(1 << 20)
except onecopy.InvalidArgument as error:
    print(error)
"""


def test_a_relative_directory_of_files_is_refused_where_a_file_is_made_and_nowhere_else(run_python):
    first, second = run_python(ONE_OF_EACH, env={"ONECOPY_SHM_DIR": "here"}).splitlines()
    assert first == "(3,)" and second.startswith('ONECOPY_SHM_DIR is "here", which names another directory')


def test_a_folder_that_another_program_has_in_dev_shm_is_not_what_a_test_has_left():
    with tempfile.TemporaryDirectory(prefix="onecopy-", dir=SHARED) as folder:
        assert not is_left(Path(folder).name)
