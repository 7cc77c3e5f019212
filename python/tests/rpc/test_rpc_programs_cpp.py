# SPDX-License-Identifier: Apache-2.0
"""A program in C++ and a process in Python call functions of each other: examples/cpp/rpc.cpp, and failures."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def binary(repository):
    """The example that ./dev build makes."""
    found = repository / "build/release/examples/example_rpc"
    if not os.access(found, os.X_OK):
        pytest.skip(f"wants {found}: run ./dev build")
    return str(found)


def test_the_example_prints_what_the_page_says(repository, binary):
    example = repository / "examples/cpp/rpc_from_python.py"
    done = subprocess.run([sys.executable, str(example), binary], capture_output=True, text=True, timeout=120)
    assert done.stdout == example.with_suffix(".expected").read_text(), done.stderr


@pytest.mark.parametrize("name", ["rpc", "rpc_two_processes"])
def test_the_page_has_the_example(repository, name):
    program = (repository / f"examples/cpp/{name}.cpp").read_text().partition("\n")[2]
    assert f"```cpp\n{program}```" in (repository / "docs/guides/rpc-cpp.md").read_text()


WITH_A_PROGRAM = """
import subprocess, sys
import pytest, torch
import onecopy, onecopy.rpc as rpc

def greet(name):
    return name
if "export" in sys.argv:
    rpc.export(greet)

rpc.init("python", rank=0, world_size=1, rendezvous=f"file://{sys.argv[2]}/rendezvous")
program = subprocess.Popen([sys.argv[1], rpc.address().hex()], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE)
"""
REFUSED = (
    WITH_A_PROGRAM
    + """
there = rpc.enter(bytes.fromhex(program.stdout.readline()))

def refused(kind, text, *args, **options):
    with pytest.raises(kind, match=text):
        rpc.call(there, *args, **options)
    assert rpc.call("program", "scale", (torch.ones(3), 2)).tolist() == [2, 2, 2]

refused(onecopy.InvalidArgument, 'no function "nothing" is defined', "nothing")
refused(onecopy.Error, "vector", "scale")  # std::vector::at()
refused(onecopy.InvalidArgument, "a tensor is wanted, and this value is a str", "scale", ("x", 1))
refused(onecopy.InvalidArgument, "no keyword arguments", "scale", (torch.ones(1), 1), {"by": 2})
refused(onecopy.Unsupported, "more than 64 bits", "scale", (torch.ones(1), 1 << 70))
refused(TypeError, "only plain values and tensors", "scale", ({1, 2}, 1))
with pytest.raises(TypeError, match="is a program in C\\+\\+"):
    rpc.remote(there, "m:scale", (1,))
with pytest.raises(TypeError, match="is a program in C\\+\\+"):
    rpc.stream(there, "m:scale", (1,))
with pytest.raises(RuntimeError, match="is not an address|does not begin|cut off|handle"):
    rpc.enter(b"nonsense")
large = torch.ones(100_000)
assert rpc.call(there, "scale", (large, 3)).sum() == 300_000 and large.sum() == 100_000
calls = [rpc.call_async(there, "scale", (torch.ones(1), i)) for i in range(500)]
assert [int(c.wait()) for c in calls] == list(range(500))
program.kill()
program.wait()
with pytest.raises(rpc.PeerDied, match="has ended"):
    rpc.call(there, "scale", (torch.ones(1), 1))
rpc.shutdown()
"""
)
VIEWS = (
    WITH_A_PROGRAM
    + """
there = rpc.enter(bytes.fromhex(program.stdout.readline()))
x = torch.arange(16, dtype=torch.float32).reshape(4, 4)
large = torch.arange(1 << 16, dtype=torch.float32).reshape(256, 256)
for view in (x.t(), x[:, 1], x[::2], torch.ones(1).expand(3), large.t(), large[:, ::3], x.t().requires_grad_()):
    assert torch.equal(rpc.call(there, "scale", (view, 2.0)), view.detach() * 2), view
with pytest.raises(TypeError, match="only plain values and tensors"):
    rpc.call(there, "scale", (x.to_sparse(), 2.0))
program.communicate("\\n")
rpc.shutdown()
"""
)
BACK = (
    WITH_A_PROGRAM
    + """
for _ in range(3):  # each time with the same name and number
    there = rpc.enter(bytes.fromhex(program.stdout.readline()))
    assert rpc.call(there, "scale", (torch.ones(1), 5)).tolist() == [5]
    program.kill()
    program.wait()
    with pytest.raises(rpc.PeerDied, match="has ended"):
        rpc.call("program", "scale", (torch.ones(1), 1))
    program = subprocess.Popen(program.args, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
program.kill()
rpc.shutdown()
"""
)
NOT_EXPORTED = (
    WITH_A_PROGRAM
    + """
assert "__main__.greet is not exported by this process" in program.communicate()[1]
rpc.shutdown()
"""
)


def run(script, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_errors_cross_in_both_languages(binary, tmp_path):
    run(REFUSED, binary, tmp_path, "export")


def test_views_of_tensors_go_to_a_program_in_cpp(binary, tmp_path):
    run(VIEWS, binary, tmp_path, "export")


def test_a_program_in_cpp_comes_back_under_its_name_and_number(binary, tmp_path):
    run(BACK, binary, tmp_path, "export")


def test_a_program_in_cpp_calls_only_what_is_exported(binary, tmp_path):
    run(NOT_EXPORTED, binary, tmp_path)
