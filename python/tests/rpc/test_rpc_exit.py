# SPDX-License-Identifier: Apache-2.0
"""Interpreters that end while calls are under way in both directions: they end as they were told to, and the other member
gets an error."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

MEMBER = r"""
import os, signal, sys, threading, time
import torch
import onecopy.distributed.rpc as rpc

rank, file, how = int(sys.argv[1]), sys.argv[2], sys.argv[3]


def slow(value):
    time.sleep(1000)


def echo(value=None):
    return value


def slow_in_worker0():
    return rpc.rpc_sync("worker0", slow, args=(1,))


def echo_for_ever():
    while True:
        rpc.rpc_sync("worker1", echo, args=(torch.ones(2000),))


options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{file}")
rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)
if rank == 1:
    try:
        while True:
            rpc.rpc_sync("worker0", echo)
    except RuntimeError as error:
        print(type(error).__name__, error, flush=True)
        os._exit(0)  # its workers sleep
rpc.rpc_sync("worker1", echo)
calls = [rpc.rpc_async("worker1", function, args=args) for function, args in 10 * [(slow, (1,)), (slow_in_worker0, ())]]
for call in calls[:10]:
    call.add_done_callback(lambda call: None)
references = [rpc.remote("worker1", echo, args=(torch.ones(3000),)) for _ in range(20)]
for _ in range(3):
    threading.Thread(target=echo_for_ever, daemon=True).start()
while rpc.api._get_current_rpc_agent().endpoint.serving == 0:  # a call of worker1's runs here
    time.sleep(0.01)
match how:
    case "return":
        pass
    case "raise":
        raise ValueError("meant")
    case "exit":
        sys.exit(5)
    case "sigint" | "sigterm":
        os.kill(os.getpid(), signal.SIGINT if how == "sigint" else signal.SIGTERM)
        time.sleep(1000)
    case "leave":
        rpc.shutdown(graceful=False)
"""
CODES = {"return": 0, "raise": 1, "exit": 5, "sigint": -signal.SIGINT, "sigterm": -signal.SIGTERM, "leave": 0}


@pytest.mark.parametrize("how", CODES)
def test_an_interpreter_ends_with_calls_in_flight(tmp_path, how):
    members = [
        subprocess.Popen(
            [sys.executable, "-c", MEMBER, str(rank), str(tmp_path / "meeting"), how],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        found = [(*member.communicate(timeout=120), member.returncode) for member in members]
    finally:
        for member in members:
            member.kill()
            member.communicate()
    (_, errors, code), (said, others_errors, others_code) = found
    assert code == CODES[how], errors
    assert others_code == 0, others_errors
    assert "name=worker0" in said and ("has ended" in said or "has left the group" in said), said
