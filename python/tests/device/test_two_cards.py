# SPDX-License-Identifier: Apache-2.0
"""Tensors of two cards in one message or bundle, each written in a stream of its own."""

from __future__ import annotations

import os
import sys

import pytest

from support.devices import needs_simulator
from support.processes import TESTS

pytest.importorskip("torch", reason="wants torch installed")

# Without CUDA torch has no streams; these are the names that onecopy uses.
PROGRAM = """
import sys, threading, types
import onecopy, torch
from support.devices import Driver, eventually

streams = [Driver(ordinal).stream() for ordinal in range(2)]  # the card is this thread's from there on
torch.Tensor.__dlpack_c_exchange_api__ = None  # which would say that it is the default stream
torch.cuda._initialized = True
torch.cuda.is_initialized = lambda: True
torch.cuda.current_device = lambda: 0


def current_stream(device=0):  # of a thread, as with torch: the tensors arrive for the default streams
    is_receiver = threading.current_thread() is threading.main_thread()
    return types.SimpleNamespace(cuda_stream=0 if is_receiver else streams[device])


torch.cuda.current_stream = current_stream

queue = onecopy.Queue()
send, receive = onecopy.Pipe()
ways = {
    "queue": (queue.put, queue.get),
    "pipe": (send.send, receive.recv),
    "bundle": (lambda tensors: queue.put(onecopy.share(tensors)), lambda: list(onecopy.open(queue.get()).values())),
}
put, get = ways[sys.argv[1]]
tensors = [onecopy.zeros(100, "uint8", f"cuda:{i}") for i in range(2)]
gates = []
for ordinal in range(2):
    card = Driver(ordinal)
    gates.append(card.hold(streams[ordinal]))
    card.write_later(tensors[ordinal].data_ptr, bytes([7] * 100), streams[ordinal])
before = onecopy.stats()["host_waits"]
putter = threading.Thread(target=put, args=(tensors,))
putter.start()
at_once = eventually(lambda: not putter.is_alive(), float(sys.argv[2]))
waits = onecopy.stats()["host_waits"] - before
threading.Timer(0.3, lambda: [gate.set() for gate in gates]).start()
arrived = get()
seen = [set(tensor.tolist()) for tensor in arrived]
assert seen == [{7}, {7}], seen
putter.join()
print(at_once, waits)
"""


def test_a_device_without_a_number_is_the_one_that_is_current_in_torch(run_python):
    program = """
        import types
        import onecopy, torch

        torch.Tensor.__dlpack_c_exchange_api__ = None
        torch.cuda._initialized = True
        torch.cuda.is_initialized = lambda: True
        torch.cuda.current_device = lambda: 1
        torch.cuda.current_stream = lambda device=0: types.SimpleNamespace(cuda_stream=0)
        print([onecopy.zeros(1, device=device).device for device in ("cuda", torch.device("cuda"), "cuda:0")])
    """
    assert run_python(program, env=needs_simulator()) == "['cuda:1', 'cuda:1', 'cuda:0']\n"


@pytest.mark.parametrize("way", ["queue", "pipe", "bundle"])
def test_no_host_waits_for_the_streams_of_two_cards_whose_tensors_leave_together(run_python, way):
    environment = needs_simulator() | {"PYTHONPATH": os.pathsep.join([TESTS, *sys.path])}
    assert run_python(PROGRAM, way, "60", env=environment) == "True 0\n"


def test_a_host_that_has_to_wait_for_the_streams_of_two_cards_counts_it(run_python):
    environment = needs_simulator() | {"PYTHONPATH": os.pathsep.join([TESTS, *sys.path])}
    environment["ONECOPY_SIM_CUDA_MISSING"] = "cuStreamWaitValue64,cuStreamWriteValue64"
    said = run_python(PROGRAM, "queue", "5", env=environment)
    assert said.startswith("False ") and int(said.split()[1]) >= 1, said
