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
    sleeps: bool = False  # whether the package sees only one processor, so that no process spins

    @property
    def name(self) -> str:
        return f"{self.package}.{self.queue}" + (f", {self.strategy}" if self.strategy else "")

    def context(self) -> Any:
        """Returns the package's spawn context after setting up this process for it."""
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
        """Restricts this process to one processor in the block, which makes queues and processes, if none may spin."""
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
    """Raises the limit, since torch needs a descriptor for each tensor. Leaves a few for footprint()."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard - SPARE_DESCRIPTORS, hard))
