# SPDX-License-Identifier: Apache-2.0
"""The checkpoint engines of verl 0.9.1 and NeMo-RL that onecopy plugs into: classes of their own files, or stubs of them.

verl's file is that of the installed package, of which the two classes alone are run: the file imports Ray and engines.
NeMo-RL's is ONECOPY_NEMO_RL, its ``nemo_rl/utils/checkpoint_engines/base.py`` (of 2026-08-22); the package is not on PyPI.
"""

import abc
import ast
import importlib.util
import os
import sys
import types
from pathlib import Path

# The methods that drivers call, with their parameters, as the plugs implement them.
VERL = {
    "prepare": [],
    "build_topology": ["actor_wg_world_size", "rollout_world_size", "metadata"],
    "init_process_group": ["**kwargs"],
    "finalize": [],
    "send_weights": ["weights", "global_steps"],
    "receive_weights": ["global_steps"],
}
NEMO_RL = {
    "get_target_weight_layout": [],
    "prepare": [],
    "init_policy_process_group": ["worker_rank", "train_world_size", "rollout_world_size", "metadata"],
    "init_rollout_process_group": ["rollout_rank", "train_world_size", "rollout_world_size", "metadata"],
    "finalize": [],
    "send_weights": ["weights"],
    "receive_weight_batches": [],
}


def verl_file():
    """Returns verl's file, or None if verl is not installed."""
    verl = importlib.util.find_spec("verl")
    return Path(verl.submodule_search_locations[0]) / "checkpoint_engine/base.py" if verl else None


def nemo_rl_file():
    """Returns NeMo-RL's file, or None if it was not named."""
    return Path(os.environ["ONECOPY_NEMO_RL"]) if "ONECOPY_NEMO_RL" in os.environ else None


def methods(path):
    """Returns the methods of ``CheckpointEngine`` in a file, with their parameters."""
    (found,) = (node for node in ast.parse(path.read_text()).body if getattr(node, "name", "") == "CheckpointEngine")
    functions = (node for node in found.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
    return {each.name: parameters(each.args) for each in functions}


def parameters(arguments):
    named = [each.arg for each in arguments.posonlyargs + arguments.args + arguments.kwonlyargs][1:]
    return named + ([f"**{arguments.kwarg.arg}"] if arguments.kwarg else [])


def install_verl():
    """Puts verl's module into sys.modules."""
    path = verl_file()
    for name in ("verl", "verl.checkpoint_engine"):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = []
    run(sys.modules["verl.checkpoint_engine"], path, verl_stub)


def install_nemo_rl():
    """Puts NeMo-RL's module into sys.modules."""
    for name in ("nemo_rl", "nemo_rl.utils", "nemo_rl.utils.checkpoint_engines"):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = []
    module = types.ModuleType("nemo_rl.utils.checkpoint_engines.base")
    sys.modules[module.__name__] = module
    run(module, nemo_rl_file(), nemo_rl_stub)


def run(module, path, stub):
    if path is None:
        stub(module)
        return
    source = "import asyncio, importlib\nfrom abc import *\nfrom typing import *\nfrom collections.abc import *\nimport torch\n"
    wanted = ("CheckpointEngineRegistry", "CheckpointEngine", "create_checkpoint_engine")
    for node in ast.parse(path.read_text()).body:
        if getattr(node, "name", None) in wanted:
            source += ast.get_source_segment(path.read_text(), node) + "\n\n"
    exec(compile("from __future__ import annotations\n" + source, str(path), "exec"), vars(module))


def abstract(names):
    """Returns a class in which these methods are abstract."""
    return abc.ABCMeta("CheckpointEngine", (abc.ABC,), {name: abc.abstractmethod(lambda self: None) for name in names})


def verl_stub(module):
    class CheckpointEngineRegistry:
        _registry = {}

        def register(backend):
            return lambda cls: CheckpointEngineRegistry._registry.setdefault(backend, cls)

        @classmethod
        def new(cls, backend, *arguments, **named):
            return cls._registry[backend](*arguments, **named)

    module.CheckpointEngineRegistry, module.CheckpointEngine = CheckpointEngineRegistry, abstract(VERL)


def nemo_rl_stub(module):
    def create_checkpoint_engine(backend, *, bucket_size_bytes, engine_kwargs):
        name, _, of = backend.partition(":")
        return getattr(importlib.import_module(name), of)(bucket_size=bucket_size_bytes, **engine_kwargs)

    has_defaults = ("finalize", "get_target_weight_layout")
    module.create_checkpoint_engine = create_checkpoint_engine
    module.CheckpointEngine = abstract(set(NEMO_RL) - set(has_defaults))
    module.CheckpointEngine.finalize = module.CheckpointEngine.get_target_weight_layout = lambda self: None
    module.CheckpointEngine.shard_expert_weights = False
