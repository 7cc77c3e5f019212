# SPDX-License-Identifier: Apache-2.0
"""SGLang's hooks for tests without an engine: its own classes where it is installed, or stubs that call the hooks."""

import importlib
import sys
import types
from enum import Enum

from onecopy.integrations import _sglang_weights as weights

REGISTRY = "sglang.srt.plugins.hook_registry"


class HookType(Enum):
    BEFORE, AFTER, AROUND = "before", "after", "around"


class HookRegistry:
    """SGLang's registry, which can replace no method of a stub."""

    def __init__(self):
        self.hooks, self._patched = {}, set()

    def register(self, target, hook, kind):
        self.hooks[target] = hook

    def apply_hooks(self):
        self._patched |= set(self.hooks)


class Changes:
    """What changes the weights of this process's engine. Each object begins with an engine that had no update."""

    def __init__(self, is_sglang):
        weights._changes = 0
        self._is_sglang = is_sglang
        if not is_sglang:
            for name in ("sglang", "sglang.srt", "sglang.srt.plugins"):
                sys.modules.setdefault(name, types.ModuleType(name)).__path__ = []
            module = sys.modules[REGISTRY] = types.ModuleType(REGISTRY)
            module.HookType, module.HookRegistry = HookType, HookRegistry()
        self.registry = importlib.import_module(REGISTRY).HookRegistry
        if not self.registry._patched:
            weights.watch()
            self.registry.apply_hooks()

    def _call(self, target, *arguments):
        """Calls SGLang's method, whose engine is a stub, or its hook."""
        if not self._is_sglang:
            return self.registry.hooks[target](*arguments)
        module, kind, method = target.rsplit(".", 2)
        return getattr(getattr(importlib.import_module(module), kind), method)(*arguments)

    def update(self, way="tensor"):
        """An update begins. SGLang's own method refuses it, since no session is open."""
        self._call(f"{weights._MANAGER}.update_weights_from_{way}", types.SimpleNamespace(_session=None), None)

    def flush(self):
        """The engine's own cache is flushed, or keeps what requests use."""
        busy = types.SimpleNamespace(is_fully_idle=lambda **_: False, _engine_paused=False, waiting_queue=[],
                                     running_batch=types.SimpleNamespace(reqs=[]))  # fmt: skip
        self._call(weights._FLUSH, *([busy] if self._is_sglang else [False, busy]))
