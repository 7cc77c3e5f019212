# SPDX-License-Identifier: Apache-2.0
"""vLLM's memory of a card, for test_vllm_sleep.py: memory of the host whose content is lost when it sleeps.

``sleep_mode_backend.py`` is vLLM's own with ONECOPY_VLLM, a folder with vLLM's package, or a stub with the same interface.
"""

import ctypes
import importlib
import sys
import types
from dataclasses import dataclass

import torch

import vllm_interface

LOST = 0xEE  # what is read from memory whose content was discarded


@dataclass
class AllocationData:
    handle: tuple  # the device, the size, the address, and what the driver calls the memory
    tag: str
    cpu_backup_tensor: object = None
    is_asleep: bool = False


class Allocator:
    """A stub of vLLM's CuMemAllocator."""

    def __init__(self):
        self.pointer_to_data, self.kept = {}, []
        self.private_bytes = 0  # that sleeping has copied

    def allocate(self, size, tag):
        """Returns memory as a tensor of bytes."""
        self.kept.append(memory := ctypes.create_string_buffer(size))
        at = ctypes.addressof(memory)
        self.pointer_to_data[at] = AllocationData((0, size, at, 0), tag)
        return torch.frombuffer(memory, dtype=torch.uint8)

    def sleep(self, offload_tags):
        for at, data in self.pointer_to_data.items():
            if data.is_asleep:
                continue
            if data.tag in offload_tags:
                data.cpu_backup_tensor = ctypes.string_at(at, data.handle[1])
                self.private_bytes += data.handle[1]
            ctypes.memset(at, LOST, data.handle[1])
            data.is_asleep = True

    def wake_up(self, tags=None):
        for at, data in self.pointer_to_data.items():
            deferred = tags is not None and data.tag in ("weights", "kv_cache") and data.tag not in tags
            if not data.is_asleep or deferred:
                continue
            data.is_asleep = False
            if data.cpu_backup_tensor is not None:
                ctypes.memmove(at, data.cpu_backup_tensor, data.handle[1])
                data.cpu_backup_tensor = None


def install():
    """Puts the modules of vLLM into sys.modules, and returns the allocator."""
    vllm_interface.install("0.32")
    allocator = Allocator()
    vllm_interface.module("vllm.device_allocator").get_mem_allocator_instance = lambda: allocator
    copy = types.SimpleNamespace(cudaMemcpy=lambda to, at, size: allocator_copy(allocator, to, at, size))
    vllm_interface.module("vllm.device_allocator.cumem").libcudart = copy
    name = "vllm.device_allocator.sleep_mode_backend"
    if vllm_interface.FILES:
        vllm_interface.load(name, f"{vllm_interface.FILES}/device_allocator/sleep_mode_backend.py")
    else:
        backend_stub(vllm_interface.module(name))
    return allocator


def allocator_copy(allocator, to, at, size):
    """Copies, and refuses memory that is asleep."""
    for data in allocator.pointer_to_data.values():
        begin, end = data.handle[2], data.handle[2] + data.handle[1]
        assert not data.is_asleep or not any(begin <= address < end for address in (to, at)), "an invalid address"
    ctypes.memmove(to, at, size)


def backend_stub(module):
    class CuMemBackend:
        def __init__(self):
            self._state = "RUNNING"

        def state(self):
            return self._state

        def suspend(self, level=1):
            self._state = "SUSPENDED"
            kept = ("weights", "runtime", "cudagraph") if level == 1 else ("runtime", "cudagraph")
            sys.modules["vllm.device_allocator"].get_mem_allocator_instance().sleep(offload_tags=kept)

        def resume(self, tags=None):
            sys.modules["vllm.device_allocator"].get_mem_allocator_instance().wake_up(tags)
            self._state = "RUNNING"

    class SleepModeBackendFactory:
        _registry = {}

        @classmethod
        def register_backend(cls, name, module_path, class_name):
            cls._registry[name] = lambda: getattr(importlib.import_module(module_path), class_name)

        @classmethod
        def create_backend(cls, model_config):
            return cls._registry[model_config.sleep_mode_backend]()()

    module.CuMemBackend, module.SleepModeBackendFactory = CuMemBackend, SleepModeBackendFactory


class Model(torch.nn.Module):
    """A model in memory of the allocator: two weights of a version, one that no version has, a buffer, and a table."""

    def __init__(self, allocator):
        super().__init__()
        self.calls = []
        memory = allocator.allocate(64 << 10, "weights").view(torch.float32)
        self.runtime = allocator.allocate(4096, "runtime").view(torch.float32).fill_(6)

        def part(begin, count):
            return alone(memory[begin : begin + count])

        self.a = torch.nn.Parameter(part(0, 4000), requires_grad=False)
        self.b = torch.nn.Parameter(part(4096, 8000), requires_grad=False)
        self.scale = torch.nn.Parameter(part(12100, 3).fill_(3), requires_grad=False)
        self.register_buffer("table", part(12200, 500).fill_(5))
        self.derived = part(13000, 10).fill_(7)  # a plain attribute, as kernels have

    def modules(self):
        return ()  # vllm_interface's layers, of which a failed load would drop parts

    def load_weights(self, weights):
        names = set()
        for name, value in weights:
            if name == "bad":
                raise KeyError(name)
            getattr(self, name).data.copy_(value)
            names.add(name)
        return names

    def content(self):
        all_of = (self.a, self.b, self.scale, self.table, self.derived, self.runtime)
        return [sorted(set(each.tolist())) for each in all_of]


def alone(tensor):
    """Returns a tensor on the same memory with a storage of its own, as a card's allocator makes them."""
    memory = (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())
    return torch.frombuffer(memory, dtype=tensor.dtype)
