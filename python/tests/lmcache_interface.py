# SPDX-License-Identifier: Apache-2.0
"""The part of LMCache that onecopy plugs into: its own abstract_backend.py where lmcache is installed, or a stub of it.

LMCache wants a card and CUDA's libraries, so that the rest is stubs: keys, memory objects, and the backend that
allocates.
"""

import abc
import enum
import importlib.util
import sys
import types
from dataclasses import dataclass
from pathlib import Path

INTERFACE = "lmcache.v1.storage_backend.abstract_backend"
ABSTRACT = ("contains", "exists_in_put_tasks", "batched_submit_put_task", "get_blocking", "pin", "unpin", "remove",
            "get_allocator_backend", "close")  # fmt: skip


class MemoryFormat(enum.Enum):
    KV_2LTD = enum.auto()
    KV_MLA_FMT = enum.auto()


@dataclass(frozen=True)
class Key:
    chunk: int

    def to_string(self):
        return f"model@1@0@{self.chunk:x}@half"


class Memory:
    def __init__(self, tensor, fmt=MemoryFormat.KV_2LTD):
        self.tensor, self.fmt = tensor, fmt

    def get_memory_format(self):
        return self.fmt


class LocalCPU:
    """Allocates what a backend reads into."""

    def allocate(self, shape, dtype, fmt):
        import torch

        return Memory(torch.empty(shape, dtype=dtype), fmt)


def install():
    """Puts the modules into sys.modules; returns the class of the plug and whether its base is LMCache's own."""
    for name in (
        "lmcache.utils",
        "lmcache.v1.config",
        "lmcache.v1.memory_management",
        "lmcache.v1.metadata",
        INTERFACE,
    ):
        folders = name.split(".")
        for length in range(1, len(folders)):
            module(".".join(folders[:length]))
        module(name)
    real = files_of_lmcache()
    sys.modules["lmcache"].torch_device_type = "cpu"
    sys.modules["lmcache.utils"].CacheEngineKey = Key
    sys.modules["lmcache.v1.config"].LMCacheEngineConfig = object
    sys.modules["lmcache.v1.metadata"].LMCacheMetadata = object
    management = sys.modules["lmcache.v1.memory_management"]
    management.MemoryFormat, management.MemoryObj, management.MemoryAllocatorInterface = MemoryFormat, Memory, object
    if real:
        spec = importlib.util.spec_from_file_location(INTERFACE, real)
        sys.modules[INTERFACE] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[INTERFACE])
    else:
        stub(sys.modules[INTERFACE])
    from onecopy.integrations.lmcache import OnecopyBackend

    return OnecopyBackend, bool(real)


def files_of_lmcache():
    """abstract_backend.py of the package, which is not imported for it."""
    for folder in sys.path:
        path = Path(folder or ".") / f"{INTERFACE.replace('.', '/')}.py"
        if path.exists():
            return path
    return None


def stub(interface):
    class StoragePluginInterface(abc.ABC):  # noqa: B024
        def __init__(self, dst_device="cpu", config=None, metadata=None, local_cpu_backend=None, loop=None):
            self.dst_device, self.config, self.metadata = dst_device, config, metadata
            self.local_cpu_backend, self.loop = local_cpu_backend, loop

        def batched_contains(self, keys, pin=False):
            hits = 0
            while hits < len(keys) and self.contains(keys[hits], pin):
                hits += 1
            return hits

    for name in ABSTRACT:
        setattr(StoragePluginInterface, name, abc.abstractmethod(lambda self: None))
    StoragePluginInterface.__abstractmethods__ = frozenset(ABSTRACT)
    interface.StoragePluginInterface = StoragePluginInterface


def module(name):
    if name not in sys.modules:
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = []
    return sys.modules[name]


def backend(max_gib=1.0):
    cls, _ = install()
    config = types.SimpleNamespace(extra_config={"onecopy.max_gib": max_gib})
    return cls(config=config, dst_device="cpu", metadata=None, local_cpu_backend=LocalCPU(), loop=None)
