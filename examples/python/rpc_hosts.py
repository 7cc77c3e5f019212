# SPDX-License-Identifier: Apache-2.0
"""Members of one group on two hosts. On each host, with the same secret and the address of the first one:

    ONECOPY_RPC_KEY="$(cat secret)" RANK=0 WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500 python rpc_hosts.py
    ONECOPY_RPC_KEY="$(cat secret)" RANK=1 WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500 python rpc_hosts.py

`onecopy key > secret` makes the secret. Without RANK the program starts both on this host, over TLS as well."""

import os, secrets, socket, subprocess, sys
import torch
import onecopy.rpc as rpc


@rpc.export
def scale(tensor: torch.Tensor, by: float) -> torch.Tensor:
    return tensor * by


def member() -> None:
    rank = int(os.environ["RANK"])
    rpc.init(f"host{rank}", rank=rank, world_size=int(os.environ["WORLD_SIZE"]))  # meets at MASTER_ADDR
    if rank == 0:
        tensor = torch.ones(1 << 20)
        print("route:", rpc.explain("host1", tensor).name)
        print("sum:", int(rpc.call("host1", scale, args=(tensor, 2)).sum()))
        try:
            rpc.call("host1", scale, args=(rpc.borrow(tensor), 2))
        except TypeError:
            print("memory is not lent to another host")
    rpc.shutdown()  # waits for the other


def both_on_this_host() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    group = {
        "ONECOPY_RPC_LINK": "tcp",
        "ONECOPY_RPC_LISTEN": "127.0.0.1:0",
        "ONECOPY_RPC_KEY": secrets.token_hex(),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    members = [subprocess.Popen([sys.executable, __file__], env=os.environ | group | {"RANK": str(n)}) for n in (0, 1)]
    sys.exit(max(process.wait() for process in members))


if __name__ == "__main__":
    if "RANK" in os.environ:
        member()
    else:
        both_on_this_host()
