# SPDX-License-Identifier: Apache-2.0
"""The parts of LMCache that onecopy plugs into: its own base classes where lmcache is installed, or stubs of them.

The rest is stubs, since LMCache's packages want another torch: keys, memory objects and results.
"""

import abc
import enum
import importlib.util
import os
import select
import sys
import types
from dataclasses import dataclass
from pathlib import Path

INTERFACE = "lmcache.v1.storage_backend.abstract_backend"
ABSTRACT = ("contains", "exists_in_put_tasks", "batched_submit_put_task", "get_blocking", "pin", "unpin", "remove",
            "get_allocator_backend", "close")  # fmt: skip
L2 = "lmcache.v1.distributed.l2_adapters.base"
L2_ABSTRACT = ("get_store_event_fd", "get_lookup_and_lock_event_fd", "get_load_event_fd", "submit_store_task",
               "pop_completed_store_tasks", "submit_lookup_and_lock_task", "query_lookup_and_lock_result", "submit_unlock",
               "submit_load_task", "query_load_result", "close")  # fmt: skip


class MemoryFormat(enum.Enum):
    KV_2LTD = enum.auto()
    KV_MLA_FMT = enum.auto()


@dataclass(frozen=True)
class Key:
    chunk: int

    def to_string(self):
        return f"model@1@0@{self.chunk:x}@half"


@dataclass(frozen=True)
class ObjectKey:
    chunk_hash: bytes
    model_name: str = "model"
    object_group_id: int = 0


@dataclass(frozen=True)
class Layout:
    shapes: list
    dtypes: list


class Object:
    """Memory of LMCache's server, in one layout."""

    def __init__(self, layout, number=0):
        import torch

        self.layout = layout
        size = sum(shape.numel() * dtype.itemsize for shape, dtype in zip(layout.shapes, layout.dtypes, strict=True))
        self.bytes = torch.full((size,), number, dtype=torch.uint8)

    @property
    def byte_array(self):
        return memoryview(self.bytes.numpy())

    def get_shapes(self):
        return self.layout.shapes

    def get_dtypes(self):
        return self.layout.dtypes


class StoreResult(int):
    def __new__(cls, success, size):
        return super().__new__(cls, size if success else -1)


class Bitmap(set):
    def __init__(self, size):
        self.size = size

    def set(self, index):
        self.add(index)


class Notifier:
    def __init__(self):
        self.fd = os.eventfd(0)

    def fileno(self):
        return self.fd

    def notify(self):
        os.eventfd_write(self.fd, 1)

    def close(self):
        os.close(self.fd)


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
    for name in ("lmcache.utils", "lmcache.v1.config", "lmcache.v1.metadata"):
        module(name)
    sys.modules["lmcache"].torch_device_type = "cpu"
    sys.modules["lmcache.utils"].CacheEngineKey = Key
    sys.modules["lmcache.v1.config"].LMCacheEngineConfig = object
    sys.modules["lmcache.v1.metadata"].LMCacheMetadata = object
    management = module("lmcache.v1.memory_management")
    management.MemoryFormat, management.TensorMemoryObj = MemoryFormat, TensorMemoryObj
    management.MemoryObj = management.MemoryAllocatorInterface = object
    management.MemoryObjMetadata = lambda shape, dtype, **named: types.SimpleNamespace(
        shape=shape, dtype=dtype, **named
    )
    real = own_or(INTERFACE, stub)
    from onecopy.integrations.lmcache import OnecopyBackend

    return OnecopyBackend, real


def install_l2():
    """Puts the modules of LMCache's server into sys.modules; returns the class of the adapter."""
    module("lmcache.logging").init_logger = lambda name: None
    module("lmcache.v1.mp_observability.event").Event = module("lmcache.v1.mp_observability.event").EventType = object
    module("lmcache.v1.mp_observability.event_bus").get_event_bus = lambda: None
    module("lmcache.v1.distributed.internal_api").L2StoreResult = StoreResult
    module("lmcache.lmcache_native").Bitmap = Bitmap
    module("lmcache.v1.platform").create_event_notifier = Notifier
    own_or(L2, stub_l2)
    from onecopy.integrations.lmcache import OnecopyL2Adapter

    return OnecopyL2Adapter


def own_or(name, stub):
    """Makes a module of LMCache's own file, or of a stub if lmcache is not installed. Returns which."""
    made = module(name)
    path = file_of_lmcache(name)
    if path is None:
        stub(made)
        return False
    spec = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
    return True


def file_of_lmcache(name):
    """The file of a module of the package, which is not imported for it."""
    for folder in sys.path:
        path = Path(folder or ".") / f"{name.replace('.', '/')}.py"
        if path.exists():
            return path
    return None


def stub(interface):
    class StoragePluginInterface(abc.ABC):  # noqa: B024
        def __init__(self, dst_device="cpu", config=None, metadata=None, local_cpu_backend=None, loop=None):
            self.dst_device, self.config, self.metadata = dst_device, config, metadata
            self.local_cpu_backend, self.loop = local_cpu_backend, loop

    interface.StoragePluginInterface = with_abstract(StoragePluginInterface, ABSTRACT)


def stub_l2(interface):
    class L2AdapterInterface(abc.ABC):  # noqa: B024
        pass

    interface.L2AdapterInterface = with_abstract(L2AdapterInterface, L2_ABSTRACT)
    interface.AdapterUsage = lambda used, capacity: types.SimpleNamespace(total_bytes_used=used)


def with_abstract(cls, names):
    for name in names:
        setattr(cls, name, abc.abstractmethod(lambda self: None))
    cls.__abstractmethods__ = frozenset(names)
    return cls


def module(name):
    folders = name.split(".")
    if len(folders) > 1:
        module(".".join(folders[:-1]))
    if name not in sys.modules:
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = []
    return sys.modules[name]


def forget(before):
    """Removes the modules that came since `before`, so that other tests find what is installed."""
    for name in set(sys.modules) - before:
        if name.startswith(("lmcache", "onecopy.integrations._lmcache")):
            del sys.modules[name]


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


class Server:
    """The two threads of LMCache's server that call an adapter, in one: each task is waited for."""

    def __init__(self, adapter):
        self.adapter = adapter

    def wait(self, fd):
        assert select.select([fd], [], [], 60)[0], "no event"
        os.eventfd_read(fd)

    def store(self, keys, objects):
        task = self.adapter.submit_store_task(keys, objects)
        self.wait(self.adapter.get_store_event_fd())
        return self.adapter.pop_completed_store_tasks()[task]

    def lock(self, keys, layouts):
        task = self.adapter.submit_lookup_and_lock_task(keys, layouts)
        self.wait(self.adapter.get_lookup_and_lock_event_fd())
        return sorted(self.adapter.query_lookup_and_lock_result(task))

    def load(self, keys, objects):
        task = self.adapter.submit_load_task(keys, objects)
        self.wait(self.adapter.get_load_event_fd())
        return sorted(self.adapter.query_load_result(task))
