# SPDX-License-Identifier: Apache-2.0
"""Groups of processes for tests of rpc: each member does what it is told over a pipe of the standard library."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import signal
import time

import pytest

PATIENCE = 60.0  # seconds: far beyond what anything takes

_CONTEXT = multiprocessing.get_context("forkserver")
_numbers = itertools.count()


class Member:
    """A process. Its functions run in its main thread, one after the other."""

    def __init__(self, before=None) -> None:
        self._pipe, theirs = _CONTEXT.Pipe()
        self.process = _CONTEXT.Process(target=_obey, args=(theirs, before), daemon=True)
        self.process.start()
        theirs.close()

    def begin(self, function, *arguments) -> None:
        """Does not wait: result() does."""
        self._pipe.send((function, arguments))

    def result(self, seconds: float = PATIENCE):
        """The function's result. Throws its exception, or TimeoutError when it hangs."""
        if not self._pipe.poll(seconds):
            raise TimeoutError(f"no answer from process {self.process.pid} in {seconds:g} s")
        result, error = self._pipe.recv()
        if error is not None:
            raise error
        return result

    def __call__(self, function, *arguments):
        self.begin(function, *arguments)
        return self.result()

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join()

    def end(self) -> int | None:
        """Lets it return from main; its exit code."""
        with contextlib.suppress(OSError):
            self._pipe.send(None)
        self.process.join(PATIENCE)
        code = self.process.exitcode
        if code is None:
            self.process.kill()
            self.process.join()
        self._pipe.close()
        return code


def _obey(pipe, before) -> None:
    import torch

    torch.set_num_threads(1)
    if before is not None:
        before()
    while True:
        try:
            message = pipe.recv()
        except EOFError:
            return
        if message is None:
            return
        function, arguments = message
        try:
            pipe.send((function(*arguments), None))
        except Exception as error:
            pipe.send((None, _portable(error)))
        message = function = arguments = None


def _portable(error: Exception) -> Exception:
    known = isinstance(error, (RuntimeError, ValueError, TypeError, KeyError, AttributeError, PermissionError))
    return type(error)(str(error)) if known else RuntimeError(f"{type(error).__name__}: {error}")


def results(members) -> list:
    """Returns the results of the functions that the members have begun."""
    return [member.result() for member in members]


def together(members, function, *arguments) -> list:
    """Calls a function in all members at once. Returns its results."""
    for member in members:
        member.begin(function, *arguments)
    return results(members)


def said_in_a_fork(call) -> str:
    """Returns the text of the RuntimeError that a call raises in a forked child."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            call()
            text = "it worked"
        except RuntimeError as error:
            text = str(error)
        os.write(writing, text.encode())
        os._exit(0)
    os.waitpid(pid, 0)
    return os.read(reading, 4096).decode()


def init(file: str, rank: int, size: int, name: str, options: dict) -> None:
    """Calls init_rpc() in a member."""
    init_at(f"file://{file}", rank, size, name, options)


def init_at(method: str, rank: int, size: int, name: str, options: dict) -> None:
    from onecopy.distributed import rpc

    backend = rpc.TensorPipeRpcBackendOptions(init_method=method, **options)
    rpc.init_rpc(name, rank=rank, world_size=size, rpc_backend_options=backend)


def shutdown(graceful: bool = True) -> None:
    from onecopy.distributed import rpc

    rpc.shutdown(graceful=graceful)


def is_plain(function, *arguments) -> bool:
    """Whether calls of it in "worker1" need no Python code of ours, from the second one on."""
    from onecopy.distributed import rpc
    from onecopy.rpc import registry

    agent = registry.current()
    resolve, asked = agent.resolve, []
    agent.resolve = lambda function, how: asked.append(function) or resolve(function, how)
    rpc.rpc_sync("worker1", function, args=arguments)
    asked.clear()
    rpc.rpc_sync("worker1", function, args=arguments)
    return asked == []


class Group:
    """Members "worker0" and so on, that have met. As a context manager it ends them."""

    init, shutdown = staticmethod(init), staticmethod(shutdown)

    def __init__(self, directory, size: int, **options) -> None:
        self.members = [Member() for _ in range(size)]
        self.file = f"{directory}/rendezvous-{next(_numbers)}"
        for rank, member in enumerate(self.members):
            member.begin(self.init, self.file, rank, size, f"worker{rank}", options)
        results(self.members)

    def __getitem__(self, rank: int) -> Member:
        return self.members[rank]

    def __enter__(self) -> Group:
        return self

    def __exit__(self, kind, *rest) -> None:
        has_left = False
        try:
            if kind is None:
                self.leave()
                has_left = True
        finally:
            for member in self.members:
                if not has_left:
                    member.process.kill()
                member.end()

    def leave(self) -> None:
        """shutdown() of all that live."""
        living = [m for m in self.members if m.process.is_alive()]
        everyone = len(living) == len(self.members)
        together(living, self.shutdown, everyone)


def native_init(file: str, rank: int, size: int | None, name: str, options: dict) -> None:
    """Calls onecopy.rpc.init() in a member."""
    import native_rpc_functions  # noqa: F401
    import onecopy.rpc

    onecopy.rpc.init(name, rank=rank, world_size=size, rendezvous=f"file://{file}", **options)


def native_shutdown(graceful: bool = True) -> None:
    import onecopy.rpc

    onecopy.rpc.shutdown(graceful=graceful)


class NativeGroup(Group):
    """Members that call only exported functions."""

    init, shutdown = staticmethod(native_init), staticmethod(native_shutdown)


class Meeting:
    """A group without a size, whose members join when they are told. All of its processes are ended in the end."""

    def __init__(self, file) -> None:
        self.file, self.members, self._ranks = str(file), [], itertools.count()

    def add(self) -> Member:
        """Returns a process that has joined nothing."""
        member = Member()
        self.members.append(member)
        return member

    def join(self, name: str | None = None, rank: int | None = None, **options) -> Member:
        """Returns a member, "worker0" and so on, that has joined."""
        rank = next(self._ranks) if rank is None else rank
        member = self.add()
        member(native_init, self.file, rank, None, name or f"worker{rank}", options)
        return member

    def end(self) -> None:
        for member in self.members:
            if member.process.is_alive():
                os.kill(member.process.pid, signal.SIGCONT)
                member.process.kill()
            member.end()


def shared_group(size: int, kind: type[Group] = Group, **options):
    """Returns a fixture: a group for all tests of a module."""

    @pytest.fixture(scope="module")
    def group(tmp_path_factory):
        with kind(tmp_path_factory.mktemp("rpc"), size, **options) as made:
            yield made

    return group


def until(condition, what: str) -> None:
    """Waits for a condition. Throws TimeoutError."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(0.005)
