# SPDX-License-Identifier: Apache-2.0
"""The place of the store, and the life of its keeper: removed files, other logins, containers, supervisors, force."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import onecopy
from support.devices import eventually
from support.processes import interpret, kill_all

CONNECT = "import onecopy; print(sorted(onecopy.store.connect(framework='onecopy').keeper().values()))"
IN_A_PID_NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]


def command(*words, check=True, **options):
    """Runs `onecopy store`."""
    arguments = [onecopy.store._command(), "store", *words]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=check, **options)


@pytest.fixture
def plain(store_place):
    """A connection to the store that gives bytes, without any framework."""
    return onecopy.store.connect(framework="onecopy")


def kill_both(store):
    kill_all(*store.keeper().values())


def can_unshare(*how) -> bool:
    return os.geteuid() == 0 and subprocess.run(["unshare", *how, "true"], capture_output=True).returncode == 0


needs_namespaces = pytest.mark.skipif(
    not can_unshare("--pid", "--fork", "--mount"), reason="needs root, who may make namespaces"
)

# --- files that are removed -------------------------------------------------------------------------


@pytest.mark.parametrize("removed", ["secret", "keeper", "directory"])
def test_a_keeper_is_found_again_when_its_files_were_removed(plain, store_place, removed):
    plain.put_bytes("a", b"x")
    before = plain.keeper()
    if removed == "directory":
        shutil.rmtree(store_place)
    else:
        (store_place / removed).unlink()
    other = interpret("import onecopy; store = onecopy.store.connect(); print(store.get_bytes('a'), store.keeper())")
    assert other.stdout == f"{b'x'} {before}\n", other.stderr
    assert (
        interpret(CONNECT, env=os.environ | {"ONECOPY_STORE_AUTOSTART": "0"}).stdout == f"{sorted(before.values())}\n"
    )


def test_no_second_keeper_is_started_while_files_are_removed_again_and_again(plain, store_place):
    halves = sorted(plain.keeper().values())
    for _ in range(3):
        shutil.rmtree(store_place, ignore_errors=True)
        users = [subprocess.Popen([sys.executable, "-c", CONNECT], stdout=subprocess.PIPE, text=True) for _ in range(3)]
        assert {user.communicate(timeout=100)[0] for user in users} == {f"{halves}\n"}


@pytest.mark.parametrize("half", ["worker", "guard"])
def test_a_directory_that_was_made_again_outlives_half_of_the_keeper(plain, store_place, half):
    plain.put_bytes("a", b"x")
    shutil.rmtree(store_place)
    before = plain.keeper()
    assert interpret(CONNECT).stdout == f"{sorted(before.values())}\n"
    os.kill(before[half], signal.SIGKILL)
    assert onecopy.store.connect(autostart=False).get_bytes("a") == b"x"
    assert (store_place / "keeper").exists()


def test_the_keeper_of_a_store_is_started_again_where_it_was_if_the_environment_has_changed(
    plain, store_place, tmp_path, monkeypatch
):
    killed = plain.keeper()
    with monkeypatch.context() as patch:
        patch.setenv("ONECOPY_STORE_DIR", str(tmp_path / "other"))
        kill_all(*killed.values())
        plain.put_bytes("a", b"x")
        assert not (tmp_path / "other").exists()
    assert onecopy.store.connect(autostart=False).get_bytes("a") == b"x"


def test_a_place_that_a_keeper_has_is_refused_and_its_secret_stays(plain, store_place):
    secret = (store_place / "secret").read_bytes()
    refused = command("serve", check=False)
    assert refused.returncode == 1 and "--replace" in refused.stderr and "onecopy store stop" in refused.stderr
    assert (store_place / "secret").read_bytes() == secret


# --- logins -----------------------------------------------------------------------------------------

SYSTEMD_RUN = """#!/bin/sh
echo "$XDG_RUNTIME_DIR $*" > /run/asked
while [ "$1" != -- ]; do shift; done
shift
exec "$@"
"""

LOGINS = """
mount -t tmpfs none /run; mkdir -p -m 700 /run/user/0 /run/shared
mount -t tmpfs none /tmp; chmod 1777 /tmp
export TMPDIR=/tmp; unset ONECOPY_STORE_DIR ONECOPY_RUNTIME_DIR XDG_RUNTIME_DIR
"""
DIALECTS = {"plain": "", "shared": "ONECOPY_RUNTIME_DIR=/run/shared "}


def in_logins(script: str) -> list[str]:
    """Runs a script of the shell with a /tmp and a /run of its own, in which $C prints the keeper's processes, and $S is a systemd-run."""
    environment = os.environ | {"P": sys.executable, "C": CONNECT, "S": SYSTEMD_RUN}
    arguments = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-ec", LOGINS + script]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=200, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@needs_namespaces
@pytest.mark.skipif(sys.prefix.startswith("/tmp/"), reason="the interpreter lies in /tmp")
@pytest.mark.parametrize("first, second", [("plain", "shared"), ("shared", "plain")])
def test_logins_with_different_environments_find_one_keeper(first, second):
    lines = in_logins(f'{DIALECTS[first]}"$P" -c "$C"; {DIALECTS[second]}"$P" -c "$C"; {DIALECTS[first]}"$P" -c "$C"')
    assert len(lines) == 3 and len(set(lines)) == 1, lines


@needs_namespaces
@pytest.mark.skipif(sys.prefix.startswith("/tmp/"), reason="the interpreter lies in /tmp")
def test_a_keeper_outlives_the_directory_of_the_login_that_started_it():
    lines = in_logins(
        '"$P" -c "$C"; test -S /run/user/0/onecopy/store/keeper; rm -rf /run/user/0; "$P" -c "$C"; "$P" -c "$C"'
    )
    assert len(lines) == 3 and len(set(lines)) == 1, lines


# --- supervisors ------------------------------------------------------------------------------------


class Foreground:
    """A keeper in the foreground of another process."""

    def __init__(self, *words, prefix=(), **options):
        options = {"stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True} | options
        arguments = [*prefix, onecopy.store._command(), "store", "serve", *words]
        self.process = subprocess.Popen(arguments, **options)
        self.store = None
        assert eventually(self.connects) or self.process.poll() is not None

    def connects(self):
        try:
            self.store = onecopy.store.connect(framework="onecopy", autostart=False)
        except onecopy.PeerDied:
            return self.process.poll() is not None
        return True


@pytest.fixture
def serve(store_place):
    started = []

    def serve(*words, **options):
        started.append(Foreground(*words, **options))
        return started[-1]

    yield serve
    with contextlib.suppress(onecopy.Error):  # a killed command would leave the keeper, which has its stderr
        onecopy.store.connect(autostart=False).stop()
    for foreground in started:
        foreground.process.kill()
        foreground.process.communicate()


def descendants(pid: int) -> list[int]:
    found = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return found + [below for child in found for below in descendants(child)]


def number_inside(pid: int) -> int:
    """Returns the pid in the innermost PID namespace."""
    return int(Path(f"/proc/{pid}/status").read_text().split("NSpid:")[1].split("\n")[0].split()[-1])


@pytest.mark.parametrize("half", ["worker", "guard"])
def test_a_keeper_in_the_foreground_stays_when_half_of_it_is_killed(serve, half):
    served = serve()
    served.store.put_bytes("a", b"x")
    for _ in range(3):
        killed = served.store.keeper()[half]
        os.kill(killed, signal.SIGKILL)
        assert served.store.get_bytes("a") == b"x"
        assert eventually(lambda: served.store.keeper()[half] != killed)
    assert served.process.poll() is None
    served.store.stop()
    assert served.process.wait(30) == 0


def test_a_keeper_does_not_wait_for_the_lock_that_it_holds_itself(serve):
    """It holds the lock of its directory, which a listener waits a second for."""
    served = serve()
    served.store.stop()
    assert served.process.wait(30) == 0
    assert "the lock of the directory" not in served.process.stderr.read()


def test_the_foreground_ends_with_the_status_of_a_killed_keeper(serve):
    served = serve()
    for pid in served.store.keeper().values():
        os.kill(pid, signal.SIGSTOP)
    for pid in descendants(served.process.pid):
        os.kill(pid, signal.SIGKILL)
    assert served.process.wait(30) == 128 + signal.SIGKILL
    assert "versions that no process has open are lost" in served.process.stderr.read()


@needs_namespaces
def test_a_container_outlives_its_worker(serve):
    """The first process of a PID namespace is the command, not a half of the keeper."""
    served = serve(prefix=IN_A_PID_NAMESPACE)
    served.store.put_bytes("a", b"x")
    inner = served.store.keeper()
    assert 1 not in inner.values()
    [worker] = [pid for pid in descendants(served.process.pid) if number_inside(pid) == inner["worker"]]
    os.kill(worker, signal.SIGKILL)
    assert onecopy.store.connect(autostart=False).get_bytes("a") == b"x"
    assert served.process.poll() is None
    served.store.stop()
    assert served.process.wait(30) == 0


def test_a_supervised_keeper_takes_over_from_one_that_is_there(serve):
    first = serve("--replace")
    first.store.put_bytes("a", b"x")
    second = serve("--replace")
    assert first.process.wait(30) == 0
    assert second.store.get_bytes("a") == b"x" and second.process.poll() is None


def test_sigterm_ends_the_keeper_and_says_what_is_dropped(serve):
    served = serve()
    served.store.put_bytes("a", b"x")
    halves = served.store.keeper().values()
    served.process.terminate()
    assert served.process.wait(30) == 0
    assert served.process.stderr.read() == "onecopy: the keeper ends. Lost: 1 version, 4.0 KiB\n"
    assert not any(Path(f"/proc/{pid}").exists() for pid in halves)


def test_the_first_control_c_on_a_terminal_only_says_what_would_be_lost(serve):
    terminal, end = pty.openpty()
    served = serve(stdin=end)
    try:
        served.store.put_bytes("a", b"x")
        served.process.send_signal(signal.SIGINT)
        line = "onecopy: press Ctrl-C again to end the keeper. Lost then: 1 version, 4.0 KiB\n"
        assert served.process.stderr.readline() == line
        assert served.store.get_bytes("a") == b"x"
        served.process.send_signal(signal.SIGINT)
        assert served.process.wait(30) == 0
    finally:
        os.close(terminal)
        os.close(end)


def words_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


@pytest.mark.parametrize("way", ["in the foreground", "in the background"])
def test_a_keeper_that_a_command_has_started_is_not_told_to_end_when_it_is_unused(serve, way):
    if way == "in the background":
        command("serve", "--background")
    else:
        serve()
    for pid in onecopy.store.connect(autostart=False).keeper().values():
        assert "serve" in words_of(pid) and "--max-unused" not in words_of(pid)


def test_a_keeper_that_a_program_has_started_ends_ten_minutes_after_its_last_use(plain):
    for pid in plain.keeper().values():
        words = words_of(pid)
        assert words[words.index("--max-unused") + 1] == "600"


def test_a_keeper_that_nobody_uses_ends_when_it_was_told_to_and_stays_otherwise(serve, tmp_path):
    stays = serve()
    ended = command("serve", "--max-unused", "1", env=os.environ | {"ONECOPY_STORE_DIR": str(tmp_path / "other")})
    assert ended.returncode == 0 and stays.process.poll() is None
    assert onecopy.store.connect(autostart=False).keeper() == stays.store.keeper()


def test_a_keeper_with_a_version_does_not_end_when_nobody_uses_it(serve):
    served = serve("--max-unused", "1")
    served.store.put_bytes("a", b"x")
    served.store = None  # no client is left
    command(
        "serve", "--max-unused", "1", env=os.environ | {"ONECOPY_STORE_DIR": f"{os.environ['ONECOPY_STORE_DIR']}-2"}
    )
    assert served.process.poll() is None and "1 version" in command("status").stdout


# --- the command ------------------------------------------------------------------------------------


def test_the_command_tells_no_keeper_from_an_empty_store(store_place):
    assert command("ls").stdout == "The store has no keeper.\n"
    none = command("status", check=False)
    assert (none.returncode, none.stdout) == (1, "The store has no keeper.\n")
    nothing = {"keeper": None, "objects": [], "problem": "", "kept_kv_pools": []}
    assert json.loads(command("ls", "--format", "json").stdout) == nothing
    assert "the store has no keeper" in command("stop", check=False).stderr
    onecopy.store.connect()
    assert command("ls").stdout == "The store is empty.\n"
    status = command("status").stdout
    assert str(store_place) in status and "0 objects, 0 versions" in status


def test_the_command_counts_what_a_keeper_holds_and_not_what_it_awaits(plain):
    plain.put_bytes("a", b"x" * 4096)
    assert command("status").stdout.splitlines()[2:] == ["1 object, 1 version, 4.0 KiB"]
    kill_both(plain)  # no process has the version open
    onecopy.store.connect(framework="onecopy")
    lines = command("status").stdout.splitlines()[2:]
    assert lines[0] == "0 objects, 0 versions, 0 B" and "Of the last keeper: 1 version, 4.0 KiB." in lines[1]
    metrics = subprocess.run([onecopy.store._command(), "ls", "--format", "prometheus"], capture_output=True, text=True)
    assert 'onecopy_store_versions{object="a"} 0\n' in metrics.stdout
    assert 'onecopy_store_bytes{object="a"} 0\n' in metrics.stdout


def test_stopping_the_store_says_what_is_lost_and_what_its_readers_keep(plain):
    assert command("stop").stdout == "The keeper has ended.\n"
    plain.put_bytes("a", b"x" * 4096)
    plain.put_bytes("b", b"y" * 4096)
    read = plain.open("b")
    stopped = "The keeper has ended.\nLost: 1 version, 4.0 KiB\nKept by the processes that have them open: 1 version, 4.0 KiB\n"
    assert command("stop").stdout == stopped
    assert len(read) == 1
    [kept] = onecopy.store.connect(framework="onecopy").list()
    assert kept["name"] == "b", "a version that was lost is not awaited"


def test_the_end_of_the_keeper_counts_no_version_that_it_only_awaits(serve, plain):
    plain.put_bytes("a", b"x")
    kill_both(plain)
    served = serve()
    assert [entry["versions"][0]["awaited"] for entry in served.store.list()] == [True]
    served.process.terminate()
    assert served.process.wait(30) == 0
    assert served.process.stderr.read() == ""


def test_a_keeper_that_replaces_another_one_keeps_the_limits_that_it_is_not_given(plain):
    command("serve", "--replace", "--background", "--max-bytes", "1MiB", "--max-client-bytes", "4KiB")
    command("serve", "--replace", "--background", "--max-client-bytes", "2MiB")
    plain.put_bytes("a", b"x" * 8192)
    with pytest.raises(onecopy.OutOfMemory, match="of the 1048576 that they may have"):
        plain.put_bytes("b", b"x" * (1 << 20))
    assert command("status").stdout.splitlines()[-1] == "1 object, 1 version, 8.0 KiB of max 1.0 MiB"
    assert json.loads(command("status", "--format", "json").stdout)["keeper"]["max_bytes"] == 1 << 20
    metrics = subprocess.run([onecopy.store._command(), "ls", "--format", "prometheus"], capture_output=True, text=True)
    assert "\nonecopy_store_max_bytes 1048576\n" in metrics.stdout
    command("serve", "--replace", "--background", "--max-bytes", "2MiB")
    plain.put_bytes("b", b"x" * (1 << 20))


def test_a_keeper_in_the_background_logs_to_a_file_which_the_status_names(plain, store_place, monkeypatch):
    log = store_place / "keeper.log"
    assert f"\nIts log is {log}.\n" in command("status").stdout
    log.write_text("of an earlier keeper\n")
    kill_both(plain)
    monkeypatch.setenv("ONECOPY_LOG", "info")
    guard = onecopy.store.connect().keeper()["guard"]
    os.kill(guard, signal.SIGKILL)
    assert eventually(lambda: "the guard of the store has ended" in log.read_text())
    assert "earlier" not in log.read_text()


def test_a_keeper_logs_what_was_published_shown_dropped_and_refused(plain, store_place, monkeypatch):
    kill_both(plain)
    monkeypatch.setenv("ONECOPY_LOG", "info")
    command("serve", "--background", "--max-bytes", "1MiB")
    for content in (b"x", b"y"):
        plain.put_bytes("a", content, keep=2)
    plain.rollback("a", to=1)
    with pytest.raises(onecopy.OutOfMemory):
        plain.put_bytes("b", b"x" * (1 << 20))
    plain.delete("a")
    command("stop")
    lines = [line.split("] ", 4)[4] for line in (store_place / "keeper.log").read_text().splitlines()]
    pid = os.getpid()
    assert lines[0].startswith("the store's keeper listens in ")
    assert lines[1:4] == [
        f'published version 1 of "a": 4096 bytes on cpu, by pid {pid}',
        f'published version 2 of "a": 4096 bytes on cpu, by pid {pid}',
        'version 1 of "a" is current again',
    ]
    assert lines[4].startswith(f"the store refuses pid {pid}: the version has ")
    assert sorted(lines[5:7]) == ['version 1 of "a" is dropped', 'version 2 of "a" is dropped']
    assert lines[7:] == ["the store's keeper ends"]


@pytest.mark.parametrize("directory", ["/nonexistent/x", "/dev/null/store", "/dev/null"])
@pytest.mark.parametrize("words", [("store", "ls"), ("store", "status"), ("ls",)])
def test_a_directory_that_cannot_be_used_is_an_error_of_ls(monkeypatch, directory, words):
    monkeypatch.setenv("ONECOPY_STORE_DIR", directory)
    done = subprocess.run([onecopy.store._command(), *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and directory in done.stderr and not done.stdout


def test_the_status_of_a_keeper_that_is_stopped_is_a_failure_that_names_its_processes(plain):
    plain.put_bytes("a", b"x")
    halves = plain.keeper().values()
    for pid in halves:
        os.kill(pid, signal.SIGSTOP)
    stopped = command("status", check=False)
    for pid in halves:
        os.kill(pid, signal.SIGCONT)
    assert stopped.returncode == 1 and "has not answered for 10 s" in stopped.stderr
    assert all(str(pid) in stopped.stderr for pid in halves)
    assert command("status").returncode == 0


def test_a_version_that_keeps_no_version_is_refused(store_place, tmp_path):
    refused = command("put", "a", str(tmp_path), "--keep", "0", check=False)
    assert refused.returncode == 2 and "--keep is 0" in refused.stderr


@pytest.mark.parametrize("variable", ["ONECOPY_STORE_DIR", "ONECOPY_RUNTIME_DIR"])
@pytest.mark.parametrize("words", [("serve", "--background"), ("status",), ("stop",), ("watch", "a"), ("ls",)])
def test_a_relative_directory_is_refused_by_each_command(store_place, tmp_path, variable, words):
    environment = {**os.environ, "ONECOPY_STORE_DIR": "", variable: "here"}
    refused = command(*words, check=False, cwd=tmp_path, env=environment)
    assert refused.returncode == 1 and f'{variable} is "here", which names another directory' in refused.stderr
    assert not (tmp_path / "here").exists() and not Path("/here").exists()


def test_a_relative_directory_is_refused_by_connect_and_doctor_names_it(monkeypatch):
    monkeypatch.setenv("ONECOPY_STORE_DIR", "here")
    with pytest.raises(onecopy.InvalidArgument, match="set it to an absolute path"):
        onecopy.store.connect()
    doctor = subprocess.run([onecopy.store._command(), "doctor"], capture_output=True, text=True, timeout=100)
    assert 'ONECOPY_STORE_DIR is "here"' in doctor.stdout


OLD_KEEPER = """
import fcntl, os, socket, struct, sys
directory = sys.argv[1]
lock = open(directory + "/lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(directory + "/keeper")
listener.listen()
memory = os.memfd_create("onecopy")
os.truncate(memory, 1 << 20)
os.pwrite(memory, bytes(1 << 20), 0)
if os.fork():  # the child is a guard
    print("ready", flush=True)
while True:
    client = listener.accept()[0]
    client.recv(4096)
    client.send(struct.pack("=II", 1, 2) + bytes(48))
"""


def test_force_ends_a_keeper_of_another_format_and_says_what_is_lost(store_place):
    store_place.mkdir(mode=0o700)
    (store_place / "secret").write_bytes(bytes(32))
    started = [sys.executable, "-c", OLD_KEEPER, str(store_place)]
    old = subprocess.Popen(started, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert old.stdout.readline() == "ready\n"
        asked = command("stop", check=False)
        assert asked.returncode == 1 and "onecopy store stop --force" in asked.stderr
        forced = command("stop", "--force").stdout
        assert str(old.pid) in forced and "1.0 MiB" in forced and "lost" in forced
        assert old.wait(30) == -signal.SIGKILL
        onecopy.store.connect().put_bytes("a", b"x")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(old.pid, signal.SIGKILL)  # the guard, too, which would hold the pipe
        old.communicate()


def test_force_ends_a_keeper_that_is_stopped(plain, store_place):
    halves = plain.keeper()
    for pid in halves.values():
        os.kill(pid, signal.SIGSTOP)
    forced = command("stop", "--force").stdout
    assert all(str(pid) in forced for pid in halves.values())
    assert onecopy.store.connect().keeper() != halves


# --- units ------------------------------------------------------------------------------------------


@needs_namespaces
@pytest.mark.skipif(sys.prefix.startswith("/tmp/"), reason="the interpreter lies in /tmp")
@pytest.mark.parametrize("lingers", [True, False])
def test_a_keeper_becomes_a_unit_of_its_own_where_the_users_systemd_outlives_logins(lingers):
    """The systemd here writes down what it is asked for."""
    lines = in_logins(
        "mkdir /run/bin /run/user/0/systemd; touch /run/user/0/systemd/private; "
        'printf %s "$S" > /run/bin/systemd-run; chmod +x /run/bin/systemd-run; '
        "mkdir -p /var/lib/systemd; mount -t tmpfs none /var/lib/systemd; mkdir /var/lib/systemd/linger; "
        f"{'touch /var/lib/systemd/linger/root; ' if lingers else ''}"
        'PATH=/run/bin:$PATH "$P" -c "$C"; cat /run/asked 2>/dev/null || true'
    )
    assert len(lines) == (2 if lingers else 1), lines
    if lingers:
        assert lines[1].startswith("/run/user/0 --user --scope --collect --quiet --unit=onecopy-store-")
        assert lines[1].endswith("store serve --background --max-unused 600")
