# SPDX-License-Identifier: Apache-2.0
"""A process that is short of address space or mappings gets errors that name the limit, and loaders need little of it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

wants_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="wants torch installed")


@pytest.fixture(scope="module")
def fail_mapping(tmp_path_factory):
    """The environment in which a program can call fail_mapping(n), see fail_mapping.c."""
    library = tmp_path_factory.mktemp("fail_mapping") / "fail_mapping.so"
    source = Path(__file__).parent / "fail_mapping.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source)], check=True)
    return {"LD_PRELOAD": str(library)}


EACH_MAPPING = """
import ctypes, os, sys, traceback
import onecopy

mappings = ctypes.CDLL(None)

def own(send, until, main):
    tensor = onecopy.full((1000,), 3.0)
    os.close(main)
    os.write(send, str(onecopy.share(tensor)).encode())
    os.read(until, 1)  # until the main process ends

def open_put_get(text):
    tensor = onecopy.open(text)
    queue = onecopy.Queue()
    queue.put(tensor)
    queue.put({"text": tensor})
    assert float(queue.get()[0]) == 3.0 and float(queue.get()["text"][999]) == 3.0
    return tensor

def try_to(text):
    try:
        return open_put_get(text)
    except onecopy.errors.OutOfMappings as error:
        assert "ulimit -v" in str(error) and "vm.max_map_count" in str(error), error
    except onecopy.errors.OutOfMemory as error:
        assert "cannot map" in str(error) or "ulimit -v" in str(error), error

def borrow(text, after):
    onecopy.share(onecopy.ones(3))  # the library works before
    mappings.fail_mapping(after)
    kept = try_to(text)
    was_refused = not mappings.has_mappings_left()
    mappings.fail_mapping(-1)
    open_put_get(text)
    os._exit(10 if was_refused else 0)

receive, send = os.pipe()
until, main = os.pipe()
if os.fork() == 0:
    try:
        own(send, until, main)
    finally:
        os._exit(0)
text, after, refusals = os.read(receive, 4096).decode(), 0, 0
while True:
    child = os.fork()
    if child == 0:
        try:
            borrow(text, after)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 10), (after, status)
    if status == 0:
        break
    after, refusals = after + 1, refusals + 1
assert refusals > 8, refusals
"""


def test_each_mapping_that_is_refused_while_a_process_opens_puts_and_gets_is_an_error(run_python, fail_mapping):
    run_python(EACH_MAPPING, env=fail_mapping, stderr=None)


LOADER = """
import resource, sys, warnings
from pathlib import Path
import torch
from torch.utils.data import DataLoader
import onecopy.multiprocessing as mp

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, index):
        return torch.full((20_000,), float(index)), index

torch.set_num_threads(1)
warnings.simplefilter("ignore")  # torch counts the processors
mode, more = sys.argv[1], int(sys.argv[2])
mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (mapped + (more << 20),) * 2)
context = mp.get_context("fork") if mode == "context" else "fork"
kept = list(DataLoader(Rows(), 4, num_workers=4, multiprocessing_context=context, timeout=60))
assert len(kept) == 12 and all(bool((x[:, -1] == i).all()) for x, i in kept)
"""


@wants_torch
@pytest.mark.parametrize("mode", ["import", "context"])
def test_a_loader_with_four_workers_needs_less_than_four_gib_of_addresses(run_python, mode):
    run_python(LOADER, mode, str(4096))


@wants_torch
@pytest.mark.parametrize("mode", ["import", "context"])
@pytest.mark.parametrize("more", [64, 300])
def test_a_loader_with_too_few_addresses_fails_with_the_name_of_the_limit(tmp_path, mode, more):
    """An exception in the main process or in a worker, and no abort."""
    program = tmp_path / "program.py"
    program.write_text(LOADER)
    ran = subprocess.run(
        [sys.executable, str(program), mode, str(more)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 1, ran.stderr
    assert "ulimit -v" in ran.stderr
    assert "terminate called" not in ran.stderr


@wants_torch
def test_an_ended_worker_of_which_a_tensor_is_kept_costs_one_descriptor_and_two_mappings(run_python):
    run_python(
        """
        import os, sys, time
        from pathlib import Path
        import torch
        from torch.utils.data import DataLoader, TensorDataset
        import onecopy.multiprocessing

        torch.set_num_threads(1)
        kept = []

        def epochs(count):
            data = TensorDataset(torch.arange(4.0))
            for _ in range(count):
                for (label,) in DataLoader(data, 4, num_workers=1, multiprocessing_context="fork"):
                    kept.append(label)

        def descriptors():
            return len(os.listdir("/proc/self/fd"))

        def mappings():
            return Path("/proc/self/maps").read_text().count("\\n")

        def addresses():
            return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")

        epochs(2)
        while "onecopy-claims" in Path("/proc/self/maps").read_text():  # until the end of the last worker is noticed
            time.sleep(0.01)
        before = descriptors(), mappings(), addresses()
        epochs(6)
        while descriptors() > before[0] + 6 or "onecopy-claims" in Path("/proc/self/maps").read_text():
            time.sleep(0.01)
        assert mappings() - before[1] <= 2 * 6 + 4, (mappings(), before)
        assert addresses() - before[2] < 6 * (65 << 20) + (32 << 20), (addresses(), before)
        assert all(label.tolist() == [0, 1, 2, 3] for label in kept)
        """,
        env={"MALLOC_ARENA_MAX": "1"},  # malloc reserves 64 MiB of addresses for a thread that meets another one
    )


def test_the_memory_of_an_ended_owner_is_passed_on_after_its_descriptors_are_closed(run_python):
    run_python(
        """
        import os, time
        import onecopy

        receive, send = os.pipe()
        owner = os.fork()
        if owner == 0:
            tensors = [onecopy.full((1000,), float(i)) for i in range(3)]
            handles = [onecopy.share(tensor) for tensor in tensors]
            os.write(send, " ".join(map(str, handles)).encode())
            time.sleep(1000)
        texts = os.read(receive, 4096).decode().split()
        first = onecopy.open(texts[0])
        again = onecopy.share(first)
        start = len(os.listdir("/proc/self/fd"))
        os.kill(owner, 9)
        os.waitpid(owner, 0)
        while len(os.listdir("/proc/self/fd")) > start - 3:  # its socket, its pidfd and its table
            time.sleep(0.01)

        queue = onecopy.Queue()
        queue.put(first)
        assert float(onecopy.open(texts[1])[7]) == 1.0, "a block of the segment that this process never opened before"
        if os.fork() == 0:
            import subprocess, sys
            code = "import sys, onecopy; assert [float(onecopy.open(t)[5]) for t in sys.argv[1:]] == [0.0, 0.0, 2.0]"
            os._exit(subprocess.call([sys.executable, "-c", code, str(again), texts[0], texts[2]]))
        assert os.wait()[1] == 0
        assert float(queue.get()[9]) == 0.0
        """
    )


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_kept_tensor_of_an_ended_child_keeps_none_of_the_memory_that_the_child_had_free(run_python, method):
    run_python(
        """
        import os, sys
        import multiprocessing
        import onecopy

        def work(pipe):
            large, small = onecopy.zeros((4 << 20,), dtype="uint8"), onecopy.full((10,), 7.0)
            pipe.send([str(onecopy.share(large)), str(onecopy.share(small))])
            pipe.recv()

        def memory():
            files = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
            names = {name: os.readlink(name) for name in files if os.path.exists(name)}
            return sum(os.stat(name).st_blocks * 512 for name, link in names.items() if "memfd:onecopy" in link)

        if __name__ == "__main__":
            context = multiprocessing.get_context(sys.argv[1])
            pipe, theirs = context.Pipe()
            child = context.Process(target=work, args=(theirs,))
            child.start()
            large, small = map(onecopy.open, pipe.recv())
            assert memory() > 4 << 20
            del large
            pipe.send("released")
            child.join()
            assert child.exitcode == 0
            assert memory() < 1 << 20, memory()
            assert small.tolist() == [7.0] * 10
        """,
        method,
    )
