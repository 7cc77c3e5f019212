# SPDX-License-Identifier: Apache-2.0
"""Queues between Python and programs in C++ (examples/cpp/values.cpp), and plug-ins in Python's process."""

from __future__ import annotations

import ctypes
import datetime
import os
import subprocess
import sys

import pytest

import onecopy

numpy = pytest.importorskip("numpy")


def built(repository, name):
    """Returns the path of a program or library that ./dev build makes."""
    found = repository / "build/release" / name
    if not os.access(found, os.R_OK):
        pytest.skip(f"wants {found}: run ./dev build")
    return str(found)


@pytest.fixture(scope="module")
def worker(repository):
    return built(repository, "examples/example_values")


@pytest.fixture
def answer(worker):
    """Returns the function that asks the worker in C++."""
    jobs, answers = onecopy.Queue(), onecopy.Queue()
    process = subprocess.Popen([worker, str(jobs.handle()), str(answers.handle())], stdout=subprocess.DEVNULL)

    def ask(job):
        jobs.put(job)
        return answers.get(timeout=60)

    yield ask
    jobs.put(None)
    assert process.wait(60) == 0


def test_the_example_prints_what_the_page_says(repository, worker):
    example = repository / "examples/cpp/queue_from_python.py"
    done = subprocess.run([sys.executable, str(example), worker], capture_output=True, text=True, timeout=120)
    assert done.stdout == example.with_suffix(".expected").read_text(), done.stderr


def test_tensors_cross_both_ways_without_a_copy(answer):
    tensor = onecopy.zeros(1000)
    back = answer(tensor)
    assert isinstance(back, onecopy.Tensor)
    assert numpy.asarray(tensor)[0] == 42
    numpy.asarray(back)[1] = 5
    assert numpy.asarray(tensor)[1] == 5
    array = onecopy.zeros(10).numpy()
    answer(array)
    assert array[0] == 42


def test_tensors_of_torch_cross_without_a_copy(answer):
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(1000)
    answer(tensor)
    assert tensor[0] == 42


PLAIN = [True, 7, -(2**63), 0.5, 1 + 2j, "text", "ü" * 1000, b"bytes", b"b" * 100_000, [1, [2, None]], (1, "x"), ()]


@pytest.mark.parametrize("value", PLAIN, ids=range(len(PLAIN)))
def test_plain_values_cross_both_ways(answer, value):
    _, back = answer(value)
    assert back == value
    assert type(back) is type(value)


def test_a_dict_with_tensors_crosses_both_ways(answer):
    tensor = onecopy.zeros(10)
    count, back = answer({"step": 7, "weights": [tensor, tensor]})
    assert (count, back["step"]) == (2, 7)
    numpy.asarray(back["weights"][1])[3] = 9
    assert numpy.asarray(tensor)[3] == 9


@pytest.mark.parametrize(
    "value", [datetime.date(2026, 5, 17), {1, 2}, bytearray(100_000)], ids=["date", "set", "large"]
)
def test_values_that_only_python_understands_come_back_as_they_were(answer, value):
    assert answer(value) == value


def load_plugin(repository, name):
    plugin = ctypes.CDLL(built(repository, f"tests/libonecopy_plugin_{name}.so"))
    plugin.plugin_share.restype = ctypes.c_char_p
    plugin.plugin_share.argtypes = [ctypes.c_float]
    plugin.plugin_exchange.restype = ctypes.c_float
    plugin.plugin_exchange.argtypes = [ctypes.c_char_p, ctypes.c_float]
    plugin.plugin_read.restype = ctypes.c_float
    plugin.plugin_catches.restype = ctypes.c_bool
    return plugin


def test_two_plugins_and_this_module_share_memory_in_one_process(repository):
    first, second = load_plugin(repository, "first"), load_plugin(repository, "second")
    assert first.plugin_catches() and second.plugin_catches()
    assert second.plugin_exchange(first.plugin_share(1), 2) == 1
    assert first.plugin_read() == 2
    ours = onecopy.zeros(100, dtype="float32").numpy()
    handle = str(onecopy.share(ours))
    for plugin in (first, second):
        theirs = onecopy.open(plugin.plugin_share(7).decode(), framework="numpy")
        assert theirs[99] == 7
        theirs[99] = 8
        assert plugin.plugin_read() == 8
        assert plugin.plugin_exchange(handle.encode(), 9) == ours[0]
        assert ours[99] == 9
        ours[99] = 0
