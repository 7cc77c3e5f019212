# SPDX-License-Identifier: Apache-2.0
"""usage: two_programs.py receiver|sender PORT      two programs that were started on their own"""

import sys
from multiprocessing.connection import Client, Listener

import torch
import onecopy.multiprocessing  # the standard library's connections carry tensors from here on


def receiver(address):
    with Listener(address, authkey=b"only for us") as listener, listener.accept() as connection:
        tensor = connection.recv()
        tensor.add_(1)
        connection.send("added one")


def sender(address):
    tensor = torch.arange(4.0)
    with Client(address, authkey=b"only for us") as connection:
        connection.send(tensor)
        print(connection.recv(), "->", tensor.tolist())


if __name__ == "__main__":
    {"receiver": receiver, "sender": sender}[sys.argv[1]](("127.0.0.1", int(sys.argv[2])))
