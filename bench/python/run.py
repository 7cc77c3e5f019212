# SPDX-License-Identifier: Apache-2.0
"""Measures what the Python package promises, beside torch and the standard library in the same run."""

from __future__ import annotations

import argparse
import importlib.util
import pathlib
import sys

import alive
import crowd
import cuda
import cuda_blocks
import first_token
import graph_calls
import graph_card
import hand_over
import imports
import large
import loaded_model
import loader
import machine
import many_tensors
import rpc_calls
import rpc_members
import store_chain
import store_checkpoint
import store_hosts
import store_keeper
import store_restart
import store_versions
import weights
from effort import Effort
from report import Row, to_text, write_results

_RESULTS = pathlib.Path(__file__).resolve().parents[1] / "results"

ROWS = {
    "tensor": hand_over.tensors,
    "view": hand_over.views,
    "parameter": hand_over.parameters,
    "state-dict": hand_over.state_values,
    "int": hand_over.numbers,
    "int-sleeping": hand_over.numbers_sleeping,
    "int-one-cpu": crowd.one_processor,
    "crowd": crowd.many,
    "large": large.large,
    "bundle": many_tensors.shared,
    "module": many_tensors.module,
    "alive": alive.alive,
    "import": imports.times,
    "graphs-memory": graph_calls.memory,
    "graphs-calls": graph_calls.calls,
    "graphs-llama": graph_calls.llama,
    "graphs-interleavings": graph_calls.interleavings,
    "rpc-empty": rpc_calls.empty,
    "rpc-asleep": rpc_calls.asleep,
    "rpc-async": rpc_calls.waited,
    "rpc-echo": rpc_calls.echoed,
    "rpc-large": rpc_calls.echoed_large,
    "rpc-bytes": rpc_calls.large_bytes,
    "rpc-pipelined": rpc_calls.pipelined,
    "rpc-fetch": rpc_calls.fetched,
    "rpc-backward": rpc_calls.backward,
    "rpc-rnn": rpc_calls.trained,
    "rpc-members": rpc_members.members,
    "weights": weights.weights,
    "ray": weights.ray_actors,
    "huggingface": loaded_model.huggingface,
    "start-first-token": first_token.starts,
    "start-refit": first_token.refits,
    "store-restart": store_restart.restart,
    "store-update": store_versions.update,
    "store-first-pass": store_versions.first_pass,
    "store-publish": store_versions.publish,
    "store-as-is": store_versions.publish_as_is,
    "store-open": store_versions.opened,
    "store-checkpoint": store_checkpoint.checkpoint,
    "store-start": store_keeper.start,
    "store-keeper": store_keeper.memory,
    "store-killed": store_keeper.restart,
    "store-kv-pool": store_keeper.kv_pool,
    "store-kv-pool-growth": store_keeper.kv_pool_growth,
    "store-hosts-group": store_hosts.hosts,
    "store-hosts-hop": store_chain.hop,
    "store-hosts-chain": store_chain.chain,
    "store-hosts-stopped": store_chain.stopped,
    "store-hosts-resumed": store_chain.resumed,
}
CUDA_ROWS = {
    "cuda-tensor": cuda.tensors,
    "cuda-first-open": cuda.first_open,
    "cuda-model": cuda.model,
    "cuda-first-model": cuda.first_model,
    "cuda-reduce": cuda.reduced,
    "cuda-int": cuda.numbers,
    "cuda-kv-blocks": cuda_blocks.copies,
    "cuda-loader": loader.loaders,
    "start-first-token": first_token.starts,
    "start-sleep": first_token.sleeping,
    "start-refit": first_token.refits,
    "cuda-graphs-memory": graph_card.memory,
    "cuda-graphs-held": graph_card.held,
    "cuda-graphs-alive": graph_card.alive,
    "cuda-graphs-calls": graph_card.calls,
    "cuda-graphs-places": graph_card.many_places,
    "cuda-graphs-parked": graph_card.parked,
    "cuda-graphs-streams": graph_card.streams,
    "cuda-graphs-llama": graph_card.llama,
    "cuda-graphs-runner": graph_card.runner,
    "store-restart": store_restart.restart,
    "store-update": store_versions.update,
    "store-publish": store_versions.publish,
    "store-as-is": store_versions.publish_as_is,
    "store-open": store_versions.opened,
}


def _rows_of(device: str) -> dict:
    return ROWS if device == "cpu" else CUDA_ROWS


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "rows", nargs="*", metavar="ROW", help=f"only these, and write no results: {', '.join(ROWS)}; "
        f"with --device cuda:N: {', '.join(CUDA_ROWS)}. One word such as store or rpc: all rows of that group, "
        "whose results are written",
    )  # fmt: skip
    parser.add_argument("--device", default="cpu", help="cpu, or the rows for a CUDA device: cuda:0")
    parser.add_argument("--quick", action="store_true", help="a fifth of the rounds")
    parser.add_argument("--out", type=pathlib.Path, default=_RESULTS, help="where the results go")
    parsed = parser.parse_args()
    known = _rows_of(parsed.device)
    parsed.group = ""
    if len(parsed.rows) == 1 and (of_group := [name for name in known if name.startswith(parsed.rows[0] + "-")]):
        parsed.group, parsed.rows = "-" + parsed.rows[0], of_group
    unknown = [name for name in parsed.rows if name not in known]
    if unknown:
        parser.error(f"there is no row {unknown[0]!r}; there are: {', '.join(known)}")
    return parsed


def main() -> int:
    arguments = _arguments()
    for package in ("onecopy", "torch"):
        if importlib.util.find_spec(package) is None:
            print(f"{package} is not installed for {sys.executable}: run ./dev setup", file=sys.stderr)
            return 1
    facts = machine.describe() | machine.describe_device(arguments.device)
    print("".join(f"{name}: {value}\n" for name, value in facts.items()))
    rows: list[Row] = []
    known = _rows_of(arguments.device)
    for name in arguments.rows or known:
        rows.append(known[name](Effort(arguments.quick, arguments.device)))
        print(to_text(rows[-1]), flush=True)
    if arguments.group or not arguments.rows:
        kind = ("python" if arguments.device == "cpu" else "python-cuda") + arguments.group
        path = arguments.out / f"{machine.today()}-{machine.kind()}-{kind}.json"
        write_results(path, machine.today(), facts, rows)
        print(f"written: {path}; bench/page.py makes the page of it")
    misses = sum(row.misses() for row in rows)
    print(f"{misses} figures miss their bound" if misses else "every promise kept")
    return 0


if __name__ == "__main__":
    sys.exit(main())
