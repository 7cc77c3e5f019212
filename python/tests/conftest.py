# SPDX-License-Identifier: Apache-2.0
"""Fixtures of all tests: another process to talk to, and nothing left behind.

A test that hangs is ended after a while with every thread's stack. Run with ``-X dev -W error``.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import gc
import importlib.util
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import nightly
from support import rpc_group
from support.programs_with_torch import Programs
from support.spawn_with_torch import Spawner
from support.store_host_fixtures import cable, connected, etcd, group, hosts, pair  # noqa: F401  # pytest finds fixtures here

HAS_TORCH = importlib.util.find_spec("torch") is not None

# The time limit of a hanging test; the slowest that works takes a tenth.
PATIENCE = float(os.environ.get("ONECOPY_TEST_PATIENCE", "300"))

# How many processes are killed at random, in all; the package promises ONECOPY_TEST_KILLS=500.
KILLS = int(os.environ.get("ONECOPY_TEST_KILLS", "40"))

# Files with the mark slow: their tests kill processes at random, start many interpreters, or run programs, suites of others
# or cards.
SLOW = frozenset(
    (
        "acceptance address_space benchmarks_page checkpoint_engine checkpoint_store cpython_suite cuda cuda_graphs "
        "cuda_rpc cuda_torch dataloader demo deploy dev_shm devices dist_autograd_programs dist_optim faults graphs_faults "
        "graphs_fuzz "
        "graphs_out_variants huggingface hypothesis_tensors interpreter item_holders jax joblib lmcache "
        "lmcache_l2 lmcache_server lmcache_storage load_into loader_programs loader_surroundings mp_compile mp_docs mp_holds mp_torch_semantics npu patches pin "
        "pytorch_graph_suite pytorch_suite queue_faults queue_programs_cpp ray refit report rpc_dynamic rpc_exit "
        "rpc_faults rpc_hosts rpc_programs rpc_programs_cpp sglang sglang_engine site spawn spawn_with_torch "
        "store_faults store_graphs store_group store_group_faults store_group_limits store_group_random store_hosts store_hosts_faults store_hosts_python store_hosts_ucx "
        "store_place store_plugs store_random store_transactions torch_rebuild torch_rpc_suite trainers two_cards two_programs two_torches verl vllm vllm_adapters vllm_fast_start "
        "vllm_kv_pool vllm_server vllm_sleep"
    ).split()
)

# A busy machine is not a failure.
with contextlib.suppress(ImportError):
    import hypothesis

    hypothesis.settings.register_profile("untimed", deadline=None)
    hypothesis.settings.load_profile("untimed")

# Threads of torch's that wait for each other on few processors are most of the cost of programs that train.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Where the shell that started us ignores it, as it does in the background, so would every test.
signal.signal(signal.SIGINT, signal.default_int_handler)


def is_slow(path: Path) -> bool:
    """Returns whether all tests of a file have the mark slow."""
    return path.name.startswith("test_") and path.stem.removeprefix("test_") in SLOW


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out the files of slow tests, which need not be imported then."""
    return True if config.option.markexpr.startswith("not slow") and is_slow(collection_path) else None


def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    for item in items:
        if is_slow(item.path):
            item.add_marker("slow")
        if nightly.is_left_out(item.nodeid):
            item.add_marker("nightly")
    whole_files = not any("::" in argument for argument in config.args)
    if whole_files and (wrong := nightly.without_test([item.nodeid for item in items])):
        raise pytest.UsageError(f"nightly.py names no test: {wrong}")


def pytest_addoption(parser):
    parser.addoption("--everything", action="store_true", help="also what takes minutes: all of CPython's own tests")


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """torch's threads do not survive fork(): a child that uses them after its parent did hangs in libgomp."""
    try:
        import torch
    except ImportError:
        return
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def forkserver_with_torch():
    """As programs that care for the time do it: importing torch is most of what a fresh process costs."""
    multiprocessing.set_forkserver_preload(["torch"])


@pytest.fixture(autouse=True, scope="session")
def spawner():
    """Starts children of the method spawn. Yields None without torch."""
    found = Spawner() if HAS_TORCH else None
    yield found
    if found:
        found.close()
    assert not Peer.alive, "the interpreter would wait for these processes at its end, and they for commands"


@pytest.fixture(autouse=True)
def spawn_with_torch(request, spawner, monkeypatch):
    """Does what forkserver_with_torch does for spawn, except for tests with the mark fresh_interpreters."""
    if spawner and not request.node.get_closest_marker("fresh_interpreters"):
        monkeypatch.setattr("multiprocessing.util.spawnv_passfds", spawner.spawnv_passfds)


@pytest.fixture
def fresh_compiler():
    """torch.compile() without functions of earlier tests, and no gradients."""
    import torch

    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()
    gc.collect()


@pytest.fixture
def store_place(tmp_path, monkeypatch):
    """The directory of a store of the test's own, whose keeper ends with the test."""
    import onecopy

    directory = tmp_path / "store"
    monkeypatch.setenv("ONECOPY_STORE_DIR", str(directory))
    yield directory
    with contextlib.suppress(onecopy.Error):
        onecopy.store.connect(autostart=False).stop()


@pytest.fixture
def store(store_place):
    """A connection to that store."""
    import onecopy

    return onecopy.store.connect()


@pytest.fixture
def runtime_directory(tmp_path, monkeypatch):
    """An XDG_RUNTIME_DIR of the test's own."""
    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))


@pytest.fixture
def llama(tmp_path, monkeypatch):
    """A checkpoint of a tiny random Llama with tied weights, and with rotary frequencies that no state_dict() contains."""
    import torch

    transformers = pytest.importorskip("transformers")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, tie_word_embeddings=True,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    model.generation_config.max_new_tokens = 7
    model.save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


@pytest.fixture(scope="module")
def device_processes():
    """Ends the processes that use devices for a module's tests."""
    from support.devices import end_peers

    yield
    end_peers()


@pytest.fixture(params=["cpu", "cuda:0"])
def on(request):
    """A device for captured graphs: a graph_programs.Place."""
    from support.graph_programs import Place, no_card

    if request.param != "cpu" and no_card():
        pytest.skip(no_card())
    return Place(request.param)


@pytest.fixture(scope="session")
def terminal(request):
    """Where the run's standard error went before pytest captured it."""
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        descriptor = os.dup(2)
    yield descriptor
    os.close(descriptor)


def pytest_runtest_logstart(nodeid):
    """Leaves the name of the test that runs in a file: the report of a run that the watchdog ended names the test."""
    if "ONECOPY_TEST_RUNNING" in os.environ:
        Path(os.environ["ONECOPY_TEST_RUNNING"]).write_text(nodeid)


@pytest.fixture(autouse=True)
def watchdog(terminal):
    """Ends a hanging run with the stacks of all threads. A test that takes long calls it whenever it has come
    further.
    """

    def begin_again():
        faulthandler.dump_traceback_later(PATIENCE, exit=True, file=terminal)

    begin_again()
    yield begin_again
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """A test leaves no process and no name in /dev/shm behind, except what a wider fixture still uses."""
    before = set(multiprocessing.active_children()), shared_names()
    yield
    if "onecopy" in sys.modules:  # handles that were pickled and never opened would be waited for
        sys.modules["onecopy"].collect(older_than=0)
    for _ in range(600):
        children = set(multiprocessing.active_children()) - before[0] - {p.process for p in Peer.alive}
        names = {name for name in shared_names() - before[1] if is_left(name)}
        if not children and not names:
            return
        gc.collect()
        time.sleep(0.05)
    for child in children:
        child.kill()
        child.join()
    assert not children, f"processes left behind: {children}"
    assert not names, f"names left in /dev/shm: {names}"


# Where onecopy puts files; torch's are in /dev/shm always.
SHARED = os.environ.get("ONECOPY_SHM_DIR", "/dev/shm")


def shared_names() -> set[str]:
    return {*os.listdir("/dev/shm"), *os.listdir(SHARED)}


def is_left(name: str) -> bool:
    """Whether it is a name of shared memory that no process holds; programs that run beside us hold theirs."""
    if name.startswith(f"torch_{os.getpid()}_"):
        return True
    if not name.startswith("onecopy-"):
        return False
    try:
        with open(f"{SHARED}/{name}", "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, FileNotFoundError, IsADirectoryError):  # a directory is another run's
        return False
    return True


class Peer:
    """A process that takes commands over a pipe of the standard library.

    Arguments and results cross that pipe, so tensors among them cross by the reducers.
    """

    alive: list[Peer] = []

    def __init__(self, method: str, daemon: bool = True) -> None:
        import onecopy.multiprocessing as mp

        context = mp.get_context(method)
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=_obey, args=(theirs,), daemon=daemon)
        self.process.start()
        theirs.close()
        Peer.alive.append(self)

    def __call__(self, function, *arguments):
        """The result of `function` over there; its exceptions are raised here."""
        self._pipe.send((function, arguments))
        result, error = self._pipe.recv()
        if error is not None:
            raise error
        return result

    def end(self) -> None:
        """Waits for the process's end."""
        Peer.alive.remove(self)
        self._pipe.send(None)
        self.process.join()
        self.process.close()
        self._pipe.close()


def _obey(pipe) -> None:
    while (message := pipe.recv()) is not None:
        function, arguments = message
        try:
            pipe.send((function(*arguments), None))
        except Exception as error:
            pipe.send((None, error))
        del message, function, arguments


@pytest.fixture(scope="module")
def forked():
    """Another process, made by fork()."""
    peer = Peer("fork")
    yield peer
    peer.end()


@pytest.fixture(scope="module")
def spawned():
    """A Peer in a fresh interpreter."""
    peer = Peer("spawn")
    yield peer
    peer.end()


@pytest.fixture
def meeting(tmp_path):
    """A group of rpc without a size, that nobody has joined."""
    made = rpc_group.Meeting(tmp_path / "meeting")
    yield made
    made.end()


@pytest.fixture
def lonely():
    """Two processes that are not in a group of rpc."""
    members = [rpc_group.Member(), rpc_group.Member()]
    yield members
    for member in members:
        member.process.kill()
        member.end()


@pytest.fixture
def kills(request) -> int:
    """How many processes to kill: half of them in traffic, the others with handles open."""
    if KILLS > 100:  # minutes, and not for want of answers
        faulthandler.cancel_dump_traceback_later()
    return KILLS


@pytest.fixture(params=["file_descriptor", "file_system"])
def strategy(request):
    """Both ways to make shared memory, one after the other."""
    import onecopy.multiprocessing as mp

    before = mp.get_sharing_strategy()
    mp.set_sharing_strategy(request.param)
    yield request.param
    mp.set_sharing_strategy(before)


@pytest.fixture(scope="session")
def programs_with_torch():
    programs = Programs()
    yield programs
    programs.close()


def reads_at_its_start(name: str) -> bool:
    """Whether a variable is read by an interpreter, malloc or a loader before the first line of a program."""
    return name.startswith(("LD_", "MALLOC_", "PYTHON"))


@pytest.fixture
def run_file(request):
    """Runs a file in an interpreter of its own; returns its standard output, fails when it says anything else.

    A program that uses torch finds it imported, unless `env` has a variable that an interpreter reads at its start.
    """

    def run(file: Path, *arguments: str, env: dict | None = None, stderr: str | None = "") -> str:
        environment, patience = {**os.environ, **(env or {})}, PATIENCE / 2
        if HAS_TORCH and "import torch" in file.read_text() and not any(map(reads_at_its_start, env or {})):
            programs = request.getfixturevalue("programs_with_torch")
            result = programs.run([str(file), *arguments], patience, environment)
        else:
            command = [sys.executable, "-X", "dev", "-W", "error", str(file), *arguments]
            result = subprocess.run(command, capture_output=True, text=True, timeout=patience, env=environment)
        assert result.returncode == 0, result.stderr
        if stderr is not None:
            assert result.stderr == stderr
        return result.stdout

    return run


@pytest.fixture
def run_python(tmp_path, run_file):
    """Runs a program that is given as text, like run_file."""

    def run(program: str, *arguments: str, env: dict | None = None, stderr: str | None = "") -> str:
        file = tmp_path / "program.py"
        file.write_text(textwrap.dedent(program))
        return run_file(file, *arguments, env=env, stderr=stderr)

    return run


def listed_owner() -> dict:
    """The entry of this package in list_owners(). A process that is slow to answer is left out, and then it is asked
    again. A program in C++ that a test has loaded into this process is an owner of its own, with other counts."""
    import onecopy

    def counts(stats: dict) -> tuple:
        return stats["shared_total"], stats["opened_total"]

    while True:
        mine = [owner for owner in onecopy.list_owners() if owner["pid"] == os.getpid()]
        if found := [owner for owner in mine if counts(owner["stats"]) == counts(onecopy.stats())]:
            return found[0]


def handles_in_transit() -> list[dict]:
    """This process's holds for handles. Items of ended processes in queues of earlier tests are none of these."""
    return [transit for transit in listed_owner()["in_transit"] if transit["where"] == "handle"]


def has_ended(pid: int | str) -> bool:
    """Whether that process has, if its parent has waited for it or not."""
    try:
        return " Z " in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the source tree."""
    return Path(__file__).resolve().parents[2]
