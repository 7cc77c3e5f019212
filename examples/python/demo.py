# SPDX-License-Identifier: Apache-2.0
"""usage: demo.py [FILE]

Loads a safetensors file once into shared memory (without FILE, a sample of 256 MiB, which is removed again), starts
three processes that open all of it through one handle, and checks every statement that it prints. The exit status is 0
if all of them hold.
"""

import json
import multiprocessing
import os
import random
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable
from multiprocessing import resource_tracker
from typing import Any

import numpy

import onecopy

ALLOWANCE = 16 << 20  # what sharing may cost beside the tensors: tables, stacks, and pages that are not full
ITEM = {"BF16": 2, "F16": 2, "F8_E4M3": 1, "F32": 4, "F64": 8, "I64": 8}
LAYER: list[tuple[str, str, list[int]]] = [
    ("qkv.weight", "F16", [3072, 1024]), ("up.weight", "BF16", [4096, 1024]), ("down.weight", "F8_E4M3", [1024, 4096]),
]  # fmt: skip
SAMPLE: list[tuple[str, str, list[int]]] = [
    ("embed.weight", "BF16", [32768, 1024]), ("head.weight", "F32", [8192, 1024]), ("rope.table", "F64", [4096, 256]),
    ("token.counts", "I64", [1 << 20]),
    *((f"layers.{i}.{name}", dtype, shape) for i in range(8) for name, dtype, shape in LAYER),
]  # fmt: skip


def write_sample(path: str) -> None:
    """Writes a safetensors file of 256 MiB that resembles a small language model."""
    header, end, noise = {}, 0, random.Random(0)
    for name, dtype, shape in SAMPLE:
        begin, end = end, end + ITEM[dtype] * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _ in range(end >> 20):
            file.write(noise.randbytes(1 << 20))


def bytes_of(tensor: onecopy.Tensor) -> "numpy.ndarray[Any, Any]":
    row: numpy.ndarray[Any, Any] = numpy.asarray(tensor.reshape(-1).view("uint8"))
    return row


def checksum(parts: Iterable[Any]) -> int:
    crc = 0
    for part in parts:
        crc = zlib.crc32(part, crc)
    return crc


def checksum_of_end(path: str, size: int) -> int:
    """Returns the checksum of the last bytes of a file, which are the tensors, by reading the file plainly."""
    with open(path, "rb") as file:
        file.seek(-size, os.SEEK_END)
        return checksum(iter(lambda: file.read(1 << 20), b""))


def pss(pid: int, kind: str = "Pss") -> int:
    """Returns the memory of a process in bytes. A page that n processes have mapped counts as 1/n in each."""
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith(f"{kind}:")) << 10


def borrow(pipe: Any, handle: str) -> None:
    """Runs in each borrower: opens everything, and answers questions about it until the pipe is closed."""
    tensors = [bytes_of(tensor) for tensor in onecopy.open(handle).values()]
    pipe.send(sum(tensor.nbytes for tensor in tensors))
    while (question := pipe.recv()) is not None:
        if question == "checksum":
            pipe.send(checksum(tensors))
            continue
        row, value = question
        if value is not None:
            tensors[row][0] = value
        pipe.send(int(tensors[row][0]))


class Borrower:
    def __init__(self, name: str, handle: str) -> None:
        self.name = name
        self.pipe, theirs = multiprocessing.Pipe()
        self.process = multiprocessing.get_context("spawn").Process(target=borrow, args=(theirs, handle), daemon=True)
        self.process.start()
        theirs.close()
        self.pid = self.process.pid or 0
        self.nbytes = self.pipe.recv()

    def ask(self, question: object) -> Any:
        self.pipe.send(question)
        return self.pipe.recv()

    def end(self) -> bool:
        """Ends the process. Returns whether it ended by itself, with status 0."""
        self.pipe.send(None)
        self.process.join(60)
        ended_well = self.process.exitcode == 0
        self.close()
        return ended_well

    def close(self) -> None:
        self.process.kill()
        self.process.join()
        self.process.close()
        self.pipe.close()


class Demo:
    """The demo, step by step. check() prints every statement."""

    def __init__(self, path: str) -> None:
        self.path, self.holds, self.borrowers = path, True, list[Borrower]()
        onecopy.share(onecopy.zeros(1))  # the first share starts a thread that stays, as multiprocessing's tracker does
        resource_tracker.ensure_running()
        onecopy.collect()
        self.before, self.descriptors = onecopy.stats(), len(os.listdir("/proc/self/fd"))

    def check(self, holds: bool, statement: str) -> None:
        self.holds = self.holds and holds
        print("✓" if holds else "✗", statement, flush=True)

    def eventually(self, condition: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + 10
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.002)
        return True

    def load(self) -> None:
        start = time.monotonic()
        loaded = onecopy.load_safetensors(self.path)
        self.size = sum(tensor.nbytes for tensor in loaded.values())
        if self.size == 0:
            sys.exit(f"{self.path} holds no elements: there is nothing to show")
        print(f"{len(loaded)} tensors, {self.size >> 20} MiB, read in {time.monotonic() - start:.1f} s")
        print("Types:", ", ".join(sorted({str(tensor.dtype) for tensor in loaded.values()})))
        self.row = next(row for row, tensor in enumerate(loaded.values()) if tensor.nbytes)
        self.name = list(loaded)[self.row]
        self.handle = onecopy.share(loaded)
        onecopy.collect()  # memory that the pool reserved ahead would count as the tensors'
        self.tensors = [bytes_of(tensor) for tensor in loaded.values()]

    def compare(self) -> None:
        """Every process reads all tensors first: only memory that was touched counts."""
        self.borrowers += [Borrower(name, str(self.handle)) for name in "ABC"]
        checksums = [checksum(self.tensors), *(borrower.ask("checksum") for borrower in self.borrowers)]
        pids = {"owner": os.getpid(), **{borrower.name: borrower.pid for borrower in self.borrowers}}
        for name, pid in pids.items():
            print(f"   {name:5}  pid {pid:7}  memory {pss(pid) >> 20:5} MiB (PSS)")
        shared = sum(pss(pid, "Pss_Shmem") for pid in pids.values())
        one_copy = 0.95 * self.size <= shared <= self.size + ALLOWANCE
        self.check(
            one_copy, f"there is one copy: the four share {shared >> 20} MiB for {self.size >> 20} MiB of tensors"
        )
        of_file = checksum_of_end(self.path, self.size)
        same = {*checksums, of_file} == {of_file} and all(b.nbytes == self.size for b in self.borrowers)
        self.check(same, f"all four processes read the bytes of the file (CRC-32 {of_file:08x})")

    def change_in_place(self) -> None:
        after = int(self.tensors[self.row][0]) ^ 1
        seen = [self.borrowers[0].ask((self.row, after)), int(self.tensors[self.row][0])]
        seen += [borrower.ask((self.row, None)) for borrower in self.borrowers]
        self.check({*seen} == {after}, f"A changed the first byte of {self.name!r} in place: owner, B and C see it")

    def claims(self, pid: int) -> int:
        own = [owner for owner in onecopy.list_owners() if owner["pid"] == os.getpid()]
        return sum(b["claims"] for owner in own for b in owner["borrowers"] if b["pid"] == pid)

    def kill_one(self) -> None:
        killed = self.borrowers.pop(1)
        held = self.claims(killed.pid)
        killed.process.kill()
        gone = self.eventually(lambda: self.claims(killed.pid) == 0)
        killed.close()
        self.check(held > 0 and gone, "B was killed (SIGKILL): what it held is free")
        checksums = [checksum(self.tensors), *(borrower.ask("checksum") for borrower in self.borrowers)]
        self.check(len({*checksums}) == 1, "A and C go on: they read every byte again, the same as the owner")

    def give_back(self) -> None:
        ended = [borrower.end() for borrower in self.borrowers] == [True] * len(self.borrowers)
        self.borrowers.clear()
        self.tensors.clear()
        del self.handle

        def is_back() -> bool:
            onecopy.collect()
            now = onecopy.stats()
            return now["borrowers"] == now["limbo"] == 0 and all(
                now[name] <= self.before[name] for name in ("live_blocks", "bytes_shared")
            )

        self.check(self.eventually(is_back), "the memory is back: no block, no borrower, nothing reserved")
        closed = self.eventually(lambda: len(os.listdir("/proc/self/fd")) <= self.descriptors)
        own = next((owner["socket"] for owner in onecopy.list_owners() if owner["pid"] == os.getpid()), "?")
        files = [name for name in os.listdir(os.environ.get("ONECOPY_SHM_DIR", "/dev/shm")) if own in name]
        self.check(ended and closed and not files, "nothing is left behind: no process, no file, no descriptor")

    def run(self) -> int:
        for step in (self.load, self.compare, self.change_in_place, self.kill_one, self.give_back):
            step()
        print("\nAll of it verified." if self.holds else "\nNot all of it is true here: see the lines marked ✗.")
        return 0 if self.holds else 1


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="onecopy-demo-") as directory:
        if len(sys.argv) < 2:
            write_sample(f"{directory}/sample.safetensors")
        sys.exit(Demo((sys.argv[1:] or [f"{directory}/sample.safetensors"])[0]).run())
