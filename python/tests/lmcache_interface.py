# SPDX-License-Identifier: Apache-2.0
"""The part of LMCache that onecopy plugs into: its own abstract_backend.py where lmcache is installed, or a stub of it.

LMCache wants a card and CUDA's libraries, so that the rest is stubs: keys and memory objects.
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


class TensorMemoryObj:
    """A tensor in memory of a parent, which gets the memory back with the last reference."""

    def __init__(self, raw_data, metadata, parent):
        self.raw_data, self.meta, self._parent = raw_data, metadata, parent

    @property
    def tensor(self):
        size = self.meta.shape.numel() * self.meta.dtype.itemsize
        return self.raw_data[:size].view(self.meta.dtype).view(self.meta.shape)

    def parent(self):
        return self._parent

    def ref_count_down(self):
        self.meta.ref_count -= 1
        if self.meta.ref_count == 0:
            self._parent.free(self)

    def invalidate(self):
        self.raw_data = None


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
    management.MemoryFormat, management.TensorMemoryObj = MemoryFormat, TensorMemoryObj
    management.MemoryObj = management.MemoryAllocatorInterface = object
    management.MemoryObjMetadata = lambda shape, dtype, **named: types.SimpleNamespace(
        shape=shape, dtype=dtype, **named
    )
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

    for name in ABSTRACT:
        setattr(StoragePluginInterface, name, abc.abstractmethod(lambda self: None))
    StoragePluginInterface.__abstractmethods__ = frozenset(ABSTRACT)
    interface.StoragePluginInterface = StoragePluginInterface


def module(name):
    if name not in sys.modules:
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = []
    return sys.modules[name]


def backend(blocks=4, local_cpu=False):
    """Returns a backend with room for so many chunks of 64 Ki elements of bfloat16."""
    import torch

    cls, _ = install()
    gib = blocks * ((128 << 10) + 256) / (1 << 30)
    config = types.SimpleNamespace(local_cpu=local_cpu, extra_config={"onecopy.max_gib": gib})
    metadata = types.SimpleNamespace(
        get_shapes=lambda: [torch.Size((2, 4, 16, 512))], get_dtypes=lambda: [torch.bfloat16], chunk_size=16
    )
    return cls(config=config, metadata=metadata, dst_device="cpu")


def store(backend, number, shape=(2, 4, 16, 512)):
    """Stores a chunk as LMCache's StorageManager does. Returns whether there was a block for the chunk."""
    import torch

    memory = backend.get_allocator_backend().allocate(torch.Size(shape), torch.bfloat16, fmt=MemoryFormat.KV_2LTD)
    if memory is None:
        return False
    memory.tensor.fill_(number)
    backend.batched_submit_put_task([Key(number)], [memory])
    memory.ref_count_down()
    return True
