# SPDX-License-Identifier: Apache-2.0
"""HiCache on the CPU: an entry point ``sglang.srt.plugins``, since SGLang copies its pages with kernels of CUDA only."""

import os
from pathlib import Path


def install(folder):
    """Makes a folder for PYTHONPATH, with which SGLang calls ``use_torch()`` in each of its processes."""
    about = Path(folder) / "hicache_on_cpu-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: hicache-on-cpu\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[sglang.srt.plugins]\nhicache = sglang_hicache:use_torch\n")
    return os.pathsep.join(map(str, filter(None, (folder, Path(__file__).parent, os.environ.get("PYTHONPATH")))))


def rows(indices):
    return indices.cpu().long()


def to_engine(pool, device_pool, host_indices, device_indices, layer, io_backend, **_):
    """Copies tokens of a layer from HiCache's memory into the engine's."""
    host, device = rows(host_indices), rows(device_indices)
    for there, here in ((pool.device_k_buffers, pool.k_data_refs), (pool.device_v_buffers, pool.v_data_refs)):
        there[layer][device] = here[layer][host]


def from_engine(pool, device_pool, host_indices, device_indices, io_backend, **_):
    """Copies tokens of all layers from the engine's memory into HiCache's."""
    host, device = rows(host_indices), rows(device_indices)
    for there, here in ((pool.k_data_refs, pool.device_k_buffers), (pool.v_data_refs, pool.device_v_buffers)):
        for layer in range(pool.layer_num):
            there[layer][host] = here[layer][device]


def use_torch():
    import torch
    from sglang.srt.mem_cache.pool_host import common, mha

    common._cuda_host_register = lambda *_, **__: None
    mha.MHATokenToKVPoolHost.load_to_device_per_layer = to_engine
    mha.MHATokenToKVPoolHost.backup_from_device_all_layer = from_engine
    for owner, names in (
        (torch.cpu.Stream, ("synchronize", "wait_event", "wait_stream")),
        (torch.cpu.Event, ("wait", "synchronize")),
    ):
        for name in names:
            if not hasattr(owner, name):
                setattr(owner, name, lambda self, *_, **__: None)
    torch.Tensor.pin_memory = lambda self, *_, **__: self
    for name in ("empty", "zeros", "ones", "tensor"):
        setattr(torch, name, without_pinning(getattr(torch, name)))


def without_pinning(make):
    def made(*arguments, pin_memory=False, **options):
        return make(*arguments, **options)

    return made
