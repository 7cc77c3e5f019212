# SPDX-License-Identifier: Apache-2.0
"""The part of vLLM's offloading that the KV pool plugs into, as stubs of vLLM 0.32, and what its own file says of them."""

import abc
import enum
import os
import sys
import types
from dataclasses import dataclass

from abstract_methods import abstract_methods

#: The folder of vLLM's package, whose base.py is compared with the stubs.
FILES = os.environ.get("ONECOPY_VLLM")

#: The abstract methods of vLLM 0.32 and 0.33, and the other methods that the connector calls.
ABSTRACT = {
    "OffloadingManager": {"lookup", "prepare_load", "prepare_store", "on_new_request"},
    "OffloadingWorker": {"submit_store", "submit_load", "get_finished", "wait"},
    "OffloadingSpec": {"get_manager", "get_worker"},
}
OTHERS = {
    "OffloadingManager": {"touch", "complete_load", "complete_store", "on_request_finished", "take_events",
                          "on_schedule_end", "has_pending_work", "reset_cache", "get_stats", "shutdown"},
    "OffloadingWorker": {"shutdown"},
    "OffloadingSpec": set(),
}  # fmt: skip


def abstract_methods_of_vllm():
    """Returns the abstract methods of each class in vLLM's own base.py; None without the file."""
    return abstract_methods(FILES, "v1/kv_offload/base.py", ABSTRACT)


class LookupResult(enum.Enum):
    MISS, HIT, HIT_PENDING, RETRY = range(4)


class LoadStoreSpec:
    pass


class BlockIDsLoadStoreSpec(LoadStoreSpec):
    def __init__(self, block_ids):
        self.block_ids = block_ids


class GPULoadStoreSpec(BlockIDsLoadStoreSpec):
    def __init__(self, block_ids, group_sizes):
        super().__init__(block_ids)
        self.group_sizes = group_sizes


@dataclass
class PrepareStoreOutput:
    keys_to_store: list
    store_spec: LoadStoreSpec
    evicted_keys: list


@dataclass
class TransferResult:
    job_id: int
    success: bool
    transfer_size: int = None
    transfer_time: float = None


class RequestOffloadingContext:
    pass


def install():
    """Puts vLLM's offloading into sys.modules, and returns the plug's module."""
    for name in ("vllm", "vllm.v1", "vllm.v1.kv_offload"):
        sys.modules.setdefault(name, types.ModuleType(name)).__path__ = []
    sys.modules["vllm"].__version__ = "0.32.0"
    base = sys.modules["vllm.v1.kv_offload.base"] = types.ModuleType("vllm.v1.kv_offload.base")
    for one in (LookupResult, LoadStoreSpec, BlockIDsLoadStoreSpec, GPULoadStoreSpec, PrepareStoreOutput,
                TransferResult, RequestOffloadingContext):  # fmt: skip
        setattr(base, one.__name__, one)
    for name, methods in ABSTRACT.items():
        body = {method: abc.abstractmethod(lambda self, *_: None) for method in methods}
        body |= {method: lambda self, *_: None for method in OTHERS[name]}
        setattr(base, name, abc.ABCMeta(name, (abc.ABC,), body))

    def start(spec, config):
        spec.config, spec.extra_config = config, config.extra_config
        spec.tokens_per_block = tuple(group.tokens_per_block for group in config.groups)

    base.OffloadingSpec.__init__ = start
    from onecopy.integrations import vllm_offloading

    return vllm_offloading


def config(rank=0, world_size=1, **extra):
    """Returns the configuration of an engine with two layers of pages of 4 KiB."""
    space = types.SimpleNamespace
    return space(
        groups=(space(tokens_per_block=16, layer_names=("layers.0", "layers.1"), group_id=0),),
        worker_kv_bytes_per_block=2 * 4096,
        extra_config={"onecopy.weights": "tiny@1", "onecopy.max_gib": 16 * world_size * 8192 / (1 << 30), **extra},
        model=space(name="/models/tiny", dtype="bfloat16"),
        cache=space(tokens_per_hash=16, blocks_per_chunk=1),
        parallel=space(rank=rank, world_size=world_size, tp_size=world_size, pp_size=1, pcp_size=1, dcp_size=1),
        replicated_layout=False,
        canonical_layout=False,
        kv_cache_layout="NHD",
    )


def caches(fill=0):
    """Returns vLLM's cache of one worker: two layers of 32 pages."""
    import torch

    tensors = [torch.full((32, 4096), fill, dtype=torch.int8) for _ in range(2)]
    space = types.SimpleNamespace
    return tensors, space(
        tensors=[space(tensor=tensor, page_size_bytes=4096) for tensor in tensors],
        group_data_refs=[[space(tensor_idx=0, page_size_bytes=4096), space(tensor_idx=1, page_size_bytes=4096)]],
    )


def request(name):
    return types.SimpleNamespace(req_id=name)
