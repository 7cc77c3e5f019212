# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own rpc tests, from the installed torch, with their import lines changed.

    python torch_rpc_suite.py list|run [REGEX] [--jobs N] [--known PAGE]

Their files are read where torch is installed, changed in a temporary folder, and never kept.
"""

import argparse
import concurrent.futures
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading

import torch

PACKAGE = "onecopy_torch_rpc_tests"
FILES = {
    "dist_utils": "dist_utils.py",
    "rpc_agent_test_fixture": "distributed/rpc/rpc_agent_test_fixture.py",
    "tensorpipe_rpc_agent_test_fixture": "distributed/rpc/tensorpipe_rpc_agent_test_fixture.py",
    "rpc_test": "distributed/rpc/rpc_test.py",
    "dist_autograd_test": "distributed/rpc/dist_autograd_test.py",
    "dist_optimizer_test": "distributed/rpc/dist_optimizer_test.py",
    "remote_module_test": "distributed/nn/api/remote_module_test.py",
    "ddp_under_dist_autograd_test": "distributed/ddp_under_dist_autograd_test.py",
}
CLASSES = {
    "autograd": ("dist_autograd_test", "DistAutogradTest"),
    "sparse": ("dist_autograd_test", "TensorPipeAgentDistAutogradTest"),
    "optimizer": ("dist_optimizer_test", "DistOptimizerTest"),
    "rpc": ("rpc_test", "RpcTest"),
    "agent": ("rpc_test", "TensorPipeAgentRpcTest"),
    "module": ("remote_module_test", "RemoteModuleTest"),
    "modules": ("remote_module_test", "ThreeWorkersRemoteModuleTest"),
    "ddp": ("ddp_under_dist_autograd_test", "DdpUnderDistAutogradTest"),
    "ddps": ("ddp_under_dist_autograd_test", "DdpComparisonTest"),
}
# Run where cards are; without, they skip themselves.
OF_CARDS = {
    "cuda": ("rpc_test", "TensorPipeAgentCudaRpcTest"),
    "cudagrad": ("dist_autograd_test", "CudaDistAutogradTest"),
    "cudaagentgrad": ("dist_autograd_test", "TensorPipeCudaDistAutogradTest"),
    "cudamodule": ("remote_module_test", "CudaRemoteModuleTest"),
    "cudaddp": ("ddp_under_dist_autograd_test", "CudaDdpComparisonTest"),
}
if torch.cuda.is_available():
    CLASSES.update(OF_CARDS)

# They send instances of plain classes or modules, which cross as pickles only.
NEED_PICKLE = frozenset(
    (
        "rpc.test_wait_all_workers_timeout",
        "rpc.test_my_parameter_server",
        "rpc.test_py_class_constructor",
        "rpc.test_py_class_instance_method",
        "rpc.test_py_nested_pickle",
        "agent.test_my_parameter_server_sparse",
        "agent.test_rref_get_type_timeout_blocking",
        "agent.test_rref_get_type_timeout_non_blocking",
        "agent.test_rref_proxy_timeout",
        "module.test_get_module_rref",
        "ddps.test_ddp_dist_autograd_local_vs_remote",
    )
)


def changed(source):
    """The source with torch's rpc replaced in its imports and in the names that it looks up."""
    internal = (
        r"torch\.testing\._internal\.(?:distributed\.rpc\.)?(dist_utils|rpc_agent_test_fixture|"
        r"tensorpipe_rpc_agent_test_fixture)\b"
    )
    source = re.sub(internal, rf"{PACKAGE}.\1", source)
    source = source.replace("torch.testing._internal.dist_utils", f"{PACKAGE}.dist_utils")
    packages = ", ".join(f"onecopy.distributed.{name}" for name in ("autograd", "nn", "optim", "rpc"))
    source = source.replace("from torch.distributed import rpc\n", "from onecopy.distributed import rpc\n")
    source = re.sub(r"^import torch$", f"import {packages}, {PACKAGE}\nimport torch", source, count=1, flags=re.M)
    return re.sub(
        r"\btorch\.distributed\.(rpc|autograd|optim|nn)\b(?=[. ]|$)(?! first)",
        r"onecopy.distributed.\1",
        source,
        flags=re.M,
    )


RUNNER = """
import io, multiprocessing, os, sys, unittest
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # which starts no CUDA
import onecopy.distributed.rpc
import {package} as package
import torch
from torch.testing._internal import common_distributed
from torch.testing._internal.common_distributed import MultiProcessTestCase
from {package}.tensorpipe_rpc_agent_test_fixture import TensorPipeRpcAgentTestFixture
from {package}.{module} import {name}

class Test_{name}(TensorPipeRpcAgentTestFixture, {name}, MultiProcessTestCase):
    def setUp(self):
        super().setUp()
        # Forked before anything was started, by this process or, where cards are used, by one that only has imported: torch is
        # imported once, and not four times a test.
        self._start_processes(torch.multiprocessing.get_context(START).Process)

def run(test):
    out = io.StringIO()
    result = unittest.TextTestRunner(out).run(unittest.TestSuite([Test_{name}(test)]))
    word = "skip" if result.skipped else "ok" if result.wasSuccessful() else "FAIL"
    print(out.getvalue() if word == "FAIL" else "", flush=True)
    print("RESULT", test, word, flush=True)

if __name__ == "__main__":
    common_distributed.TIMEOUT_DEFAULT = int(sys.argv[1])
    START = "forkserver" if {of_cards} else "fork"
    multiprocessing.set_forkserver_preload(["torch", "onecopy.distributed.rpc", "{package}.{module}", "__main__"])
    for test in sys.argv[2:]:
        run(test)
"""


def make_package(folder):
    root = pathlib.Path(torch.__file__).parent / "testing" / "_internal"
    package = pathlib.Path(folder) / PACKAGE
    package.mkdir()
    if importlib.util.find_spec("expecttest") is None:  # which torch's tests import, and these do not use
        (pathlib.Path(folder) / "expecttest.py").write_text(
            "import unittest\nclass TestCase(unittest.TestCase):\n    longMessage = True\n"
        )
    (package / "__init__.py").write_text("")
    for module, path in FILES.items():
        (package / f"{module}.py").write_text(changed((root / path).read_text()))
    for key, (module, name) in CLASSES.items():
        text = RUNNER.format(package=PACKAGE, module=module, name=name, of_cards=key in OF_CARDS)
        (pathlib.Path(folder) / f"run_{key}.py").write_text(text)


def all_tests(folder):
    """(key, name) of each test."""
    code = (
        f"import importlib, sys, unittest; sys.path.insert(0, {folder!r})\n"
        f"for key, (_, name) in {CLASSES!r}.items():\n"
        "    found = getattr(importlib.import_module('run_' + key), 'Test_' + name)\n"
        "    for test in unittest.TestLoader().getTestCaseNames(found): print('TEST', key, test)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return [tuple(line.split()[1:]) for line in done.stdout.splitlines() if line.startswith("TEST ")]


def run_some(folder, key, tests, seconds, verbose=False):
    """{test: (word, output)}, from one process."""
    command = [sys.executable, f"run_{key}.py", str(seconds), *tests]
    pickle = "1" if all(f"{key}.{test}" in NEED_PICKLE for test in tests) else "0"
    environment = {
        **os.environ,
        "ONECOPY_RPC_PICKLE": pickle,
        "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment,
    )
    timer = threading.Timer((seconds + 30) * len(tests), process.kill)
    timer.start()
    found, output = {}, []
    for line in process.stdout:
        match = re.fullmatch(r"RESULT (\S+) (\S+)\n", line)
        if match is None:
            output.append(line)
            continue
        if verbose:
            print(f"{match[2]} {key}.{match[1]}", flush=True)
        found[match[1]], output = (match[2], "".join(output)), []
    process.stdout.close()
    process.wait()
    timer.cancel()
    return {test: found.get(test, ("LOST", "".join(output))) for test in tests}


def chunks(chosen, size):
    """(key, some of its tests) each; tests that need pickle are by themselves."""
    for key in CLASSES:
        for is_pickled in (False, True):
            tests = [test for k, test in chosen if k == key and (f"{key}.{test}" in NEED_PICKLE) == is_pickled]
            for at in range(0, len(tests), size):
                yield key, tests[at : at + size]


def choose(folder, regex):
    """Returns tests by name, except tests that need more cards than there are."""
    wanted, cards = cards_wanted(), torch.cuda.device_count()
    return [
        (key, test)
        for key, test in all_tests(folder)
        if re.search(regex, f"{key}.{test}") and (key not in OF_CARDS or wanted.get(test, 0) <= cards)
    ]


def cards_wanted():
    """{test: how many cards it wants}, as torch's sources say."""
    root = pathlib.Path(torch.__file__).parent / "testing" / "_internal"
    text = "".join((root / FILES[module]).read_text() for module in {module for module, _ in OF_CARDS.values()})
    return {
        name: int(cards)
        for cards, name in re.findall(r"@skip_if_lt_x_gpu\((\d)\)\n(?:    @.*\n)*    def (test_\w+)", text)
    }


def run(folder, chosen, jobs=2, seconds=60, size=10, verbose=False):
    """Runs tests given as (key, name); yields (key.name, word, output) as they end."""
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        futures = {
            pool.submit(run_some, folder, key, tests, seconds, verbose): key for key, tests in chunks(chosen, size)
        }
        for future in concurrent.futures.as_completed(futures):
            for test, (word, output) in future.result().items():
                yield f"{futures[future]}.{test}", word, output


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["list", "run"])
    parser.add_argument("regex", nargs="?", default=".")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--each", type=int, default=10, help="tests that one process runs after each other")
    parser.add_argument("--verbose", action="store_true", help="each result as it comes")
    parser.add_argument("--logs", default=None)
    parser.add_argument("--known", default=None, help="a page that names the tests that need not pass, as `key.name`")
    options = parser.parse_args()
    known = set(re.findall(r"`(\w+\.test_\w+)`", pathlib.Path(options.known).read_text())) if options.known else set()
    with tempfile.TemporaryDirectory() as folder:
        make_package(folder)
        chosen = choose(folder, options.regex)
        if options.what == "list":
            print("\n".join(f"{key}.{test}" for key, test in chosen))
            return 0
        counts = {}
        for name, result, output in run(folder, chosen, options.jobs, options.seconds, options.each, options.verbose):
            word = "known" if name in known and result not in ("ok", "skip") else result
            counts[word] = counts.get(word, 0) + 1
            if word in ("ok", "skip", "known"):
                continue
            print(f"{word} {name}", flush=True)
            if options.logs:
                os.makedirs(options.logs, exist_ok=True)
                (pathlib.Path(options.logs) / f"{name}.log").write_text(output)
        print(", ".join(f"{n} {w}" for w, n in sorted(counts.items())))
        return 0 if set(counts) <= {"ok", "skip", "known"} else 1


if __name__ == "__main__":
    sys.exit(main())
