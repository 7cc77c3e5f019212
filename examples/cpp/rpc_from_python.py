# SPDX-License-Identifier: Apache-2.0
import subprocess, sys, tempfile
import torch
import onecopy.rpc as rpc


@rpc.export
def greet(name):
    return f"Python greets {name}"


with tempfile.TemporaryDirectory() as directory:
    rpc.init("python", rank=0, world_size=1, rendezvous=f"file://{directory}/rendezvous")
    program = subprocess.Popen(
        [sys.argv[1], rpc.address().hex()], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    there = rpc.enter(bytes.fromhex(program.stdout.readline()))
    print(program.stdout.readline().strip())
    print(rpc.call(there, "scale", (torch.ones(3), 2.5)).tolist())
    program.communicate("\n")
    rpc.shutdown()
