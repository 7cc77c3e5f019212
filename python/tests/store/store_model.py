# SPDX-License-Identifier: Apache-2.0
"""Random histories of a store beside a model of what its guide promises.

A director publishes, alone or with another process in a transaction, rolls back and deletes; readers open, drop, follow, send,
fork, stop and die; either half of the keeper, or both with some readers, is killed, also while a call is under way. After each
step the store must be in a state that the promises allow.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any

import onecopy

SIZE = 4096


def stamp(number: int) -> bytes:
    """Returns the content of the version that is published as the n-th one."""
    return number.to_bytes(8, "little") * (SIZE // 8)


class Reader:
    """A process with a store of its own, which does what it is told."""

    def __init__(self, name: str, has_namespace: bool) -> None:
        ours, theirs = socket.socketpair()
        self.has_namespace = has_namespace
        self.pid = fork_with_namespace() if has_namespace else os.fork()
        if self.pid == 0:
            ours.close()
            serve(theirs, name, autostart=not has_namespace)
        theirs.close()
        self.channel = ours.makefile("rw")
        ours.close()
        self.held: dict[int, int] = {}  # how often each number is open
        self.follows: int | None = None
        self.received: dict[int, int] = {}  # how many tensors of each number others have sent
        self.lent: set[int] = set()  # numbers of which it has sent tensors
        self.children: dict[int, set[int]] = {}  # what forked children read, by their pid
        self.is_stopped = False
        self.has_kv_pool = False

    def ask(self, *words: Any) -> Any:
        """Sends a command and returns its answer."""
        print(json.dumps(words), file=self.channel, flush=True)
        line = self.channel.readline()
        assert line, f"reader {self.pid} ended at {words}"
        return json.loads(line)

    def reads(self) -> set[int]:
        """Returns the numbers that the process has opened."""
        return set(self.held) | ({self.follows} if self.follows is not None else set())

    def uses(self) -> set[int]:
        """Returns the numbers whose memory the process uses."""
        return self.reads() | set(self.received)

    def kill(self) -> None:
        """Kills the process, but not its children."""
        os.kill(self.pid, signal.SIGKILL)
        wait_for_the_end(self.pid)
        self.channel.close()


def fork_with_namespace() -> int:
    """Forks a process into a PID namespace of its own, and returns its pid here, or 0 in the process."""
    readable, writable = os.pipe()
    parent = os.fork()
    if parent == 0:
        ctypes.CDLL(None).unshare(0x20000000)  # CLONE_NEWPID
        pid = os.fork()
        if pid == 0:
            os.close(writable)
            return 0
        os.write(writable, str(pid).encode())
        os._exit(0)
    os.waitpid(parent, 0)
    os.close(writable)
    with open(readable) as pipe:
        return int(pipe.read())


def serve(channel: socket.socket, name: str, autostart: bool) -> None:
    """Runs a reader until its channel ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    store = onecopy.store.connect(framework="onecopy", autostart=autostart)
    held: dict[int, list[Any]] = {}
    received: dict[int, list[Any]] = {}
    sent: list[Any] = []  # the handle that was sent last
    live = kv_pool = None
    stream = channel.makefile("rw")
    for line in stream:
        command, *arguments = json.loads(line)
        answer: Any = None
        try:
            if command == "open":
                answer = hold(held, store.open(name, *arguments))
            elif command == "drop":
                held[arguments[0]].pop()
            elif command == "follow":
                live = store.follow(name)
                answer = live.version
            elif command == "update":
                if live.version % 2:
                    live.prepare()
                answer = live.update()
            elif command == "send":
                sent[:] = [onecopy.share(held[arguments[0]][-1]["x"])]
                answer = str(sent[0])
            elif command == "sent":
                sent.clear()
            elif command == "receive":
                received.setdefault(arguments[1], []).append(onecopy.open(arguments[0]))
            elif command == "drop received":
                received[arguments[0]].pop()
            elif command == "touch":
                store.list()
            elif command == "check":
                answer = all(
                    map(is_whole, [*(each for same in held.values() for each in same), *([live] if live else [])])
                ) and all(bytes(each) == stamp(number) for number, same in received.items() for each in same)
            elif command == "fork":
                answer = os.fork()
                if answer == 0:
                    signal.pause()
                    os._exit(0)
            elif command == "kv_pool":
                kv_pool = store.kv_pool(f"{name} blocks", block_bytes=SIZE, budget=64 * SIZE)
            elif command == "put":
                (block,) = kv_pool.allocate(1)
                kv_pool.put(arguments[0].encode(), block)
                kv_pool.release([block])
            elif command == "find":
                found = kv_pool.find_all([key.encode() for key in arguments[0]])
                answer = [number is not None for number in found]
                kv_pool.release([number for number in found if number is not None])
        except onecopy.Error as error:
            answer = type(error).__name__
        print(json.dumps(answer), file=stream, flush=True)
    os._exit(0)


def hold(held: dict[int, list[Any]], version: Any) -> int:
    """Keeps a version open, and returns its number."""
    held.setdefault(version.version, []).append(version)
    return version.version


def is_whole(version: Any) -> bool:
    """Returns whether a version has its own content."""
    return bytes(version["x"]) == stamp(version.version)


class History:
    """A store, its readers, and what the model knows of them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.name = f"object {seed}"
        self.store = onecopy.store.connect(framework="onecopy")
        self.readers: list[Reader] = []
        self.orphans: dict[int, set[int]] = {}  # children of killed readers, and what they read
        self.inherited: dict[int, set[int]] = {}  # what the parents of children had lent, by the children's pids
        self.shown: list[int] = []  # numbers in the order in which they became current
        self.here: set[int] = set()  # numbers whose memory the keeper has, or may have dropped by its rules
        self.may_go: set[int] = set()  # numbers that the keeper may have dropped already
        self.awaited: set[int] = set()
        self.deleted: set[int] = set()
        self.keep = 1
        self.last = 0
        self.published_since = 0  # publishes since both halves were killed
        self.deaths = 0  # of halves of the keeper
        self.keys: list[str] = []
        self.pair: int | None = None  # the number of the version that was committed last

    # --- what the model says

    def is_read(self) -> set[int]:
        """Returns the numbers that any living process reads."""
        numbers = set().union(*self.orphans.values()) if self.orphans else set()
        for reader in self.readers:
            numbers |= reader.uses()
            for child in reader.children.values():
                numbers |= child
        return numbers

    def may_be_mapped(self) -> set[int]:
        """Returns the numbers that a stopped sender, or a child of a sender, may still have mapped."""
        numbers = set().union(*(reader.lent for reader in self.readers if reader.is_stopped))
        alive = {*self.orphans, *(pid for reader in self.readers for pid in reader.children)}
        return numbers.union(*(self.inherited[pid] for pid in alive))

    def order(self, numbers: set[int]) -> list[int]:
        """Returns numbers; the one that was current last is the last one."""
        found: list[int] = []
        for number in reversed(self.shown):
            if number in numbers and number not in found:
                found.insert(0, number)
        return found

    def current(self) -> int | None:
        """Returns the number that open() must return."""
        order = self.order(self.here)
        return order[-1] if order else None

    def must_be_here(self) -> set[int]:
        """Returns the numbers that open(number) must find."""
        kept = set(self.order(self.here | self.awaited)[-self.keep :])
        wanted = kept | self.is_read() | {self.current()}
        return {number for number in self.here - self.may_go if number in wanted}

    # --- steps

    def publish(self) -> None:
        """Publishes a version; numbers only grow."""
        keep = self.random.randint(1, 3)
        self.may_go |= self.here - self.must_be_here()  # also if the new `keep` would have kept them
        self.published(self.store.publish(self.name, {"x": bytearray(stamp(self.last + 1))}, keep=keep), keep)

    def published(self, found: int, keep: int) -> None:
        """Notes that a version was published."""
        number = self.last + 1
        assert found == number, f"{found} was published after {self.last}"
        self.last, self.keep = number, keep
        self.shown.append(number)
        self.here.add(number)
        self.published_since += 1
        if self.published_since > keep:
            self.awaited &= set(self.order(self.here | self.awaited)[-keep:])

    def transact(self) -> None:
        """Publishes a version together with one of another object, which another process writes and perhaps dies."""
        keep, fate = self.random.randint(1, 3), self.random.choice(["end", "end", "die", "half", "both", "forget"])
        both = self.store.transaction()
        both.publish(self.name, {"x": bytearray(stamp(self.last + 1))}, keep=keep)
        writer = self.start_writer(both.handle, self.last + 1, fate)
        if fate == "half":
            os.kill(self.store.keeper()[self.random.choice(["worker", "guard"])], signal.SIGKILL)
            self.deaths += 1
        if fate == "both":
            self.kill_both()
        os.waitpid(writer, 0)
        if fate == "forget":
            return
        if fate in ("die", "both"):
            with contextlib.suppress(onecopy.StaleHandle):
                raise AssertionError(f"{both.commit()} was committed, though {fate}")
            return
        self.may_go |= self.here - self.must_be_here()
        self.published(both.commit(), keep)
        self.pair = self.last

    def start_writer(self, handle: str, number: int, fate: str) -> int:
        """Forks a process that takes part in a transaction, and returns its pid."""
        pid = os.fork()
        if pid == 0:
            with (
                contextlib.suppress(onecopy.StaleHandle),
                onecopy.store.connect(framework="onecopy").join(handle) as part,
            ):
                if fate == "die" and number % 2:
                    os.kill(os.getpid(), signal.SIGKILL)
                part.publish(f"{self.name} pair", {"x": bytearray(stamp(number))})
                if fate == "die":
                    os.kill(os.getpid(), signal.SIGKILL)
            os._exit(0)
        return pid

    def rollback(self) -> None:
        """Makes an earlier version the current one."""
        if self.must_be_here():
            number = self.random.choice(sorted(self.must_be_here()))
            self.store.rollback(self.name, to=number)
            self.shown.append(number)

    def delete(self) -> None:
        """Deletes all versions but some."""
        keep = self.random.randint(0, 2)
        current = self.current()
        self.store.delete(self.name, keep=keep)
        stays = {version["version"] for entry in self.listed() for version in entry["versions"]}
        assert len(stays) <= keep, f"{stays} stayed"
        assert keep == 0 or current is None or self.awaited or current in stays, f"{current} was deleted, not {stays}"
        self.deleted |= (self.here | self.awaited | self.is_read()) - stays
        self.here &= stays
        self.awaited &= stays

    def some_reader(self) -> Reader | None:
        """Returns a reader that is not stopped."""
        awake = [reader for reader in self.readers if not reader.is_stopped]
        return self.random.choice(awake) if awake else None

    def start_reader(self) -> None:
        """Starts a reader, up to five."""
        if len(self.readers) < 5:
            self.readers.append(Reader(self.name, os.geteuid() == 0 and self.random.random() < 0.25))

    def open(self, reader: Reader) -> None:
        """Opens a version that must be here, or the current one."""
        numbers = sorted(self.must_be_here())
        wanted = self.random.choice([None, *numbers])
        found = reader.ask("open", *([wanted] if wanted else []))
        expected = wanted or self.current()
        assert found == expected or (expected is None and found == "StaleHandle"), f"opened {found}, not {expected}"
        if expected:
            reader.held[found] = reader.held.get(found, 0) + 1

    def drop(self, reader: Reader) -> None:
        """Drops a version."""
        if reader.held:
            number = self.random.choice(sorted(reader.held))
            reader.ask("drop", number)
            reader.held[number] -= 1
            if reader.held[number] == 0:
                del reader.held[number]

    def send(self, reader: Reader) -> None:
        """Lets a reader send a tensor of a version to another one."""
        others = [each for each in self.readers if not (each is reader or each.is_stopped or each.has_namespace)]
        if not reader.held or reader.has_namespace or not others:
            return
        number, other = self.random.choice(sorted(reader.held)), self.random.choice(others)
        text = reader.ask("send", number)
        reader.lent.add(number)
        if self.random.random() < 0.2:  # before the other one has opened it
            self.drop(reader)
        assert other.ask("receive", text, number) is None
        other.received[number] = other.received.get(number, 0) + 1
        reader.ask("sent")

    def drop_received(self, reader: Reader) -> None:
        """Drops a tensor that was sent."""
        if reader.received:
            number = self.random.choice(sorted(reader.received))
            reader.ask("drop received", number)
            reader.received[number] -= 1
            if reader.received[number] == 0:
                del reader.received[number]

    def follow(self, reader: Reader) -> None:
        """Follows the object, or shows the current version."""
        expected = self.current()
        if expected is None:
            return
        found = reader.ask("follow" if reader.follows is None else "update")
        assert found == expected, f"shows {found}, not {expected}"
        reader.follows = found

    def fork(self, reader: Reader) -> None:
        """Lets a reader fork a child that makes no call."""
        if len(reader.children) < 2 and not reader.has_namespace:  # whose pids mean nothing here
            pid = reader.ask("fork")
            reader.children[pid] = reader.uses()
            self.inherited[pid] = set(reader.lent)

    def stop_or_go_on(self) -> None:
        """Stops a reader, or lets all stopped ones go on."""
        reader = self.some_reader()
        stopped = [reader for reader in self.readers if reader.is_stopped]
        if stopped or reader is None or reader.has_kv_pool:
            for each in stopped:
                os.kill(each.pid, signal.SIGCONT)
                each.is_stopped = False
                self.touch(each)
        else:
            os.kill(reader.pid, signal.SIGSTOP)
            reader.is_stopped = True

    def kill_reader(self) -> None:
        """Kills a reader; its children live on."""
        if self.readers:
            reader = self.readers.pop(self.random.randrange(len(self.readers)))
            reader.kill()
            self.orphans.update(reader.children)

    def kill_child(self) -> None:
        """Kills a forked child of a reader."""
        groups = [self.orphans, *(reader.children for reader in self.readers)]
        pids = [(group, pid) for group in groups for pid in group]
        if pids:
            group, pid = self.random.choice(pids)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            wait_for_the_end(pid)
            del group[pid]

    def touch(self, reader: Reader) -> None:
        """Lets a reader make a call, so that it offers what it reads."""
        reader.ask("touch")
        for number in reader.reads() & self.awaited:
            self.awaited.discard(number)
            self.here.add(number)

    def kill_half(self) -> None:
        """Kills a half of the keeper, perhaps while a call is under way."""
        pid = self.store.keeper()[self.random.choice(["worker", "guard"])]
        self.deaths += 1
        if self.random.random() < 0.5:
            os.kill(pid, signal.SIGKILL)
        else:
            timer = threading.Timer(self.random.random() * 0.003, os.kill, (pid, signal.SIGKILL))
            timer.start()
            self.random.choice([self.publish, self.rollback, self.store.list])()
            timer.join()
        while pid in self.store.keeper().values():  # the death of the other half now would be one of both
            time.sleep(0.001)

    def kill_both(self) -> None:
        """Kills the keeper and some readers at once, as the end of a cgroup does."""
        halves = self.store.keeper()
        os.kill(halves["guard"], signal.SIGSTOP)  # so that it starts no other worker
        for pid in halves.values():
            os.kill(pid, signal.SIGKILL)
        self.deaths += 2
        for _ in range(self.random.randint(0, 2)):
            self.kill_reader()
        wait_for_the_end(halves["worker"])
        wait_for_the_end(halves["guard"])
        self.awaited |= self.here
        self.here = set()
        self.pair = None
        self.published_since = 0
        self.store.list()  # starts a keeper, whose pids mean something here
        for reader in self.readers:
            if not reader.is_stopped:
                self.touch(reader)
        if not any(reader.has_kv_pool for reader in self.readers):
            self.keys = []

    def replace(self) -> None:
        """Lets another keeper take over."""
        command = [sys.executable, "-m", "onecopy", "store", "serve", "--replace", "--background"]
        subprocess.run(command, check=True, capture_output=True, timeout=60)

    def use_kv_pool(self, reader: Reader) -> None:
        """Puts a key into the KV pool, and finds all others."""
        if not reader.has_kv_pool:
            reader.ask("kv_pool")
            reader.has_kv_pool = True
        if self.keys:
            found = reader.ask("find", self.keys)
            assert all(found), f"keys were lost: {self.keys}, {found}"
        if len(self.keys) < 40:
            self.keys.append(f"key {len(self.keys)}")
            assert reader.ask("put", self.keys[-1]) is None

    def step(self) -> str:
        """Does something at random, and returns what it was."""
        with_readers = {
            self.open: 6,
            self.drop: 4,
            self.follow: 4,
            self.send: 3,
            self.drop_received: 2,
            self.fork: 1,
            self.use_kv_pool: 2,
        }
        alone = {
            self.publish: 6,
            self.rollback: 2,
            self.transact: 3,
            self.delete: 1,
            self.start_reader: 3,
            self.stop_or_go_on: 2,
            self.kill_reader: 1,
            self.kill_child: 1,
            self.kill_half: 3,
            self.kill_both: 1,
            self.replace: 1 if self.random.random() < 0.2 else 0,
        }
        steps = {**with_readers, **alone}
        step = self.random.choices(list(steps), list(steps.values()))[0]
        if step not in with_readers:
            step()
        elif reader := self.some_reader():
            step(reader)
        return step.__name__

    # --- promises

    def check(self) -> None:
        """Checks what the guide promises, and what each reader sees."""
        numbers = {
            version["version"] for entry in self.listed() for version in entry["versions"] if not version["awaited"]
        }
        assert self.must_be_here() <= numbers, f"lost {self.must_be_here() - numbers} of {numbers}"
        assert not (numbers & self.deleted), f"{numbers & self.deleted} came back after delete()"
        self.here &= numbers
        expected = self.current()
        if expected is not None:
            version = self.store.open(self.name)
            assert version.version == expected, f"{version.version} is current, not {expected}"
            assert bytes(version["x"]) == stamp(expected)
        pairs = [v for e in self.store.list() if e["name"] == f"{self.name} pair" for v in e["versions"]]
        newest = max((version["version"] for version in pairs if not version["awaited"]), default=None)
        assert newest == self.pair, f"{newest} of the pair is current, not {self.pair}"
        if self.pair:
            assert bytes(self.store.open(f"{self.name} pair")["x"]) == stamp(self.pair)
        for reader in self.readers:
            if not reader.is_stopped:
                assert reader.ask("check"), f"reader {reader.pid} sees another content"

    def listed(self) -> list[dict[str, Any]]:
        """Returns the entries of the object."""
        return [entry for entry in self.store.list() if entry["name"] == self.name]

    def settle(self) -> None:
        """Checks that what nobody reads goes within two seconds, beyond what the last publisher keeps."""
        until = time.monotonic() + 30
        while True:
            here = {v["version"] for e in self.listed() for v in e["versions"] if not v["awaited"]}
            kept = set(self.order(here | self.awaited)[-self.keep :]) | {self.current()}
            extra = here - kept - self.is_read() - self.may_be_mapped()
            if not extra:
                return
            assert time.monotonic() < until, f"{extra} stay though nobody reads them"
            time.sleep(0.05)

    def end(self) -> None:
        """Ends all processes, and deletes what there is."""
        for reader in self.readers:
            reader.kill()
            self.orphans.update(reader.children)
        for pid in self.orphans:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for name in (self.name, f"{self.name} blocks", f"{self.name} pair"):
            self.store.delete(name)


def wait_for_the_end(pid: int) -> None:
    """Waits until a process that need not be a child has ended."""
    for _ in range(20_000):
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return
        except (FileNotFoundError, ProcessLookupError):
            return
        time.sleep(0.001)
    raise AssertionError(f"process {pid} does not end")


def run(seed: int, steps: int) -> tuple[int, int]:
    """Runs a history, and returns the numbers of publishes and of deaths of the keeper."""
    history = History(seed)
    trace: list[str] = []
    try:
        for step in range(steps):
            trace.append(history.step())
            history.check()
            if step % 50 == 49:
                history.settle()
    except BaseException as error:
        error.add_note(f"seed {seed}, step {len(trace)}: {trace[-30:]}") if hasattr(error, "add_note") else None
        raise
    finally:
        history.end()
    return history.last, history.deaths


if __name__ == "__main__":
    first, histories, steps = (int(word) for word in sys.argv[1:])
    for seed in range(first, first + histories):
        print(seed, run(seed, steps), flush=True)
