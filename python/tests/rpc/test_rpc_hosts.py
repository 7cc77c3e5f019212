# SPDX-License-Identifier: Apache-2.0
"""Members of one group in two network namespaces with a cable between them, as on two hosts."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

KEY = "a secret of these tests, of 40 characters"
CABLES, ADDRESSES = ("ocpy2", "ocpy3"), ("10.213.58.1", "10.213.58.2")

MEMBER = r"""
import os
import sys
import torch
import onecopy.distributed.autograd as dist_autograd
import onecopy.distributed.rpc as rpc
import onecopy.rpc as native
from onecopy.distributed.optim import DistributedOptimizer

rank, rendezvous = int(sys.argv[1]), sys.argv[2]
options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{rendezvous}", rpc_timeout=50)
rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)


def train():
    tensor = torch.arange(1 << 20, dtype=torch.float32)
    assert torch.equal(rpc.rpc_sync("worker1", torch.add, args=(tensor, 1)), tensor + 1)
    assert rpc.remote("worker1", torch.ones, args=((3,),)).to_here().tolist() == [1.0, 1.0, 1.0]
    assert native.explain("worker1", tensor).name == os.environ.get("ONECOPY_RPC_FABRIC", "tls")
    try:
        rpc.rpc_sync("worker1", torch.add, args=(torch.ones(2), torch.ones(3)))
        raise AssertionError("the shapes do not fit")
    except RuntimeError as error:
        assert "worker1" in str(error)
    try:
        native.call("worker1", torch.add, args=(native.borrow(torch.ones(2000)), 1))
        raise AssertionError("memory was lent to another host")
    except TypeError as error:
        assert "on another" in str(error)
    torch.manual_seed(0)
    near, far = torch.rand(4, 4, requires_grad=True), torch.rand(4, 4)
    parameter = rpc.remote("worker1", make_parameter, args=(far,))
    with dist_autograd.context() as context:
        out = rpc.rpc_sync("worker1", multiply, args=(near, parameter))
        dist_autograd.backward(context, [out.sum()])
        found = dist_autograd.get_gradients(context)[near]
        torch.testing.assert_close(found, torch.ones(4, 4) @ far.t())
        DistributedOptimizer(torch.optim.SGD, [parameter], lr=1.0).step(context)
    torch.testing.assert_close(parameter.to_here(), far - near.detach().t() @ torch.ones(4, 4))
    print("trained")


def make_parameter(values):
    return values.clone().requires_grad_()


def multiply(x, parameter):
    return x @ parameter.to_here()


if rank == 0:
    train()
rpc.shutdown()
"""


def obstacle():
    if os.geteuid() != 0:
        return "wants to be root, who may make network namespaces"
    if not all(map(shutil.which, ("ip", "nsenter", "unshare"))):
        return "wants ip of iproute2, and nsenter and unshare of util-linux"
    made = subprocess.run(
        ["unshare", "-n", "ip", "link", "add", "ocpytry2", "type", "veth", "peer", "name", "ocpytry3"],
        capture_output=True,
    )
    return "wants a kernel and a container that let it make network namespaces" if made.returncode else None


def run_in(holder, *command):
    subprocess.run(["nsenter", "-t", str(holder.pid), "-n", *command], check=True)


@pytest.fixture
def networks():
    """The holders of two network namespaces."""
    if why := obstacle():
        pytest.skip(why)
    holders = [
        subprocess.Popen(
            ["unshare", "-n", "-m", "sh", "-c", "mount -t sysfs sysfs /sys && echo there; exec sleep 1000"],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in ADDRESSES
    ]
    try:
        for holder in holders:
            assert holder.stdout.readline() == "there\n"
        cable = f"ip link add {CABLES[0]} type veth peer name {CABLES[1]} netns {holders[1].pid}"
        run_in(holders[0], *cable.split())
        for holder, cable, address in zip(holders, CABLES, ADDRESSES):
            run_in(holder, "ip", "addr", "add", f"{address}/24", "dev", cable)
            run_in(holder, "ip", "link", "set", "lo", "up")
            run_in(holder, "ip", "link", "set", cable, "up")
        yield holders
    finally:
        for holder in holders:
            holder.kill()
            holder.wait()
            holder.stdout.close()


def start(holder, program, rank, rendezvous, **environment):
    return subprocess.Popen(
        ["nsenter", "-t", str(holder.pid), "-n", "-m", sys.executable, str(program), str(rank), str(rendezvous)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


@pytest.fixture
def start_all(networks, tmp_path):
    """Starts a program on both hosts."""

    def start_all(program, **environment):
        (tmp_path / "member.py").write_text(program)
        place = tmp_path / "rendezvous"
        return [start(holder, tmp_path / "member.py", i, place, **environment) for i, holder in enumerate(networks)]

    return start_all


def check_end(members, said):
    """Waits for the ends of the members, of which the first has said this alone."""
    outcomes = [member.communicate(timeout=240) for member in members]
    assert [member.returncode for member in members] == [0, 0], outcomes
    assert outcomes[0][0] == said


@pytest.mark.parametrize("fabric", ["tls", "ucx"])
def test_members_on_two_hosts_call_train_and_leave(start_all, fabric):
    if fabric == "ucx" and importlib.util.find_spec("libucx") is None and "ONECOPY_UCX_LIBRARY" not in os.environ:
        pytest.skip("wants libucx-cu13")
    check_end(start_all(MEMBER, ONECOPY_RPC_KEY=KEY, ONECOPY_RPC_FABRIC=fabric), "trained\n")


def test_hosts_with_ipv6_alone_reach_each_other(networks, start_all):
    for i, (holder, cable) in enumerate(zip(networks, CABLES)):
        run_in(holder, "ip", "addr", "flush", "dev", cable, "scope", "global")
        run_in(holder, "ip", "addr", "add", f"fd00:58::{i + 1}/64", "dev", cable, "nodad")
    check_end(start_all(MEMBER, ONECOPY_RPC_KEY=KEY), "trained\n")


def test_members_that_listen_at_all_addresses_reach_each_other(start_all):
    check_end(start_all(MEMBER, ONECOPY_RPC_KEY=KEY, ONECOPY_RPC_LISTEN="0.0.0.0:4999"), "trained\n")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([{}, {"ONECOPY_RPC_KEY": "another secret, which has 40 characters, too"}], "has another key"),
        ([{}, {"ONECOPY_RPC_KEY": ""}], "ONECOPY_RPC_KEY"),
        ([{"ONECOPY_RPC_FABRIC": "tls"}, {"ONECOPY_RPC_FABRIC": "ucx"}], "over ucx|over tls"),
    ],
    ids=["key", "no-key", "fabric"],
)
def test_each_of_two_members_that_do_not_fit_says_why(networks, tmp_path, options, words):
    if "ONECOPY_RPC_FABRIC" in options[0] and importlib.util.find_spec("libucx") is None:
        pytest.skip("wants libucx-cu13")
    (tmp_path / "member.py").write_text(MEMBER)
    members = [
        start(holder, tmp_path / "member.py", rank, tmp_path / "rendezvous", **{"ONECOPY_RPC_KEY": KEY, **own})
        for rank, (holder, own) in enumerate(zip(networks, options))
    ]
    for member in members:
        error = member.communicate(timeout=240)[1].strip().splitlines()[-1]
        assert re.search(words, error), error


CUT = r"""
import pathlib
import sys
import time
import torch
import onecopy.distributed.rpc as rpc
from onecopy.errors import PeerDied

rank, rendezvous = int(sys.argv[1]), pathlib.Path(sys.argv[2])
options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{rendezvous}", rpc_timeout=50)
rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)
counts = []


def count():
    counts.append(1)
    return len(counts)


def wait():
    time.sleep(1000)


def use(reference):
    return reference.to_here()


def own_counts():
    from onecopy.rpc import registry

    return registry.current().references.owned.counts()


def raises_peer_died(run):
    try:
        run()
    except PeerDied:
        return True
    return False


if rank == 0:
    kept = rpc.remote("worker1", torch.ones, args=((3,),))
    assert kept.to_here().tolist() == [1.0, 1.0, 1.0]
    under_way = rpc.rpc_async("worker1", wait)
    assert rpc.rpc_sync("worker1", count) == 1
    print("cut", flush=True)
    assert sys.stdin.readline() == "cut\n"
    assert raises_peer_died(under_way.wait)
    assert raises_peer_died(lambda: rpc.rpc_sync("worker1", count))
    print("mend", flush=True)
    assert sys.stdin.readline() == "mended\n"
    assert rpc.rpc_sync("worker1", count) == 2
    assert raises_peer_died(kept.to_here)
    assert raises_peer_died(lambda: rpc.rpc_sync("worker1", use, args=(kept,)))
    assert rpc.rpc_sync("worker1", own_counts) == (0, 0)
    again = rpc.remote("worker1", torch.ones, args=((2,),))
    assert again.to_here().tolist() == [1.0, 1.0]
    del again
    print("went on", flush=True)
rpc.shutdown()
"""


def test_members_that_were_cut_off_go_on_without_the_references_from_before(networks, start_all):
    members = start_all(CUT, ONECOPY_RPC_KEY=KEY, ONECOPY_RPC_PEER_TIMEOUT="1")
    caller = members[0]
    for said, state, answer in (("cut", "down", "cut"), ("mend", "up", "mended")):
        assert caller.stdout.readline() == f"{said}\n", caller.communicate(timeout=60)
        run_in(networks[0], "ip", "link", "set", CABLES[0], state)
        caller.stdin.write(f"{answer}\n")
        caller.stdin.flush()
    check_end(members, "went on\n")


JOINING = r"""
import os
import signal
import sys
import onecopy.rpc as rpc
from onecopy.rpc import elastic

rank, rendezvous = int(sys.argv[1]), sys.argv[2]
elastic._SILENCE = 2
if rank == 1:
    elastic._tell = lambda agent, own: os.kill(os.getpid(), signal.SIGKILL)
rpc.init(f"worker{rank}", rank=rank, rendezvous=f"file://{rendezvous}", join_timeout=1000)
print("joined", flush=True)
rpc.shutdown(graceful=False)
"""


def test_a_process_killed_while_it_joined_keeps_none_of_another_host_out(networks, tmp_path):
    (tmp_path / "member.py").write_text(JOINING)
    for rank, (code, said) in ((1, (-signal.SIGKILL, "")), (0, (0, "joined\n"))):
        member = start(networks[rank], tmp_path / "member.py", rank, tmp_path / "rendezvous", ONECOPY_RPC_KEY=KEY)
        out, errors = member.communicate(timeout=240)
        assert (member.returncode, out) == (code, said), errors


NAMED = r"""
import os
import sys
import onecopy.distributed.rpc as rpc

rank, rendezvous = int(sys.argv[1]), sys.argv[2]


def pid():
    return os.getpid()


options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{rendezvous}")
rpc.init_rpc("first" if rank == 0 else "same", rank=rank, rpc_backend_options=options)
print(os.getpid(), flush=True)
for line in sys.stdin:
    print(rpc.rpc_sync("same", pid), flush=True)
rpc.shutdown(graceful=False)
"""


def test_the_name_of_a_member_killed_on_another_host_is_free(networks, tmp_path):
    (tmp_path / "member.py").write_text(NAMED)
    members, pids = [], []
    try:
        for rank, host in enumerate((0, 1, 0)):
            if rank == 2:
                members[1].kill()
                members[1].wait()
            place = tmp_path / "member.py", rank, tmp_path / "rendezvous"
            members.append(start(networks[host], *place, ONECOPY_RPC_KEY=KEY))
            pids.append(members[rank].stdout.readline())
        said, errors = members[0].communicate("call\n", timeout=240)
        assert pids[2] and said == pids[2], (errors, members[2].poll())
    finally:
        for member in members:
            member.kill()
            member.communicate()


def test_the_example_of_two_hosts_runs_on_two_hosts(networks):
    example = pathlib.Path(__file__).resolve().parents[3] / "examples/python/rpc_hosts.py"
    of_all = {"ONECOPY_RPC_KEY": KEY, "WORLD_SIZE": "2", "MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": "29500"}
    members = [start(holder, example, i, "", RANK=str(i), **of_all) for i, holder in enumerate(networks)]
    check_end(members, example.with_suffix(".expected").read_text())


def test_members_without_a_key_say_what_to_do(start_all):
    members = start_all(MEMBER)
    errors = members[0].communicate(timeout=240)[1]
    members[1].kill()
    members[1].communicate()
    assert members[0].returncode == 1
    assert "set ONECOPY_RPC_KEY" in errors


BESIDE_NIXL = r"""
import sys
import torch
from nixl._api import nixl_agent, nixl_agent_config
import onecopy.distributed.rpc as rpc

rank, rendezvous = int(sys.argv[1]), sys.argv[2]


def read_own_memory(name):
    agent = nixl_agent(name, nixl_agent_config(backends=["UCX"]))
    source, target = torch.arange(1 << 20, dtype=torch.float32), torch.zeros(1 << 20)
    for tensor in (source, target):
        agent.register_memory(tensor)
    into, out_of = agent.get_xfer_descs(target), agent.get_xfer_descs(source)
    transfer = agent.initialize_xfer("READ", into, out_of, name)
    state = agent.transfer(transfer)
    while state == "PROC":
        state = agent.check_xfer_state(transfer)
    assert state == "DONE" and torch.equal(source, target), state
    return agent


def call():
    tensor = torch.arange(1 << 20, dtype=torch.float32)
    assert torch.equal(rpc.rpc_sync("worker1", torch.add, args=(tensor, 1)), tensor + 1)


before = read_own_memory("before")
options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{rendezvous}", rpc_timeout=50)
rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)
if rank == 0:
    call()
    after = read_own_memory("after")
    call()
    print("both")
rpc.shutdown()
"""


def test_members_over_ucx_have_agents_of_nixl_in_their_process(start_all):
    if not importlib.util.find_spec("nixl") or not importlib.util.find_spec("libucx"):
        pytest.skip("wants nixl and libucx-cu13")
    members = start_all(BESIDE_NIXL, ONECOPY_RPC_KEY=KEY, ONECOPY_RPC_FABRIC="ucx", NIXL_LOG_LEVEL="ERROR")
    check_end(members, "both\n")


def test_doctor_finds_the_ucx_of_the_wheel_and_its_transports():
    command = pathlib.Path(sys.executable).with_name("onecopy")
    if not importlib.util.find_spec("libucx") or not command.exists():
        pytest.skip("wants libucx-cu13 and the installed command")
    env = {name: value for name, value in os.environ.items() if name != "ONECOPY_UCX_LIBRARY"}
    said = subprocess.run([command, "doctor"], env=env, capture_output=True, text=True, check=False).stdout
    ucx = " ".join(said[said.index(" UCX ") :].split())
    assert "UCX 1." in ucx and "tcp/" in ucx, said
