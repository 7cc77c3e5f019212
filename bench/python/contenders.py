# SPDX-License-Identifier: Apache-2.0
"""The contenders: a package, one of its queues, and the way in which tensors are shared."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import resource
from collections.abc import Iterator
from typing import Any

from footprint import SPARE_DESCRIPTORS


@dataclasses.dataclass(frozen=True)
class Contender:
    """A queue of one of the packages, always between spawned processes."""

    package: str
    queue: str = "Queue"
    strategy: str | None = None
    sleeps: bool = False  # told that there is one processor, so that no process spins

    @property
    def name(self) -> str:
        return f"{self.package}.{self.queue}" + (f", {self.strategy}" if self.strategy else "")

    def context(self) -> Any:
        """The spawn context of the package, in this process; what it needs is set."""
        package = importlib.import_module(self.package)
        if self.strategy:
            package.set_sharing_strategy(self.strategy)
            raise_descriptor_limit()
        return package.get_context("spawn")

    def queues(self, count: int) -> list[Any]:
        make = getattr(self.context(), self.queue)
        return [make() for _ in range(count)]

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Around making queues and starting processes."""
        usable = os.sched_getaffinity(0)
        if self.sleeps:
            os.sched_setaffinity(0, {min(usable)})
        yield
        os.sched_setaffinity(0, usable)


OURS = Contender("onecopy.multiprocessing")
OURS_SIMPLE = Contender("onecopy.multiprocessing", "SimpleQueue")
STANDARD = Contender("multiprocessing")
STANDARD_SIMPLE = Contender("multiprocessing", "SimpleQueue")
TORCH_FD = Contender("torch.multiprocessing", "Queue", "file_descriptor")
TORCH_FS = Contender("torch.multiprocessing", "Queue", "file_system")
TORCH_FD_SIMPLE = Contender("torch.multiprocessing", "SimpleQueue", "file_descriptor")
TORCH_FS_SIMPLE = Contender("torch.multiprocessing", "SimpleQueue", "file_system")


def raise_descriptor_limit() -> None:
    """torch needs a descriptor for each tensor. A few are left for footprint()."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard - SPARE_DESCRIPTORS, hard))
